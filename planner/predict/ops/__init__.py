"""The op table of a transformer: one set of rows behind parameters, FLOP, memory and time."""

from planner.job.modules import Module
from planner.predict.ops.rows import Op, OpKind, ParamShard, Piece, Saved, Shard
from planner.predict.ops.table import (
    ComponentParameters,
    ParameterCount,
    flop_per_token,
    parameter_count,
    parameters_by_component,
    pieces,
)

__all__ = [
    "ComponentParameters",
    "Module",
    "Op",
    "OpKind",
    "ParamShard",
    "ParameterCount",
    "Piece",
    "Saved",
    "Shard",
    "flop_per_token",
    "parameter_count",
    "parameters_by_component",
    "pieces",
]
