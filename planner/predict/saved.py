"""Rows of the op table as one rank holds them, by the byte functions of the cost core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from planner.cost import piece_memory
from planner.cost.keys import local_tokens
from planner.job.modules import Module
from planner.predict.cost_tables import context_inputs
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Saved

Key = Any
"""A row of the key table as an object (`planner.cost.fields.KEY_*`)."""


def rank_key(
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    mbs: int = 1,
    recompute: Module = Module.NOTHING,
    sequence_parallel: bool = True,
) -> Key:
    """Degrees, micro-batch and modules that run again; without what only seconds depend on."""
    return SimpleNamespace(
        tp=float(tp), cp=float(cp), ep=float(ep), etp=float(etp), mbs=float(mbs),
        modules=int(recompute), sequence_parallel=float(sequence_parallel),
    )  # fmt: skip


def saved_bytes(row: Saved, context: OpContext, key: Key) -> float:
    """Bytes of one saved tensor on the rank."""
    job = context_inputs(context)
    return piece_memory.saved_row_bytes(row, local_tokens(key, job), key, job)
