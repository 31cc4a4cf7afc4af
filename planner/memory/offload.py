"""Groups in which a framework offloads activations, and the layers of a stage that keep theirs."""

from __future__ import annotations

from constraints.layout import LayoutContext, OffloadShares
from constraints.offload import leaving_blocks
from constraints.rule import Layout
from planner.cost_tables import job_pieces, op_context
from planner.frameworks import RecomputeMode
from planner.job import Job
from planner.memory.rank import RankShape, saved_bytes
from planner.ops.context import OpContext
from planner.ops.offload import offload_group
from planner.ops.rows import Piece


def layer_groups(job: Job, shape: RankShape) -> tuple[int, ...]:
    """Groups of activations of a layer of each kind that leave the GPU: one for each offloaded
    module with a tensor of the framework's least size."""
    context, kinds = op_context(job), len(job.model.kinds)
    return tuple(
        sum(_leaves(name, piece, context, shape) for name in job.activation_offload)
        for piece in job_pieces(job)[:kinds]
    )


def _leaves(name: str, piece: Piece, context: OpContext, shape: RankShape) -> bool:
    group = offload_group(name, context, piece)
    names = {*group.own, *group.shared}
    least = context.profile.activation_offload.least_bytes
    return any(
        row.name in names
        and (not row.only_with or bool(row.only_with & shape.recompute))
        and saved_bytes(row, context, shape) >= least
        for op in piece.ops
        for row in op.saved
    )


def shape_groups(
    job: Job, mode: RecomputeMode, *, tp: int, cp: int, ep: int, etp: int, mbs: int
) -> tuple[int, ...]:
    """`layer_groups` under a recompute mode and degrees."""
    return layer_groups(
        job,
        RankShape(
            tp=tp, cp=cp, ep=ep, etp=etp, mbs=mbs,
            sequence_parallel=job.framework.parallelism.sequence_parallel == "with-tp",
            recompute=mode.mask, recompute_share=mode.share, recompute_span=mode.span,
        ),
    )  # fmt: skip


def staying_layers(
    job: Job, layout: Layout, ctx: LayoutContext, shape: RankShape, stage: int
) -> tuple[bool, ...]:
    """For each layer of a stage, block after block, whether any of its activations that could be
    offloaded stay on the GPU."""
    shares = OffloadShares((layout.offload_fraction,), layer_groups(job, shape))
    whole, _ = leaving_blocks(layout, ctx, shares)
    return tuple(
        position >= whole[block]
        for block in layout.stage_blocks(stage)
        for position in range(layout.block_layers[block])
    )
