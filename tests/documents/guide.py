"""The guide to training memory: parameters of a GPT, optimizers, ZeRO."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import parameter_count, pieces
from tests.documents.rows import Row, command, figure, layers_bytes, number, phase, run, term

_TEXTBOOK = "memory --model llama-2-7b --framework textbook --seq 2048"
_FP32, _MIXED = f"{_TEXTBOOK} --precision fp32", "memory --model llama-2-7b --framework nanotron"
_OPTIMIZER = "memory --model llama-2-7b --framework textbook --optimizer {}"
_GPT = load_model("gpt2").spec
_H, _S, _V, _FC = _GPT.hidden, _GPT.max_positions, _GPT.vocab, _GPT.ffn


def guide() -> list[Row]:
    """Rows of the document."""
    return [*_state(), *_parameters(), *_activations(), *_optimizers(), *_sharding()]


def total(model: ModelSpec) -> int:
    """Parameters of a model."""
    return parameter_count(model).total


def llama() -> int:
    """Parameters of Llama-2-7B, the example of bytes a parameter."""
    return total(load_model("llama-2-7b").spec)


def without(**changes: object) -> float:
    """Parameters that parts of GPT-2 have: the difference that a change makes."""
    return float(total(_GPT) - total(_GPT.model_copy(update=changes)))


def _state() -> list[Row]:
    count, fp32, mixed = llama(), command(_FP32), command(_MIXED)
    weights = term(_MIXED, "weights", "optimizer") + term(_MIXED, "master weights", "optimizer")
    return [
        figure("weights in fp32", 4.0 * count, term(_FP32, "weights", "start"), fp32,
               formula="4 N"),
        figure("gradients in fp32", 4.0 * count,
               term(_FP32, "gradients", "gradient reduction"), fp32,
               formula="4 N"),
        figure("weights in mixed precision", 6.0 * count, weights, mixed, formula="2 N + 4 N"),
        figure("gradients in mixed precision", 6.0 * count,
               term(_MIXED, "gradients", "gradient reduction"), mixed, formula="2 N + 4 N",
               note="of nanotron alone, by default: " + ", ".join(_gradients(count))),
        _eight_bits(),
    ]  # fmt: skip


def _gradients(count: int) -> Iterator[str]:
    """Bytes a parameter of the gradients that other frameworks keep by default."""
    for framework, degrees in (("megatron-core", ""), ("torchtitan", ""), ("deepspeed", "")):
        words = f"memory --model llama-2-7b --framework {framework}{degrees}"
        held = term(words, "gradients", "gradient reduction") / count
        yield f"{framework} keeps {held:.0f} N"


def _eight_bits() -> Row:
    """Training in 8 bits keeps both copies of the weights, so it takes more memory, not less."""
    words = "memory --model 70b --tp 8"
    narrow = f"{words} --precision fp8"
    wide_bytes, narrow_bytes = (run(one)["total_bytes"] for one in (words, narrow))
    return Row(
        "8-bit floating point shrinks memory further", "named, no figure",
        f"{number(narrow_bytes, 'GiB', 1)} in fp8, {number(wide_bytes, 'GiB', 1)} in bf16",
        command(narrow), "**erratum** for Transformer Engine's recipe: weights are held in 8 bits "
        "row- and column-wise beside the 16-bit ones; products are faster",
    )  # fmt: skip


def _parameters() -> list[Row]:
    layers, by = _GPT.layers, command("models gpt2")
    layer = without(layers=layers - 1)
    norms = (total(_GPT) - total(_GPT.model_copy(update={"norm_bias": False}))) * 2.0
    ffn = without(ffn=_FC - 1)
    formula = _H * (_V + _S) + layers * (4 * _H**2 + 9 * _H + 2 * _FC * _H + _FC) + 2 * _H
    attention = layer - 4 * _H - (2 * _H * _FC + _FC + _H)
    return [
        figure("embedding", float(_V * _H), _V * without(vocab=_V - 1), by, unit="",
               formula="v h"),
        figure("learned positions", float(_S * _H), without(position="none"), by, unit="",
               formula="s h", note="0 where they are not learned"),
        figure("layer norm", 2.0 * _H, norms / (2 * layers + 1), by, unit="", formula="2 h"),
        figure("query, key and value, one head", 3.0 * _H**2 + 3 * _H,
               _op_parameters("attention/qkv"), by, unit="", formula="3 h² + 3 h"),
        figure("attention of several heads", 4.0 * (_H**2 + _H), attention, by, unit="",
               formula="4 (h² + h)"),
        Row("parameters of dropout", "0", "0", by, "agrees"),
        figure("a column of the feed-forward block in all layers", layers * (2.0 * _H + 1), ffn,
               by, unit="", formula="L (2 h + 1)", note="of 2 h dfc + dfc + h a layer"),
        figure("final layer norm", 2.0 * _H, norms / (2 * layers + 1), by, unit="",
               formula="2 h"),
        figure("a layer", 4.0 * _H**2 + 9 * _H + 2 * _FC * _H + _FC, layer, by, unit="",
               formula="4 h² + 9 h + 2 dfc h + dfc"),
        figure("GPT-2", float(formula), total(_GPT), by, unit="",
               formula="h (v + s) + L (4 h² + 9 h + 2 dfc h + dfc) + 2 h"),
    ]  # fmt: skip


def _op_parameters(name: str) -> float:
    """Parameters of an op of GPT-2's layer."""
    context = OpContext(_GPT, load_framework("megatron-core"), _S)
    ops = [op for op in pieces(context)[0].ops if op.name == name]
    return float(sum(count for op in ops for count, _ in op.parameters))


