"""The memory model against reference counts: bytes and parameters that real frameworks hold.

Counts were made on meta or fake tensors with PyTorch hooks: models of transformers 5.23 and a
nanoGPT-like module, megatron-core 0.16.1 (local spec, fusions off), FSDP2 and DDP. They are live
bytes of tensors: no allocator, no CUDA context. `COMPARISONS` names the files; each function
predicts every figure of one row from its configuration alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.errors import UsageError
from planner.frameworks import DtypeModeName, load_framework
from planner.frameworks.profile import FrameworkProfile
from planner.frameworks.tensors import DataParallelBuckets
from planner.memory.rank import (
    RankShape,
    padded_vocabulary,
    rank_parameters,
    saved_bytes,
    weight_elements,
)
from planner.memory.timeline import MemoryTimeline, StepSettings, memory_timeline
from planner.models.catalog import load_model
from planner.modules import Module
from planner.ops.context import OpContext
from planner.ops.rows import Piece
from planner.ops.table import parameter_count, pieces
from planner.specs import ModelSpec

Row = Mapping[str, str]

# One row a saved tensor; `planner.calibrate.truth_tensors` compares it.
TENSORS = "activations_breakdown.csv"
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
    "nanogpt-774m": ("gpt2-large", _NANOGPT),
    "gpt-22b": ("megatron-22b", {"vocab": 51200, "tied_embeddings": False}),
    "gpt-175b": ("gpt3-175b", {"vocab": 51200}),
}
_CHECKPOINTING = {
    "none": Module.NOTHING,
    "selective": Module.CORE_ATTENTION,
    "full": Module.FULL,
}
_MODES: dict[str, DtypeModeName] = {"bf16": "bf16", "amp": "amp", "fp32": "fp32"}
_KERNELS: dict[str, Literal["foreach", "fused", "forloop"]] = {
    "foreach": "foreach",
    "fused": "fused",
    "forloop": "forloop",
}
_DDP_SWITCHES = ("gradient_as_bucket_view", "zero_grad_set_to_none")
# The largest parameter of the model that was counted under DDP, as a share of all of it: what
# its first step peaks above one copy of the gradients.
_DDP_LARGEST_SHARE = 0.0647
# The count calls a tensor saved if an operation of the graph holds it; these are handed to
# checkpointed layers as arguments instead.
_ARGUMENTS = frozenset({"layers/rotary", "layers/mask"})


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


def reference_model(name: str, layers: int | None = None, **changes: object) -> ModelSpec:
    """A model of the counts, perhaps cut to its first layers."""
    known, built = _BUILT.get(name, (name, {}))
    spec = load_model(known).spec
    changes = built | changes
    if layers is not None:
        changes |= {"layers": layers, "layer_kinds": spec.layer_kinds[:layers]}
    return ModelSpec.model_validate(spec.model_dump() | changes)


def read_counts(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Rows by file, for the files of the folder that are known; UsageError if none is."""
    known = (*COMPARISONS, TENSORS)
    names = [name for name in known if (folder / name).is_file()]
    if not names:
        raise UsageError(f"{folder}: holds none of {', '.join(known)}")
    table = {}
    for name in names:
        with (folder / name).open(newline="", encoding="utf-8") as handle:
            table[name] = list(csv.DictReader(handle))
    return table


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


def single_device(row: Row) -> tuple[OpContext, RankShape]:
    """Context and shape of a row counted on one device, or per rank under FSDP2 (`world`)."""
    name = row["model"]
    shards = int(row.get("world") or 1)
    framework = "nanogpt" if name.startswith("nanogpt") else "hf-transformers"
    mode = row.get("mode") or row.get("precision") or "bf16"
    context = OpContext(
        reference_model(name, _integer(row.get("layers"))),
        load_framework("hf-fsdp2" if shards > 1 else framework),
        int(row["seq"]),
        attention="eager" if row.get("attention") == "eager" else "flash",
        dropout=row.get("variant") == "dropout",
        mode=_MODES[mode],
        one_sequence=row["mbs"] == "1",
    )
    shape = RankShape(
        shards=shards,
        zero=int((row.get("shard") or "zero0").removeprefix("zero")),
        mbs=int(row["mbs"]),
        recompute=_CHECKPOINTING[row.get("checkpointing") or "none"],
    )
    return context, shape


