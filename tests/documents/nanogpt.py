"""Understanding all the bytes in nanoGPT: GPT-2 small, 12 sequences of 1,024, autocast, A100."""

from __future__ import annotations

from hardware.load import load_gpu
from planner.job.frameworks.workspaces import torch_workspaces
from planner.job.models.catalog import load_model
from planner.predict.ops.table import parameter_count
from tests.documents.rows import Row, command, figure, layers_bytes, number, phase, run, term

_L, _B, _S, _H, _A, _V = 12, 12, 1024, 768, 12, 50304
_E, _SCORES, _LOGITS = _B * _S * _H, _B * _A * _S**2, _B * _S * _V
_MASKS = _L * _S**2
# The document's model is not compiled.
_EAGER = "memory --model nanogpt-124m --framework nanogpt --without compile --mbs 12"
_WORDS = f"{_EAGER} --gpus A100-80G --attention eager"
# Gradients stay between steps, as in the trace.
_KEPT = f"{_WORDS} --no-set-to-none"
_DDP = f"{_EAGER} --gpus 8xA100-80G{{}}"


def nanogpt() -> list[Row]:
    """Rows of the document."""
    return [*_state(), *_activations(), *_peak()]


def _state() -> list[Row]:
    count = parameter_count(load_model("nanogpt-124m").spec).total
    found, plain = command(_KEPT), "`planner.job.frameworks.workspaces.torch_workspaces`"
    start = phase(_KEPT, "start")
    terms = start["terms"]
    workspace = torch_workspaces("ampere")
    buffers = terms["buffers"]
    return [
        figure("cuBLAS workspace of one thread", 8519680, workspace / 2, plain,
               note="two on a GPU: forward's and backward's thread; 2 x 33,554,432 B on Hopper"),
        Row("printed trace of a product of 2 x 2 tensors", "0; 512; 8,520,704; 8,521,216; "
            "17,041,408 B", f"workspaces of {number(workspace, 'B', 0)}", plain,
            "agrees; the rounding to 512 B is in the share for fragmentation"),
        figure("model: weights and causal masks", 547826688, terms["weights"] + buffers, found,
               formula="4 N + 4 Nbuf"),
        figure("optimizer states", 994990080, terms["optimizer state"], found, formula="8 N",
               note="measured 994,990,380 B"),
        figure("gradients after backward", 497495040, terms["gradients"], found, formula="4 N"),
        Row("inputs and targets", "2 · 12 · 1,024 · 8 = 196,608 B",
            f"{number(terms['inputs'], 'B', 0)} at rest", found,
            "agrees" if terms["inputs"] == 196608 else "ours counts the ids at rest, the targets "
            "with the activations"),
        *_persistence(),
        figure("parameters", 124373760, count, command("models nanogpt-124m"), unit="",
               formula="L (12 D² + 2 D) + D (V + T) + D"),
        figure("all bytes between steps", 2057547776, start["bytes"], found,
               note="measured 2,064,403,456 B, the rest rounding of blocks"),
        figure("steady state without workspaces and inputs", 16.0 * count + 4.0 * _MASKS,
               start["bytes"] - terms["inputs"] - workspace, found, formula="16 N + 4 Nbuf"),
        figure("parameters of GPT-2 with biases and 50,257 words", 124439808,
               parameter_count(load_model("gpt2").spec).total, command("models gpt2"), unit="",
               note="with biases; without: --no-bias"),
    ]  # fmt: skip


def _persistence() -> list[Row]:
    """What gradients do between steps: accumulation, set_to_none, DDP and its views."""
    gradients = 4.0 * parameter_count(load_model("nanogpt-124m").spec).total
    cases = (
        ("gradients kept with set_to_none=False", gradients, _KEPT, "start"),
        ("gradients kept between micro-batches", gradients, f"{_WORDS} --grad-acc 2",
         "forward, gradients held"),
        ("DDP: gradients and buckets after backward", 2 * gradients, _DDP.format(""),
         "gradient reduction"),
        ("DDP with gradient_as_bucket_view", gradients,
         _DDP.format(" --gradient-as-bucket-view"), "gradient reduction"),
        ("DDP, views, between steps", gradients,
         _DDP.format(" --gradient-as-bucket-view"), "start"),
    )  # fmt: skip
    return [
        figure(what, theirs, _gradients(words, name), command(words))
        for what, theirs, words, name in cases
    ]


def _gradients(words: str, name: str) -> float:
    known = {item["phase"] for item in run(words)["stages"][0]["phases"]}
    spelled = name if name in known else name.replace(", gradients held", " (accumulating)")
    return sum(term(words, item, spelled) for item in ("gradients", "gradient buckets"))


