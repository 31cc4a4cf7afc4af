"""Groups in which a framework offloads activations."""

from __future__ import annotations

from planner.job.job import Job
from planner.job.recompute import Module, RecomputeMode
from planner.predict.cost_tables import job_pieces, op_context
from planner.predict.ops.context import OpContext
from planner.predict.ops.offload import offload_group
from planner.predict.ops.rows import Piece
from planner.predict.saved import Key, rank_key, saved_bytes


def shape_groups(job: Job, mode: RecomputeMode, **degrees: int) -> tuple[int, ...]:
    """Groups of activations of a layer of each kind that leave the GPU under a recompute mode and
    degrees: one for each offloaded module with a tensor of the framework's least size."""
    context, kinds = op_context(job), len(job.model.kinds)
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