def _integer(text: str | None) -> int | None:
    return int(text) if text else None


def compare_parameters(row: Row) -> Iterator[Compared]:
    """Models built in transformers: totals, ends, experts, first layer, blocks of the last."""
    model = reference_model(row["model"])
    count = parameter_count(model)
    # The head's piece includes the final norm.
    norm = model.hidden * (2 if model.norm_bias else 1)
    layers = pieces(OpContext(model, load_framework("hf-transformers"), 2048))
    first, last = layers[model.kind_indices[0]], layers[model.kind_indices[-1]]
    blocks = _parameters_by_block(last)
    embedding = int(row["input_embedding"]) + int(row["position_embedding"])
    figures = (
        ("total", count.total, int(row["total"])),
        ("embedding", count.embedding, embedding),
        ("lm_head", count.head - norm, int(row["lm_head"])),
        ("active", count.active, int(row["active"])),
        ("routed_experts", count.experts, int(row["routed_experts"])),
        ("first_layer", first.parameters, int(row["first_layer"])),
        ("last_layer", last.parameters, int(row["last_layer"])),
        *((f"last_layer_{name}", own, int(row[f"last_layer_{name}"])) for name, own in blocks),
    )
    for quantity, predicted, counted in figures:
        yield Compared(row["model"], quantity, counted, predicted)


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
    context, shape = single_device(row)
    table = pieces(context)
    layer, ends = table[0], table[len(context.model.kinds) :]
    whole = bool(shape.recompute)
    casts = 0.0 if whole else _casts(layer, context, shape)
    outside = sum(_casts(piece, context, shape) for piece in ends)
    figures = (
        ("per_layer", _held_by_graph(layer, context, shape)),
        ("non_layer", sum(_held_by_graph(piece, context, shape) for piece in ends)),
        ("weight_casts_per_layer", casts),
        ("weight_casts_non_layer", outside),
    )
    for quantity, predicted in figures:
        yield Compared(label(row), quantity, int(row[quantity]), predicted)


def _casts(piece: Piece, context: OpContext, shape: RankShape) -> float:
    """Bytes of low-precision copies of a piece's weights."""
    elements = sum(weight_elements(op, shape) for op in piece.ops)
    return context.saved.weight_cast_bytes * elements


def _held_by_graph(piece: Piece, context: OpContext, shape: RankShape) -> float:
    """Bytes that operations of the autograd graph hold."""
    checkpointed = bool(shape.recompute)
    hidden = _ARGUMENTS if context.model.family != "gpt2" else frozenset({"layers/rotary"})
    return sum(
        saved_bytes(row, context, shape)
        for op in piece.ops
        for row in op.saved
        if row.kept_under(shape.recompute) and not (checkpointed and row.name in hidden)
    )


def compare_megatron_activations(row: Row) -> Iterator[Compared]:
    """Saved bytes of Megatron-Core's local spec on one tensor-parallel rank."""
    has_dropout = row["model"].startswith("gpt")
    context = OpContext(
        reference_model(row["model"]),
        _unpadded(load_framework("megatron-local")),
        int(row["seq"]),
        attention="eager",
        dropout=has_dropout,
        one_sequence=row["mbs"] == "1",
    )
    shape = RankShape(
        tp=int(row["tp"]),
        mbs=int(row["mbs"]),
        sequence_parallel=row["sequence_parallel"] == "1",
        recompute=_CHECKPOINTING[row["recompute"]],
    )
    layer, *ends = pieces(context)
    outside = sum(_kept(piece, context, shape) for piece in ends)
    for quantity, predicted in (
        ("per_layer", _kept(layer, context, shape)),
        ("non_layer", outside),
    ):
        yield Compared(label(row), quantity, int(row[quantity]), predicted)


def _kept(piece: Piece, context: OpContext, shape: RankShape) -> float:
    rows = [row for op in piece.ops for row in op.saved if row.kept_under(shape.recompute)]
    return sum(saved_bytes(row, context, shape) for row in rows)


def _unpadded(profile: FrameworkProfile) -> FrameworkProfile:
    """The counts were made without Megatron's rounding of the vocabulary."""
    rules = profile.parallelism.model_copy(update={"vocabulary_padded": False})
    return profile.model_copy(update={"parallelism": rules})


