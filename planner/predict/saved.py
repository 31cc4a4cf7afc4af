"""Bytes of rows of the op table on one rank, and the groups in which a framework offloads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from constraints.axes import EXPERTS, OF_LAYER, product_of
from planner.cost import piece_memory
from planner.cost.keys import local_tokens
from planner.job.job import Job
from planner.job.recompute import Module, RecomputeMode
from planner.predict.cost_tables import context_inputs, job_pieces, op_context
from planner.predict.ops.context import OpContext
from planner.predict.ops.offload import offload_group
from planner.predict.ops.rows import Piece, Saved

Key = Any
"""A row of the key table as an object (`planner.cost.fields.KEY_ROW`)."""


def rank_key(
    recompute: Module = Module.NOTHING, sequence_parallel: bool = True, **degrees: int
) -> Key:
    """A key for costing memory, with the given degrees (others 1) and recomputed modules. It lacks
    the columns that only affect seconds, and counts the full length of each row of tokens."""
    sizes = {axis: float(degrees.get(axis, 1)) for axis in OF_LAYER}
    return SimpleNamespace(
        **sizes,
        expert_ranks=product_of(EXPERTS, sizes),
        modules=int(recompute),
        sequence_parallel=float(sequence_parallel),
        kept=1.0,
    )


def saved_bytes(row: Saved, context: OpContext, key: Key) -> float:
    """Bytes of one saved tensor on the rank."""
    job = context_inputs(context)
    return piece_memory.saved_row_bytes(row, local_tokens(key, job), key, job)


def shape_groups(job: Job, mode: RecomputeMode, **degrees: int) -> tuple[int, ...]:
    """For each kind of layer, the number of offloaded modules whose activations leave the GPU:
    those that save a tensor of at least the framework's minimum size."""
    context, kinds = op_context(job), len(job.model.piece_kinds)
    key = rank_key(mode.mask, job.framework.parallelism.sequence_parallel == "with-tp", **degrees)
    return tuple(
        sum(_leaves(name, piece, context, key) for name in job.activation_offload)
        for piece in job_pieces(job)[:kinds]
    )


def _leaves(name: str, piece: Piece, context: OpContext, key: Key) -> bool:
    group = offload_group(name, context, piece)
    names = {*group.alone, *group.shared}
    least = context.profile.activation_offload.least_offload_bytes
    return any(
        row.name in names
        and (not row.only_with or bool(row.only_with & Module(key.modules)))
        and saved_bytes(row, context, key) >= least
        for op in piece.ops
        for row in op.saved
    )
