"""What the optimizer holds on a rank beyond a fixed number of bytes for every parameter.

The plain-Python counterpart of `planner.cost.update`: Muon's AdamW for tables and vectors and its
matrix products, Adafactor's rows and columns, the tensor that torch's loop updates.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.memory.rank import RankShape, padded_vocabulary
from planner.ops.context import OpContext
from planner.ops.rows import Op, ParamShard, Piece
from planner.optimizer_terms import OptimizerSetting, ParameterUpdate, parameter_update


def extra_state_bytes(
    pieces: Iterable[Piece], context: OpContext, shape: RankShape, setting: OptimizerSetting
) -> float:
    """Extra optimizer state of the pieces of a rank, ZeRO applied."""
    return sum(
        _own_update(op, count, context, setting).state_bytes * _share(op, shard, context, shape)
        for piece in pieces
        for op in piece.ops
        for count, shard in op.parameters
    )


def largest_update_bytes(
    pieces: Iterable[Piece], context: OpContext, shape: RankShape, setting: OptimizerSetting
) -> float:
    """Temporaries of the largest update of the model, wherever it lives."""
    largest = max(
        (
            _own_update(op, count, context, setting).temporary_bytes
            for piece in pieces
            for op in piece.ops
            for count, _ in op.parameters
        ),
        default=0.0,
    )
    return largest / shape.shards if setting.kernel == "forloop" and shape.zero >= 1 else largest


def _own_update(
    op: Op, count: float, context: OpContext, setting: OptimizerSetting
) -> ParameterUpdate:
    return parameter_update(op, count, setting, context.profile, float(context.model.hidden))


def _share(op: Op, shard: ParamShard, context: OpContext, shape: RankShape) -> float:
    """Share of a row's state on the rank."""
    model = context.model
    if shard is ParamShard.EXPERT:
        group = shape.expert_shards if shape.zero >= 1 else 1.0
        return 1.0 / (shape.ep * shape.etp * group)
    share = 1.0 / (shape.shards if shape.zero >= 1 else 1.0)
    if shard is ParamShard.TP:
        padding = padded_vocabulary(context, shape.tp) / model.vocab if op.pads_vocabulary else 1.0
        return share * padding / shape.tp
    if shard is ParamShard.KV:
        return share / min(shape.tp, model.heads if model.mla else model.kv_heads)
    return share