def _activations() -> list[Row]:
    words = "memory --model gpt3-175b --framework textbook --dropout --mbs {} --seq {}"
    one, more, longer = (
        layers_bytes(words.format(*sizes)) for sizes in ((1, 1024), (2, 1024), (1, 2048))
    )
    quadratic = 2 * (34 + 2 * 40) / (34 + 40)
    return [
        figure("activations are linear in the batch", 2.0, more / one,
               command(words.format(2, 1024)), unit="", digits=3,
               formula="L s bs h (34 + 5 a s / h)"),
        figure("and quadratic in the sequence: GPT-3, twice 1,024", quadratic, longer / one,
               command(words.format(1, 2048)), unit="", digits=3),
        Row("checkpointing and gradient accumulation reduce them", "named", "what each saves",
            command("memory --model 8b --gpus 8xH100 --mbs 4 --advise"), "agrees"),
    ]  # fmt: skip


def _optimizers() -> list[Row]:
    count = llama()
    adam, factored, momentum, eight = (
        term(_OPTIMIZER.format(name), "optimizer state", "start")
        for name in ("adamw", "adafactor", "adafactor-momentum", "adamw-8bit")
    )
    return [
        figure("Adam and AdamW", 8.0 * count, adam, command(_OPTIMIZER.format("adamw")),
               formula="2 · 4 N"),
        figure("Adafactor", 4.0 * count, factored, command(_OPTIMIZER.format("adafactor")),
               formula="4 N", erratum="rows and columns of each matrix, far below 4 N; 4 N is "
               "what a first moment beside them takes"),
        figure("Adafactor with a first moment", 4.0 * count, momentum,
               command(_OPTIMIZER.format("adafactor-momentum")), formula="4 N"),
        figure("8-bit Adam", 1.0 * count, eight, command(_OPTIMIZER.format("adamw-8bit")),
               formula="N", erratum="two moments of one byte each and their scales: 2 N and more"),
    ]  # fmt: skip


def _sharding() -> list[Row]:
    words = "memory --model llama-2-7b --framework textbook --gpus 8xH100 --zero {}"
    count = llama()
    rows = []
    for stage, whole in ((0, 16.0), (1, 4.0), (2, 2.0), (3, 0.0)):
        found = words.format(stage)
        held = phase(found, "gradient reduction")
        state = held["bytes"] - held["terms"]["inputs"]
        expected = count * (whole + (16.0 - whole) / 8)
        rows.append(
            figure(f"ZeRO-{stage} on 8 GPUs: weights, gradients, optimizer", expected, state,
                   command(found), unit="GB", digits=2)
        )  # fmt: skip
    kept = [term(words.format(stage), "activations", "forward end") for stage in (0, 3)]
    rows.append(figure("ZeRO divides no activations", kept[0], kept[1], command(words.format(3))))
    rows.append(
        Row("tensor, context and pipeline parallelism divide them", "named",
            "degrees of every command",
            command("search --model 70b --gpus 64xH100 --gbs-tokens 4M"),
            "agrees")
    )  # fmt: skip
    rows += [_zero_traffic(), _vision()]
    rows.append(
        Row("CUDA kernels and buffers take 1 to 2 GB", "1 to 2 GB",
            f"context {number(_context(), 'GB', 2)}, fragmentation and communicators apart",
            command("memory --model 8b"), "ours has the parts, each with its source")
    )  # fmt: skip
    return rows


def _zero_traffic() -> Row:
    """Exposed traffic of ZeRO: what stage 3 gathers beyond what stage 1 reduces."""
    words = "evaluate --model 8b --gpus 16xH100 --gbs 32 --mbs 1 --framework deepspeed --zero {}"
    one, three = (run(words.format(stage))["plans"][0]["time"] for stage in (1, 3))
    sent = [time["dp_s"] + time["fsdp_s"] for time in (one, three)]
    return Row(
        "ZeRO adds traffic, usually little", "named",
        f"{sent[0]:.2f} s a step exposed under stage 1, {sent[1]:.2f} s under stage 3",
        command(words.format(3)), "agrees as named; how much depends on links and tokens a GPU",
    )  # fmt: skip


def _vision() -> Row:
    return Row(
        "fewer image tokens need less memory; encoders, encoder-decoders", "named",
        "refused by name: the program plans decoder-only text models", "[limits](limits.md)",
        "not built; a text decoder with as many tokens is an upper bound of its language model",
    )  # fmt: skip


def _context() -> float:
    from hardware.load import load_gpu

    return load_gpu("H100").context_bytes