def compare_megatron_parameters(row: Row) -> Iterator[Compared]:
    """Parameters of one rank under TP, PP and EP: all, those of the ends, those of experts."""
    profile = _unpadded(load_framework("megatron-core"))
    for quantity, predicted in megatron_rank(row, profile):
        yield Compared(label(row), quantity, int(row[quantity]), predicted)


def megatron_rank(row: Row, profile: FrameworkProfile) -> list[tuple[str, float]]:
    """(quantity, parameters) of the rank that a row describes, under the profile's padding."""
    model = reference_model(row["model"])
    context = OpContext(model, profile, 2048)
    tp, pp, stage, layers = (int(row[name]) for name in ("tp", "pp", "stage", "layers_here"))
    shape = RankShape(tp=tp, ep=int(row["ep"]), etp=int(row["expert_tp"]))
    layer, embedding, head = (rank_parameters(piece, context, shape) for piece in pieces(context))
    norm = model.hidden * (2 if model.norm_bias else 1)
    first, last = stage == 0, stage == pp - 1
    # A tied head on a stage of its own holds a copy of the vocabulary table.
    table = padded_vocabulary(context, tp) * model.hidden / tp
    copy = table if model.tied_embeddings and not first else 0.0
    own_head = head[0] - norm + copy if last else 0.0
    dense = layers * layer[0] + first * embedding[0] + last * norm + own_head
    experts = layers * layer[1]
    return [
        ("params", dense + experts),
        ("embedding", first * embedding[0]),
        ("head", own_head),
        ("expert", experts),
    ]


def step_timeline(row: Row) -> MemoryTimeline:
    """The timeline of a whole step under AdamW, on one device or on a rank under FSDP2."""
    context, shape = single_device(row)
    settings = StepSettings(
        grad_acc=int(row["grad_accum"]),
        optimizer_kernel=_KERNELS[row["optimizer"]],
        reduce_every_microbatch=row.get("sync_every", "True") == "True",
    )
    return memory_timeline(context, shape, settings)


def compare_steps(row: Row) -> Iterator[Compared]:
    """The peak of a step, what persists, and each phase over what lies beneath it."""
    timeline = step_timeline(row)
    # FSDP without gradient sync is counted in its last micro-batch, atop unsharded gradients.
    batch = " (accumulating)" if row.get("sync_every") == "False" else ""
    start, sync = timeline.phase("start"), timeline.phase("gradient sync")

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
    for quantity, predicted in figures:
        yield Compared(label(row), quantity, int(row[quantity]), predicted)


def peak_phases(row: Row) -> tuple[str, str]:
    """(counted, predicted) name of the phase in which the step peaks: forward, backward, …"""
    counted = row["peak_phase"].rstrip("0123456789")
    return counted, step_timeline(row).peak.name.removesuffix(" (accumulating)")


def compare_ddp(row: Row) -> Iterator[Compared]:
    """Gradient memory under DDP over three steps, in copies of the gradients."""
    view, set_to_none = (row[name] == "1" for name in _DDP_SWITCHES)
    buckets = DataParallelBuckets(view=view, set_to_none=set_to_none)
    names = f"view {row['gradient_as_bucket_view']} to none {row['zero_grad_set_to_none']}"
    yield Compared(names, "after_wrap", float(row["after_wrap"]), 1.0)
    for step in (1, 2, 3):
        settled = buckets.copies(in_step=True)
        # A gradient made for one that exists lives beside it until it is added or copied.
        beside = view or (step > 1 and not set_to_none)
        made = settled + beside * _DDP_LARGEST_SHARE
        figures = (
            ("peak", max(made, buckets.copies(in_step=True, rebuilding=step == 2))),
            ("end", settled),
            ("after_zero_grad", buckets.copies(in_step=False)),
        )
        for quantity, predicted in figures:
            name = f"step{step}_{quantity}"
            yield Compared(names, name, float(row[name]), predicted)


COMPARISONS: dict[str, Callable[[Row], Iterator[Compared]]] = {
    "params.csv": compare_parameters,
    "activations.csv": compare_activations,
    "megatron_params.csv": compare_megatron_parameters,
    "megatron_activations.csv": compare_megatron_activations,
    "step_memory.csv": compare_steps,
    "step_memory_fsdp.csv": compare_steps,
    "ddp_memory.csv": compare_ddp,
}
