"""Layouts between their two forms: blocks of layers for people, counts of pieces for the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from constraints.layout_context import LayoutContext, Recomputation, even_split, greedy_costs
from constraints.rule import Layout, Placement
from planner.cost.layout import mirror, place_vocab_layers
from planner.job.frameworks import RecomputeMode
from planner.job.job import Job
from planner.job.offload import grouped_modules
from planner.job.recomputation import layer_modes, recomputation
from planner.job.schedules import schedule_named
from planner.job.specs import ModelSpec
from planner.predict.cost_model import CostModel, KernelLayout
from planner.predict.cost_tables import may_part


def job_placement(job: Job) -> Placement:
    """Where blocks live under the job's schedule."""
    return schedule_named(job.schedule).placement


def plain_context(job: Job, pp: int, vpp: int, mode: RecomputeMode | None = None) -> LayoutContext:
    """Layout rules' numbers of a shape, without a memory limit; `mode` None: nothing recomputes."""
    kind: Recomputation = "none" if mode is None else recomputation(mode, job.framework)
    placement = job_placement(job) if pp > 1 else "straight"
    return LayoutContext(
        pp=pp,
        vpp=vpp,
        kinds=job.model.kind_indices,
        layouts="even" if placement == "mirrored" else job.framework.parallelism.layouts,
        recomputation=kind,
        placement=placement,
        modes=tuple(one.name for one in layer_modes(job, mode)) if mode else (),
        standalone_vocab=job.framework.parallelism.standalone_vocab,
        mtp_standalone=bool(may_part(job)),
        greedy_costs=model_costs(job.model),
        offload_modules=grouped_modules(job.framework, job.activation_offload),
        offload_fraction=job.offload_fraction,
    )


def model_costs(model: ModelSpec) -> tuple[int, int]:
    """Costs of a layer and of the LM head by which greedy frameworks fill their stages."""
    return greedy_costs(model.hidden, model.ffn, model.vocab)


def even_layout(
    job: Job,
    pp: int,
    vpp: int,
    mode: RecomputeMode | None = None,
    mtp_standalone: bool = False,
) -> Layout:
    """The layout in which the kernel costs a shape: the framework's own, else the most even.

    `mode`: all layers recompute in it; `mtp_standalone`: with multi-token prediction alone in the
    block before head and loss.
    """
    ctx = plain_context(job, pp, vpp)
    blocks = ctx.usual_split
    if mtp_standalone and ctx.may_part:
        blocks = (*even_split(ctx.layers, ctx.blocks - 2), 0, 0)
    placement = job_placement(job) if pp > 1 else "straight"
    return in_mode(Layout(pp, vpp, blocks, {}, placement, mtp_standalone), mode)


def in_mode(layout: Layout, mode: RecomputeMode | None) -> Layout:
    """The layout with all layers in one mode."""
    again = {mode.name: layout.stage_layers} if mode and mode.mask else {}
    return replace(layout, recomputed=again)


def kernel_layout(cost_model: CostModel, layout: Layout, ctx: LayoutContext) -> KernelLayout:
    """Counts of pieces per stage: the layers, those that recompute in the first mode, then
    embedding, head and MTP at their stages."""
    job = cost_model.job_inputs
    counts = np.zeros((job.pieces, layout.pp))
    recomputed = np.zeros_like(counts)
    schedule, standalone = cost_model.framework_inputs.schedule, float(layout.mtp_standalone)
    place_vocab_layers(counts, layout.pp, job, schedule, standalone)
    if layout.placement == "mirrored":
        mirror(counts, layout.pp)
    counts[: job.kinds] = np.array(ctx.counts(layout)).T
    for again in ctx.mode_counts(layout)[:1]:
        recomputed[: job.kinds] = np.array(again).T
    return KernelLayout(counts, recomputed, layout.mtp_standalone)
