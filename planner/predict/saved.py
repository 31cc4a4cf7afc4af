"""Rows of the op table as one rank holds them, by the byte functions of the cost core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from planner.cost import piece_memory
from planner.cost.keys import local_tokens
from planner.cost.light import LightRows
from planner.job.modules import Module
from planner.predict.cost_tables import context_inputs, parameter_columns, saved_columns
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Piece, Saved

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
    return piece_memory.saved_row_bytes(saved_row(row), local_tokens(key, job), key, job)


def saved_row(row: Saved) -> SimpleNamespace:
    """A saved tensor as a record of the core's table."""
    return SimpleNamespace(**saved_columns(row))


def rank_parameters(piece: Piece, context: OpContext, key: Key) -> tuple[float, float]:
    """(dense, expert) parameters of a piece on the rank before ZeRO; vocabulary rows padded."""
    rows = [
        SimpleNamespace(piece=0, **parameter_columns(op, count, shard))
        for op in piece.ops
        for count, shard in op.parameters
    ]
    return piece_memory.parameters_on_rank(0, key, LightRows(rows), context_inputs(context))


def table_parameters(context: OpContext, key: Key) -> float:
    """Parameters of the vocabulary table on the rank, padding included."""
    return piece_memory.table_parameters(key, context_inputs(context))
