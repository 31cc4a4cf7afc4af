"""The memory model against reference counts: bytes and parameters that real frameworks hold.

Counts were made on meta or fake tensors with PyTorch hooks: models of transformers 5.23 and a
nanoGPT-like module, megatron-core 0.16.1 (local spec, fusions off), FSDP2 and DDP. They are live
bytes of tensors: no allocator, no CUDA context. `COMPARISONS` names the files; each function
predicts every figure of one row from its configuration alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hardware.load import parse_gpus
from planner.cost.keys import weight_elements
from planner.cost.piece_memory import table_parameters
from planner.job.errors import UsageError
from planner.job.frameworks.profile import DtypeModeName, FrameworkProfile, load_framework
from planner.job.frameworks.tables import OptimizerKernel
from planner.job.job import BatchTarget, Job
from planner.job.models.catalog import load_model, model_names
from planner.job.models.hf_config import model_from_hf_config
from planner.job.models.hf_families import READERS
from planner.job.optimizers import load_optimizer
from planner.job.recompute import Module, RecomputeMode
from planner.job.specs import ModelSpec
from planner.predict.configuration import even_layout
from planner.predict.cost_tables import context_inputs
from planner.predict.memory.account import MemoryTimeline, layout_inputs, stage_timeline
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Piece
from planner.predict.ops.table import parameter_count, pieces
from planner.predict.plan import Degrees
from planner.predict.saved import Key, rank_key, saved_bytes
from planner.predict.stage import Stage
from tests.configurations import laid_out
from tests.truth.parameters import rank_parameters

Row = Mapping[str, str]

# One row a saved tensor; `tests.truth.predicted_tensors` compares it.
TENSORS = "activations_breakdown.csv"
# One row a kernel and length; `tests.truth.predicted_flop` compares it.
FLOP = "flops.csv"
# nanoGPT's training script: vocabulary padded to a multiple of 64, the library's GELU, no biases.
_NANOGPT: dict[str, object] = {
    "vocab": 50304,
    "activation": "gelu",
    "norm_bias": False,
    "qkv_bias": False,
    "attention_out_bias": False,
    "mlp_bias": False,
}
# Names of the counts that are not the catalogue's, and what was built differently there;
# Megatron's vocabulary is padded already.
_BUILT: dict[str, tuple[str, dict[str, object]]] = {
    "nanogpt-124m": ("gpt2", _NANOGPT),
    "nanogpt-350m": ("gpt2-medium", _NANOGPT),
    "nanogpt-774m": ("gpt2-large", _NANOGPT),
    "nanogpt-1558m": ("gpt2-xl", _NANOGPT),
    "gpt-22b": ("megatron-22b", {"vocab": 51200, "tied_embeddings": False}),
    "gpt-175b": ("gpt3-175b", {"vocab": 51200}),
}
_CHECKPOINTING = {"none": Module.NOTHING, "selective": Module.CORE_ATTENTION, "full": Module.FULL}
_MODES: dict[str, DtypeModeName] = {"bf16": "bf16", "amp": "amp", "fp32": "fp32"}
_KERNEL: dict[str, OptimizerKernel] = {"foreach": "foreach", "fused": "fused", "forloop": "forloop"}
_DDP_SWITCHES = ("gradient_as_bucket_view", "zero_grad_set_to_none")
# The largest parameter of the model that was counted under DDP, as a share of all of it: what
# its first step peaks above one copy of the gradients.
_DDP_LARGEST_SHARE = 0.0647
# The count calls a tensor saved if an operation of the graph holds it; these are handed to
# checkpointed layers as arguments instead.
_ARGUMENTS = frozenset({"layers/rotary", "layers/angles", "layers/mask"})


@dataclass(frozen=True, slots=True)
class Compared:
    """One counted figure and its prediction; `row` names the configuration."""

    row: str
    quantity: str
    counted: float
    predicted: float

    @property
    def error(self) -> float:
        """Signed relative error; infinite where something was predicted and nothing counted."""
        if self.counted == self.predicted:
            return 0.0
        return self.predicted / self.counted - 1.0 if self.counted else float("inf")


@cache
def reference_model(name: str, layers: int | None = None, **changes: object) -> ModelSpec:
    """A model of the counts, perhaps cut to its first layers: a type of transformers that the
    catalogue has no model of is what its class has by default."""
    known, built = _BUILT.get(name, (name, {}))
    if known in READERS and known not in model_names():
        spec = model_from_hf_config({"model_type": known}, known)
    else:
        spec = load_model(known).spec
    changes = built | changes
    if layers is not None:
        changes |= {"layers": layers, "layer_kinds": spec.layer_kinds[:layers]}
    return ModelSpec.model_validate(spec.model_dump() | changes)


def read_counts(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Rows by file, for the files of the folder that are known; UsageError if none is."""
    known = (*COMPARISONS, FLOP, TENSORS)
    names = [name for name in known if (folder / name).is_file()]
    if not names:
        raise UsageError(f"{folder}: holds none of {', '.join(known)}")
    table = {}
    for name in names:
        with (folder / name).open(newline="", encoding="utf-8") as handle:
            table[name] = list(csv.DictReader(handle))
    return table


