"""What the optimizer holds on a rank beyond a fixed number of bytes for every parameter.

The plain-Python counterpart of `planner.cost.update`: Muon's AdamW for tables and vectors and its
matrix products, Adafactor's rows and columns, the tensor that torch's loop updates.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.memory.rank import RankShape, on_rank
from planner.ops.context import OpContext
from planner.ops.rows import Op, ParamShard, Piece
from planner.optimizer_terms import OptimizerSetting, ParameterUpdate, parameter_update


def extra_state_bytes(
    pieces: Iterable[Piece], context: OpContext, shape: RankShape, setting: OptimizerSetting
) -> float:
    """Extra optimizer state of the pieces of a rank, ZeRO applied."""
    return sum(
        on_rank(_own_update(op, count, context, setting).state_bytes, op, shard, context, shape)
        / _zero_group(shard, shape)
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


def _zero_group(shard: ParamShard, shape: RankShape) -> float:
    """Ranks that share the state of a parameter."""
    if shape.zero < 1:
        return 1.0
    return shape.expert_shards if shard is ParamShard.EXPERT else shape.shards
