"""Layouts between their two forms: blocks of layers for people, counts of pieces for the kernel."""

from __future__ import annotations

import numpy as np

from constraints.layout import LayoutContext, Recomputation, even_split
from constraints.rule import Layout
from planner.cost_model import CostModel
from planner.cost_model import Layout as KernelLayout
from planner.job import Job


def plain_context(job: Job, pp: int, vpp: int, recomputation: Recomputation) -> LayoutContext:
    """Layout rules' numbers of a shape, without a memory limit."""
    return LayoutContext(
        pp=pp,
        vpp=vpp,
        kinds=job.model.kind_indices,
        layouts=job.framework.parallelism.layouts,
        recomputation=recomputation,
    )


def even_layout(layers: int, pp: int, vpp: int, recomputes: bool) -> Layout:
    """The layout in which the kernel costs a shape: as even as possible, all layers alike."""
    blocks = even_split(layers, pp * vpp)
    stages = tuple(sum(blocks[stage::pp]) for stage in range(pp))
    return Layout(pp, vpp, blocks, stages if recomputes else (0,) * pp)


def kernel_layout(cost_model: CostModel, layout: Layout, ctx: LayoutContext) -> KernelLayout:
    """Counts of pieces per stage: the layers, then embedding, head and MTP at their stages."""
    job = cost_model.job_inputs
    counts = np.zeros((job.pieces, layout.pp))
    recomputed = np.zeros_like(counts)
    counts[: job.kinds] = np.array(ctx.counts(layout)).T
    recomputed[: job.kinds] = np.array(ctx.recomputed_counts(layout)).T
    counts[job.kinds, 0] = 1.0
    counts[job.kinds + 1 :, -1] = cost_model.totals[job.kinds + 1 :]
    return KernelLayout(counts, recomputed)
