"""Rows of the op table as one rank holds them, by the byte functions of the cost core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from constraints.axes import EXPERTS, OF_LAYER, product_of
from planner.cost import piece_memory
from planner.cost.keys import local_tokens
from planner.job.recompute import Module
from planner.predict.cost_tables import context_inputs
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Saved

Key = Any
"""A row of the key table as an object (`planner.cost.fields.KEY_ROW`)."""


def rank_key(
    recompute: Module = Module.NOTHING, sequence_parallel: bool = True, **degrees: int
) -> Key:
    """Degrees (1 where none is given), and modules that run again; without what only seconds depend
    on."""
    sizes = {axis: float(degrees.get(axis, 1)) for axis in OF_LAYER}
    return SimpleNamespace(
        **sizes,
        expert_ranks=product_of(EXPERTS, sizes),
        modules=int(recompute),
        sequence_parallel=float(sequence_parallel),
    )


def saved_bytes(row: Saved, context: OpContext, key: Key) -> float:
    """Bytes of one saved tensor on the rank."""
    job = context_inputs(context)
    return piece_memory.saved_row_bytes(row, local_tokens(key, job), key, job)
