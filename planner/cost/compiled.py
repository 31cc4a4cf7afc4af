"""The functions of the cost core that are called for many candidates, compiled.

Each takes float64 tables (`planner.cost.fields`), NamedTuples and numbers, and does the same as the
plain function of its name, whose docstring applies; `.plain` runs without a compiler.
"""

from __future__ import annotations

from typing import Any

from planner.cost import (
    fields,
    kernel,
    linear,
    linear_memory,
    stage_sums,
    tight_bounds,
)
from planner.cost._entry import Entry

_SHAPE: dict[str, Any] = {
    "grid": fields.SHAPE_ROW,
    "key": fields.KEY_ROW,
    "costs": fields.PIECE_ROW,
}
_SHAPES: dict[str, Any] = {
    "shapes": fields.SHAPE_ROW,
    "keys": fields.KEY_ROW,
    "costs": fields.PIECE_ROW,
}

cost_shapes = Entry(kernel.cost_shapes, out=fields.STEP_ROW, stages=fields.STAGE_ROW, **_SHAPES)
bound_shapes = Entry(tight_bounds.bound_shapes, **_SHAPES)
cost_keys = Entry(
    kernel.cost_keys,
    keys=fields.KEY_ROW,
    ops=fields.OP_ROW,
    parameters=fields.PARAM_ROW,
    saved=fields.SAVED_ROW,
    collectives=fields.COMM_ROW,
    out=fields.PIECE_ROW,
)
layout_terms = Entry(linear.layout_terms, **_SHAPE)
memory_phases = Entry(linear_memory.memory_phases, **_SHAPE)
least_together = Entry(stage_sums.least_together)
