"""Resource accounting for training with AdamW, SwiGLU edition."""

from __future__ import annotations

from planner.job.models.catalog import load_model
from planner.predict.ops.table import parameter_count
from tests.documents.rows import Row, command, figure, phase, term

_WORDS = "memory --model gpt2-xl-swiglu --framework textbook-swiglu --precision fp32 --mbs {}"
_L, _D, _S, _V = 48, 1600, 1024, 50257
_PEAKS = ((1, 34.80), (2, 39.10), (4, 47.69), (8, 64.89))


def swiglu() -> list[Row]:
    """Rows of the document."""
    words = _WORDS.format(1)
    found, by = command(words), command("models gpt2-xl-swiglu")
    count = parameter_count(load_model("gpt2-xl-swiglu").spec).total
    layer = 16 * _D**2 + 2 * _D
    unit = 4.0 * (_S * _D * (14 * _L + 1) + _S * _V)
    kept = term(words, "activations", "forward end")
    backward = phase(words, "backward")["terms"]
    state = sum(backward[name] for name in ("weights", "gradients", "optimizer state"))
    outer = _V * _D + _D
    return [
        figure("buckets at the peak: weights P, gradients P, moments 2P, activations A",
               16.0 * count + unit, state + backward["activations"], found, formula="4 (4P + A)"),
        figure("parameters of a layer", layer, (count - outer) / _L, by, unit="",
               formula="16 d² + 2 d"),
        figure("parameters of 48 layers", 1966233600, count - outer, by, unit=""),
        figure("parameters of the embedding", 80411200, parameter_count(
            load_model("gpt2-xl-swiglu").spec).embedding, by, unit="", formula="V d"),
        figure("all parameters", 2046646400, count, by, unit="",
               formula="L (16 d² + 2 d) + V d + d"),
        figure("a layer keeps 14 b s d elements", 4.0 * 14 * _S * _D,
               (kept - 4.0 * _S * (_D + _V)) / _L, found, formula="4 · 14 b s d"),
        figure("activations at batch 1", unit, kept, found,
               formula="4 (14 L b s d + b s d + b s V)"),
        figure("long-lived bytes", 4.0 * 8186585600, state, found, formula="4 · 4P"),
        *(figure(f"peak at batch {batch}", gib * 2**30,
                 phase(_WORDS.format(batch), "backward")["bytes"],
                 command(_WORDS.format(batch)), unit="GiB", digits=2)
          for batch, gib in _PEAKS),
        Row("mixed precision, checkpoints, 8-bit optimizers, ZeRO: which bucket each shrinks",
            "a table of directions", "each as a change with its bytes and time",

            command("memory --model gpt2-xl-swiglu --framework hf-transformers --mbs 8 --advise"),
            "agrees; ZeRO shards the 4P only from stage 3 on"),
        Row("halved precision halves all numbers", "all", "weights, gradients and activations",
            command("memory --model gpt2-xl-swiglu --framework hf-transformers --dtype amp"),
            "**erratum**: under autocast or with master weights, state stays at 16 bytes a "
            "parameter; only 16-bit weights with 16-bit moments halve"),
        Row("tying embedding and head would save V d", "four more V d", "0",
            by, "**erratum**: P counts one V d, so the account is tied already; an untied head "
            "would add V d"),
        Row("name of the configuration", "GPT-2 Large", "gpt2-xl: 48 layers of 1,600",
            command("models gpt2-xl"), "**erratum**: GPT-2 Large has 36 layers of 1,280"),
        Row("what the account leaves out", "-", "scores or softmax statistics of the attention, "
            "the product of gate and up, softmax of the loss, gradients in flight",
            command(words.replace("textbook-swiglu", "hf-transformers")),
            "an account of tensors by hand; the framework's profile has the rest"),
    ]  # fmt: skip