def figures_of(row: Row, name: str, predicted: Iterable[tuple[str, float]]) -> Iterator[Compared]:
    """Predictions beside what the row counted; a blank cell was not counted."""
    for quantity, value in predicted:
        if row.get(quantity):
            yield Compared(name, quantity, _number(row, quantity), value)


def _number(row: Row, column: str, default: float | None = None) -> float:
    """A cell as a number; UsageError where it is none, or blank without a default."""
    text = row.get(column)
    if not text and default is not None:
        return default
    try:
        return float(text or "")
    except ValueError as error:
        raise UsageError(f"{label(row)}: {column} is {text!r}; expected a number") from error


def _integer(row: Row, column: str, default: int | None = None) -> int:
    return int(_number(row, column, default))


def label(row: Row) -> str:
    """The configuration of a row in words: the cells that set it apart."""
    numbers = {"layers": "L", "seq": "s", "mbs": "b", "world": "world ", "grad_accum": "acc "}
    numbers |= {"tp": "tp", "pp": "pp", "ep": "ep", "stage": "stage "}
    words = ("variant", "mode", "precision", "attention", "checkpointing", "recompute", "shard")
    parts = [row.get("model", "ddp")]
    parts += [f"{sign}{row[key]}" for key, sign in numbers.items() if row.get(key)]
    parts += [row[key] for key in (*words, "optimizer") if row.get(key)]
    parts += ["sp"] * (row.get("sequence_parallel") == "1")
    return " ".join(parts)


def single_device(row: Row) -> tuple[OpContext, Key]:
    """Context and key of a row counted on one device, or per rank under FSDP2 (`world`)."""
    name = row["model"]
    shards, mbs = _integer(row, "world", 1), _integer(row, "mbs", 1)
    framework = "nanogpt" if name.startswith("nanogpt") else "hf-transformers"
    mode = row.get("mode") or row.get("precision") or "bf16"
    profile = load_framework("hf-fsdp2" if shards > 1 else framework)
    model = reference_model(name, _integer(row, "layers", 0) or None)
    context = OpContext(
        model.with_mtp(0) if profile.mtp == "never" else model,
        profile,
        _integer(row, "seq"),
        attention="eager" if row.get("attention") == "eager" else "flash",
        dropout=row.get("variant") == "dropout",
        mode=_MODES[mode],
        one_sequence=mbs == 1,
    )
    modules = _CHECKPOINTING[row.get("checkpointing") or "none"]
    return context, rank_key(mbs=mbs, recompute=modules)


