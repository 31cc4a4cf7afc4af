"""Layouts between their two forms: blocks of layers for people, counts of pieces for the kernel."""

from __future__ import annotations

import numpy as np

from constraints.layout import LayoutContext, Recomputation, greedy_costs
from constraints.rule import Layout, Placement
from planner.cost.layout import mirror, place_ends
from planner.cost_model import CostModel
from planner.cost_model import Layout as KernelLayout
from planner.job import Job
from planner.offload_rules import grouped_modules
from planner.schedules import schedule_named
from planner.specs import ModelSpec


def job_placement(job: Job) -> Placement:
    """Where blocks live under the job's schedule."""
    return schedule_named(job.schedule).placement


def plain_context(
    job: Job, pp: int, vpp: int, recomputation: Recomputation, others: int = 0
) -> LayoutContext:
    """Layout rules' numbers of a shape, without a memory limit."""
    placement = job_placement(job) if pp > 1 else "straight"
    return LayoutContext(
        pp=pp,
        vpp=vpp,
        kinds=job.model.kind_indices,
        layouts="even" if placement == "mirrored" else job.framework.parallelism.layouts,
        recomputation=recomputation,
        placement=placement,
        others=others,
        lone_ends=job.framework.parallelism.lone_ends,
        greedy_costs=model_costs(job.model),
        offload_modules=grouped_modules(job.framework, job.activation_offload),
    )


def model_costs(model: ModelSpec) -> tuple[int, int]:
    """Costs of a layer and of the LM head by which greedy frameworks fill their stages."""
    return greedy_costs(model.hidden, model.ffn, model.vocab)


def even_layout(job: Job, pp: int, vpp: int, recomputes: bool) -> Layout:
    """The layout in which the kernel costs a shape: the framework's own, else the most even."""
    blocks = plain_context(job, pp, vpp, "none").usual_split
    placement = job_placement(job) if pp > 1 else "straight"
    plain = Layout(pp, vpp, blocks, (0,) * pp, placement)
    return Layout(pp, vpp, blocks, plain.stage_layers, placement) if recomputes else plain


def kernel_layout(cost_model: CostModel, layout: Layout, ctx: LayoutContext) -> KernelLayout:
    """Counts of pieces per stage: the layers, then embedding, head and MTP at their stages."""
    job = cost_model.job_inputs
    counts = np.zeros((job.pieces, layout.pp))
    recomputed = np.zeros_like(counts)
    place_ends(counts, layout.pp, job, cost_model.framework_inputs.schedule)
    if layout.placement == "mirrored":
        mirror(counts, layout.pp)
    counts[: job.kinds] = np.array(ctx.counts(layout)).T
    recomputed[: job.kinds] = np.array(ctx.recomputed_counts(layout)).T
    return KernelLayout(counts, recomputed)