def _activations() -> list[Row]:
    found = command(f"{_WORDS} --tensors")
    by_name = _tensors()
    layer = {name: size / _L for name, size in by_name.items()}
    attention = sum(size for name, size in layer.items() if name.startswith("attention"))
    feed_forward = sum(size for name, size in layer.items() if name.startswith(("ffn", "mlp")))
    formula = float(_L * (36 * _E + 6 * _SCORES) + 6 * _E + 6 * _LOGITS)
    textbook = "memory --model nanogpt-124m --framework textbook --dropout --mbs 12"
    casts = term(_WORDS, "weight casts", "forward end")
    kept = term(_WORDS, "activations", "forward end")
    return [
        figure("a layer norm keeps its fp32 input", 4.0 * _E, by_name["head/norm/input"], found,
               formula="4 Ne", note="and 8 B of statistics a token"),
        figure("attention block", 14.0 * _E + 6 * _SCORES, attention, found,
               formula="14 Ne + 6 Na", note="ours with the norm's statistics and a boolean mask"),
        figure("feed-forward block", 22.0 * _E, feed_forward, found, formula="22 Ne"),
        figure("final norm and input of the head", 6.0 * _E,
               by_name["head/norm/input"] + by_name["head/logits/input"], found, formula="6 Ne"),
        figure("logits kept for the loss", 6.0 * _LOGITS, by_name["head/loss"], found,
               formula="6 Nl"),
        figure("all activations", formula, kept, found, unit="GiB", digits=3,
               formula="L (36 Ne + 6 Na) + 6 Ne + 6 Nl",
               note="ours with statistics, masks, ids"),
        figure("activations measured after forward", 17.673 * 2**30, kept + casts, found,
               unit="GiB", digits=3, note="with autocast's copies of the weights, below"),
        figure("250 MB left unexplained", 250 * 2.0**20, kept + casts - formula, found, unit="MiB",
               note=f"explained: {number(casts, 'MiB', 0)} are autocast's 16-bit copies of the "
               "matrices, the head's included; the rest masks and statistics"),
        figure("of which a layer's query, key and value", 3.375 * 2**20, 2.0 * 3 * _H**2,
               "2 · 3 D² bytes", unit="MiB", digits=3),
        figure("the same by EleutherAI's formula", 12.02 * 2**30, layers_bytes(textbook),
               command(textbook), unit="GiB",
               digits=2, formula="T B D L (34 + 5 a T / D)",
               note="16-bit activations with dropout: another job"),
        Row("unit of the activations", "GB", "GiB", "-",
            "**erratum**: figures printed as GB are GiB (2³⁰)"),
    ]  # fmt: skip


def _tensors() -> dict[str, float]:
    """Bytes kept for backward at the peak, by op; the loss is at work then."""
    found: dict[str, float] = {}
    for peak_kept_tensor in run(_WORDS)["stages"][0]["peak_kept_tensors"]:
        found[peak_kept_tensor["name"]] = (
            found.get(peak_kept_tensor["name"], 0.0) + peak_kept_tensor["bytes"]
        )
    return found


def _peak() -> list[Row]:
    found = command(_KEPT)
    peak = run(_KEPT)["stages"][0]["allocated_bytes"]
    count = parameter_count(load_model("nanogpt-124m").spec).total
    formula = _L * (36 * _E + 6 * _SCORES) + 6 * _E + 10 * _LOGITS + 16 * count + 4 * _MASKS
    at = run(_KEPT)["stages"][0]["peak"]
    context = load_gpu("A100-80G").context_bytes
    return [
        Row("where the peak is", "just after the start of backward",
            f"{at['phase']}, at the {at['at']}", found, "agrees"),
        figure("fp32 copy of the logits there", 4.0 * _LOGITS, term(_KEPT, "logits", "backward"),
               found, formula="4 Nl"),
        figure("peak by the formula", float(formula), peak, found, unit="GiB", digits=3,
               formula="L (36 Ne + 6 Na) + 6 Ne + 10 Nl + 16 N + 4 Nbuf",
               note="the document's 21.648 counts workspaces and inputs too"),
        figure("peak measured", 21.898 * 2**30, peak, found, unit="GiB", digits=3),
        Row("peaks of GPT-2 small, medium and large", "a plot without figures",
            ", ".join(_family()),
            command(_KEPT.replace("nanogpt-124m", "gpt2-large --no-bias")),
            "nothing to compare: no figures"),
        Row("CUDA context on an A100", number(863 * 2**20, "MiB", 0), number(context, "MiB", 0),
            "`planner hardware A100-80G`", "differs: theirs is nvidia-smi's in 2023, ours has its "
            "source in the catalogue"),
        Row("allocated and reserved memory", "allocated alone",
            "both: live tensors, and rounding with fragmentation", found, "agrees"),
    ]  # fmt: skip


def _family() -> list[str]:
    words = _KEPT.replace("nanogpt-124m", "{} --no-bias")
    names = ("gpt2", "gpt2-medium", "gpt2-large")
    sizes = ((name, run(words.format(name))["stages"][0]) for name in names)
    return [f"{name} {number(size['allocated_bytes'], 'GiB', 2)}" for name, size in sizes]