def compare_parameters(row: Row) -> Iterator[Compared]:
    """Models built in transformers: totals, ends, experts, first layer, blocks of the last."""
    model = reference_model(row["model"])
    count = parameter_count(model)
    # The head's piece includes the final norm.
    norm = model.hidden * (model.norm_weight + model.norm_bias)
    layers = pieces(OpContext(model, load_framework("hf-transformers"), 2048))
    first, last = layers[model.kind_indices[0]], layers[model.kind_indices[-1]]
    blocks = _parameters_by_block(last)
    yield from figures_of(
        row,
        row["model"],
        (
            ("total", count.total),
            ("lm_head", count.head - norm),
            ("active", count.active),
            ("routed_experts", count.experts),
            ("first_layer", first.parameters),
            ("last_layer", last.parameters),
            *((f"last_layer_{name}", block) for name, block in blocks),
        ),
    )
    if row["input_embedding"]:
        tables = _number(row, "input_embedding") + _number(row, "position_embedding", 0)
        yield Compared(row["model"], "embedding", tables, count.embedding)


def _parameters_by_block(layer: Piece) -> list[tuple[str, float]]:
    """Parameters of the attention block, the feed-forward block and the norms between them."""
    between = ("attention/norm", "attention/post_norm", "ffn/norm", "ffn/post_norm")
    totals = {"attention": 0.0, "mlp": 0.0, "other": 0.0}
    for op in layer.ops:
        inside = "attention" if op.name.startswith("attention") else "mlp"
        totals["other" if op.name in between else inside] += op.parameter_count
    return list(totals.items())


def compare_activations(row: Row) -> Iterator[Compared]:
    """Bytes kept for backward per layer and outside the layers, and casts of weights."""
    context, key = single_device(row)
    table = pieces(context)
    # What another layer adds is one of the last kind.
    layer, vocab_layers = table[context.model.kind_indices[-1]], table[len(context.model.kinds) :]
    whole = bool(key.modules)
    casts = 0.0 if whole else _casts(layer, context, key)
    outside = sum(_casts(piece, context, key) for piece in vocab_layers)
    figures = (
        ("per_layer", _held_by_graph(layer, context, key)),
        ("non_layer", sum(_held_by_graph(piece, context, key) for piece in vocab_layers)),
        ("weight_casts_per_layer", casts),
        ("weight_casts_non_layer", outside),
    )
    yield from figures_of(row, label(row), figures)


def _casts(piece: Piece, context: OpContext, key: Key) -> float:
    """Bytes of low-precision copies of a piece's weights."""
    elements = sum(weight_elements(op, key) for op in piece.ops if op.autocasts)
    return context.saved.weight_cast_bytes * elements


def _held_by_graph(piece: Piece, context: OpContext, key: Key) -> float:
    """Bytes that operations of the autograd graph hold."""
    checkpointed = bool(key.modules)
    hidden = _ARGUMENTS if context.model.family != "gpt2" else frozenset({"layers/rotary"})
    return sum(
        saved_bytes(row, context, key)
        for op in piece.ops
        for row in op.saved
        if row.kept_under(Module(key.modules)) and not (checkpointed and row.name in hidden)
    )


def compare_megatron_activations(row: Row) -> Iterator[Compared]:
    """Saved bytes of Megatron-Core's local spec on one tensor-parallel rank."""
    has_dropout = row["model"].startswith("gpt")
    context = OpContext(
        reference_model(row["model"]),
        _unpadded(load_framework("megatron-local")),
        _integer(row, "seq"),
        attention="eager",
        dropout=has_dropout,
        one_sequence=_integer(row, "mbs", 1) == 1,
    )
    key = rank_key(
        tp=_integer(row, "tp", 1),
        mbs=_integer(row, "mbs", 1),
        sequence_parallel=row["sequence_parallel"] == "1",
        recompute=_CHECKPOINTING[row["recompute"] or "none"],
    )
    layer, *vocab_layers = pieces(context)
    outside = sum(_kept(piece, context, key) for piece in vocab_layers)
    kept = (("per_layer", _kept(layer, context, key)), ("non_layer", outside))
    yield from figures_of(row, label(row), kept)


def _kept(piece: Piece, context: OpContext, key: Key) -> float:
    rows = [row for op in piece.ops for row in op.saved if row.kept_under(Module(key.modules))]
    return sum(saved_bytes(row, context, key) for row in rows)


