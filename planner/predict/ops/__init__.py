"""The op table of a transformer: one set of rows behind parameters, FLOP, memory and time."""

from planner.job.recompute import Module
from planner.predict.ops.rows import Op, Piece, Saved
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
    "ParameterCount",
    "Piece",
    "Saved",
    "flop_per_token",
    "parameter_count",
    "parameters_by_component",
    "pieces",
]
