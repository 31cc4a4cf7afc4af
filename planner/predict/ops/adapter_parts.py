"""The linear layers of a model in each row of the op table, and those of them that have
adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.tuned_layers import ALL_LINEAR, EXPERTS
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op

# Rows with one linear layer, by the name under which adapters target it.
_ALONE: Mapping[str, str] = {
    "attention/q": "q",
    "attention/k": "k",
    "attention/v": "v",
    "attention/q_down": "q-down",
    "attention/q_up": "q-up",
    "attention/kv_down": "kv-down",
    "attention/kv_up": "kv-up",
    "attention/out_proj": "o",
    "mlp/down": "down",
    "shared_experts/down": "shared-down",
    "moe/experts_up": EXPERTS,
    "moe/experts_down": EXPERTS,
    "moe/router": "router",
    "state/in_proj": "state-in",
    "state/out_proj": "state-out",
    "head/logits": "head",
}
_QKV = "attention/qkv"
# Rows that read the projector's output for images.
_OF_IMAGES = ("attention/k", "attention/v")
# Rows that read a separate tensor; all others of a block read its norm's output.
_OWN_INPUT = ("out_proj", "down", "up_proj", "q_up", "kv_up", "experts_up", "experts_down")


@dataclass(frozen=True, slots=True)
class Part:
    """A linear layer within a row of the op table, or several layers that share one adapter: its
    name, input width `into`, output width `out`, how tensor parallelism divides the weights by
    outputs (`shard`), and how the input is divided (`input_shard`)."""

    name: str
    into: float
    out: float
    shard: ParamShard
    input_shard: Shard


def layer_names(op: Op, context: OpContext) -> tuple[str, ...]:
    """The linear layers that a row contains, by the names that `targets` of adapters use ("q",
    "up"); empty if it contains none."""
    if op.name == _QKV:
        return ("q", "k", "v")
    if op.name in _ALONE:
        return (_ALONE[op.name],)
    block, _, row = op.name.partition("/")
    if op.name == "patch_linear" or (block == "projector" and "linear" in row):
        return ("projector",)
    if block not in ("mlp", "shared_experts") or not op.is_product:
        return ()
    before = "shared-" if block == "shared_experts" else ""
    names = (f"{before}gate", f"{before}up") if _is_together(context) else (f"{before}up",)
    return {"gate": (f"{before}gate",), "up": names}.get(row, ())


def _is_together(context: OpContext) -> bool:
    """Whether gate and up are one row: the model has a gate, and the framework fuses
    projections."""
    return context.model.gated and bool(context.profile.kernels.fused_projections)


def parts_of(op: Op, context: OpContext) -> tuple[Part, ...]:
    """The parts of a row that get adapters; empty if none do."""
    wanted = set(context.tuning.adapted(context.model))
    if ALL_LINEAR in context.tuning.targets:
        wanted.add("projector")
    names = [name for name in layer_names(op, context) if name in wanted]
    if not op.is_product or not names:
        return ()
    # Experts in one tensor are not linear layers: adapters need `EXPERTS` as an explicit target.
    named = EXPERTS in context.tuning.targets or context.profile.adapters.quantised_experts
    if EXPERTS in names and not named:
        return ()
    if op.name == _QKV:
        return _qkv_parts(op, context, wanted)
    if op.name.endswith(("/gate", "/up")) and context.model.gated:
        return _up_parts(op, context, names)
    if op.name in _OF_IMAGES:
        return (_part(op, names[-1], op.kv_out_width, ParamShard.KV),)
    return (_part(op, names[-1], op.out_width),)


def _part(op: Op, name: str, out: float, shard: ParamShard | None = None) -> Part:
    grouped = op.kind is OpKind.GROUPED_GEMM
    if op.in_shard in (Shard.TP, Shard.EXPERT_TP):
        return Part(name, op.in_width, out, ParamShard.NONE, _input_shard(op))
    usual = ParamShard.TP if op.out_shard is Shard.TP else ParamShard.NONE
    return Part(name, op.in_width, out, ParamShard.EXPERT if grouped else shard or usual,
                _input_shard(op))  # fmt: skip


def _input_shard(op: Op) -> Shard:
    """The sharding of a product's input."""
    if op.kind is OpKind.GROUPED_GEMM:
        return Shard.ROUTED_TP if op.in_shard is Shard.EXPERT_TP else Shard.ROUTED
    return Shard.TP if op.in_shard is Shard.TP else Shard.SEQUENCE


def _qkv_parts(op: Op, context: OpContext, wanted: set[str]) -> tuple[Part, ...]:
    if context.profile.adapters.fused_targets or context.applies(context.saved.fused_qkv_families):
        return (_part(op, "qkv", op.out_width + op.kv_out_width),)
    widths = {"q": (op.out_width, ParamShard.TP)}
    widths |= dict.fromkeys(("k", "v"), (op.kv_out_width / 2, ParamShard.KV))
    return tuple(_part(op, name, *width) for name, width in widths.items() if name in wanted)


def _up_parts(op: Op, context: OpContext, names: Sequence[str]) -> tuple[Part, ...]:
    """The parts of a row that contains gate, up or both. If the library makes gate and up one
    layer, they share one adapter: it is counted in the row of both or, if they are two rows, in the
    row of gate, so the row of up has no part."""
    together, families = _is_together(context), context.saved.fused_gate_up_families
    if context.profile.adapters.fused_targets or context.applies(families):
        whole = op.out_width if together else 2.0 * op.out_width
        return (_part(op, "gate-up", whole),) if together or op.name.endswith("/gate") else ()
    if not together:
        return (_part(op, names[-1], op.out_width),)
    return tuple(_part(op, name, op.out_width / 2) for name in names)


def input_of(op: Op, context: OpContext) -> str:
    """Name of the tensor that a product reads. Products that read the same tensor get the same
    name; a product with an input of its own gets the name of its row."""
    block, _, row = op.name.partition("/")
    if op.name in _OF_IMAGES:
        return "images"
    if row in _OWN_INPUT or block == "projector":
        return op.name
    if block in ("mlp", "moe", "shared_experts"):
        return "attention" if context.model.block == "single" else "ffn"
    return block