def _unpadded(profile: FrameworkProfile) -> FrameworkProfile:
    """The counts were made without Megatron's rounding of the vocabulary."""
    rules = profile.parallelism.model_copy(update={"vocabulary_padded": False})
    return profile.model_copy(update={"parallelism": rules})


def compare_megatron_parameters(row: Row) -> Iterator[Compared]:
    """Parameters of one rank under TP, PP and EP: all, those of the ends, those of experts."""
    profile = _unpadded(load_framework("megatron-core"))
    yield from figures_of(row, label(row), megatron_rank(row, profile))


def megatron_rank(row: Row, profile: FrameworkProfile) -> list[tuple[str, float]]:
    """(quantity, parameters) of the rank that a row describes, under the profile's padding."""
    model = reference_model(row["model"])
    context = OpContext(model, profile, 2048)
    tp, pp, stage = (_integer(row, *cell) for cell in (("tp", 1), ("pp", 1), ("stage", 0)))
    layers = _integer(row, "layers_here", model.layers)
    key = rank_key(tp=tp, ep=_integer(row, "ep", 1), etp=_integer(row, "expert_tp", 1))
    inputs = context_inputs(context)
    layer, embedding, head = (rank_parameters(piece, inputs, key) for piece in pieces(context))
    norm = model.hidden * (2 if model.norm_bias else 1)
    first, last = stage == 0, stage == pp - 1
    # A tied head on a stage of its own holds a copy of the vocabulary table.
    copy = table_parameters(key, inputs) if model.tied_embeddings and not first else 0.0
    head_alone = head[0] - norm + copy if last else 0.0
    dense = layers * layer[0] + first * embedding[0] + last * norm + head_alone
    experts = layers * layer[1]
    return [
        ("params", dense + experts),
        ("embedding", first * embedding[0]),
        ("head", head_alone),
        ("expert", experts),
    ]


def step_timeline(row: Row) -> MemoryTimeline:
    """The timeline of a whole step under AdamW, on one device or on a rank under FSDP2."""
    job, degrees = step_job(row)
    once = row.get("sync_every") == "False"
    return job_timeline(job, degrees, unreduced_gradients=float(once))


def step_job(row: Row) -> tuple[Job, Degrees]:
    """The job and degrees of a step that was counted."""
    context, _ = single_device(row)
    mode = row.get("checkpointing") or "none"
    modules = _CHECKPOINTING[mode]
    ranks = _integer(row, "world", 1)
    job = counted_job(
        context.model, context.profile, context.seq, context.mode,
        gpus=f"{ranks}xH100",
        attention=context.attention,
        optimizer_kernel=_KERNEL[row["optimizer"] or "foreach"],
        recompute=(RecomputeMode(name=mode, modules=tuple(module.name for module in modules)),),
    )  # fmt: skip
    zero = int((row.get("shard") or "zero0").removeprefix("zero"))
    acc = _integer(row, "grad_accum", 1)
    return job, Degrees(dp=ranks, zero=zero, mbs=_integer(row, "mbs", 1), grad_acc=acc)


def counted_job(
    model: ModelSpec, profile: FrameworkProfile, seq: int, mode: DtypeModeName = "bf16",
    gpus: str = "1xH100", **given: Any,
) -> Job:  # fmt: skip
    """A job under AdamW with its dtype mode in place."""
    precision = "bf16" if "bf16" in profile.precisions else profile.precisions[0]
    return Job(
        model=model,
        cluster=parse_gpus(gpus),
        framework=profile.in_mode(mode),
        optimizer=load_optimizer("adamw"),
        batch=BatchTarget(1.0),
        seq=seq,
        dtype=mode,
        precision=precision,
        **({"recompute": (RecomputeMode(name="none", modules=()),)} | given),
    )


def job_timeline(job: Job, degrees: Degrees, **changes: Any) -> MemoryTimeline:
    """The step of a rank of one stage; live bytes of the model's own tensors, no workspaces.
    `changes`: to the numbers of framework and optimizer."""
    layout = even_layout(job, 1, 1, job.recompute[0])
    one_layout_inputs = layout_inputs(laid_out(job, degrees, layout))
    framework = one_layout_inputs.framework._replace(**({"workspace_bytes": 0.0} | changes))
    return stage_timeline(Stage(replace(one_layout_inputs, framework=framework), 0))


def compare_steps(row: Row) -> Iterator[Compared]:
    """The peak of a step, what persists, and each phase over what lies beneath it."""
    timeline = step_timeline(row)
    # FSDP without gradient sync is counted in its last micro-batch, atop unsharded gradients.
    batch = " (accumulating)" if row.get("sync_every") == "False" else ""
    start, sync = timeline.phase("start"), timeline.phase("gradient reduction")

    def above_start(phase: str) -> float:
        return timeline.phase(phase).total_bytes - start.total_bytes

    persistent = "shard_" if "world" in row else ""
    figures = (
        ("peak_total", timeline.peak.total_bytes),
        (f"{persistent}param", start.terms["weights"] + start.terms["master weights"]),
        (f"{persistent}grad", sync.terms["gradients"]),
        ("optimizer_state", start.terms["optimizer state"]),
        ("forward_peak", above_start("forward" + batch)),
        ("forward_end", above_start("forward end" + batch)),
        ("backward_peak", above_start("backward" + batch)),
        ("optimizer_peak", timeline.phase("optimizer").total_bytes - sync.total_bytes),
    )
    yield from figures_of(row, label(row), figures)


def compare_ddp(row: Row) -> Iterator[Compared]:
    """Gradient memory under DDP over three steps, in copies of the gradients."""
    view, set_to_none = (row[name] == "1" for name in _DDP_SWITCHES)
    in_step, between = ddp_copies(view=view, set_to_none=set_to_none)
    names = f"view {row['gradient_as_bucket_view']} to none {row['zero_grad_set_to_none']}"
    yield from figures_of(row, names, (("after_wrap", 1.0),))
    for step in (1, 2, 3):
        # A gradient made for one that exists lives beside it until it is added or copied. The
        # second step makes the buckets anew; views of the old ones keep these alive until then.
        beside = view or (step > 1 and not set_to_none)
        rebuilt = float(view and not set_to_none and step == 2)
        figures = (
            ("peak", in_step + max(rebuilt, beside * _DDP_LARGEST_SHARE)),
            ("end", in_step),
            ("after_zero_grad", between),
        )
        numbered = ((f"step{step}_{quantity}", predicted) for quantity, predicted in figures)
        yield from figures_of(row, names, numbered)


@cache
def ddp_copies(*, view: bool, set_to_none: bool) -> tuple[float, float]:
    """Copies of the gradients on a rank under DDP (in a step, between steps), buckets included.

    Views of the buckets are gradients that live from the first step to the last, as are those that
    are zeroed in place.
    """
    changes = {} if set_to_none else {"persistent_gradients": 1.0}
    if view:
        changes = {"ddp_bucket_copies": 0.0, "persistent_gradients": 1.0}
    job = counted_job(
        reference_model("gpt2"), load_framework("hf-transformers"), 1024, gpus="8xH100"
    )
    steps = job_timeline(job, Degrees(dp=8), **changes)
    settled = steps.phase("gradient reduction").terms
    in_step, between = (
        sum(steps.phase(name).terms[term] for term in ("gradients", "gradient buckets"))
        for name in ("gradient reduction", "start")
    )
    return in_step / settled["gradients"], between / settled["gradients"]


COMPARISONS: dict[str, Callable[[Row], Iterator[Compared]]] = {
    "params.csv": compare_parameters,
    "activations.csv": compare_activations,
    "megatron_params.csv": compare_megatron_parameters,
    "megatron_activations.csv": compare_megatron_activations,
    "step_memory.csv": compare_steps,
    "step_memory_fsdp.csv": compare_steps,
    "ddp_memory.csv": compare_ddp,
}
