"""Layouts of which a fraction of the offloadable activations leaves the GPU, costed.

A framework's fraction leaves the last groups of every chunk there (`constraints.offload`). Layers
that stay become kinds of their own, as recompute modes of a mix do (`planner.predict.mixture`): the
pieces are the kinds whose activations leave, those whose stay, then the ends. A layer of which some
groups stay counts as one that stays in bytes and as one that leaves in seconds: a plan holds and
takes no more than is said, by less than a layer of each chunk. No search chooses the fraction.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from constraints.layout_context import LayoutContext
from constraints.offload import resident_counts
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.cost_model import Columns, CostedShapes, CostModel, KernelLayout, LayoutInputs
from planner.predict.layouts import kernel_layout
from planner.predict.mixture import CostedLayout, cost_layout, memory_inputs, stack, wider_job
from planner.predict.offload_groups import shape_groups

Groups = tuple[int, ...]


def row_groups(job: Job, columns: Columns, row: int) -> Groups | None:
    """Offloaded modules of a layer of each kind; None where all that can leaves, or nothing."""
    if job.offload_fraction == 1.0:
        return None
    mode = job.recompute[int(columns["recompute"][row])]
    degrees = {name: int(columns[name][row]) for name in ("tp", "cp", "ep", "etp", "mbs")}
    return shape_groups(job, mode, **degrees)


def any_memory_inputs(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    ctx: LayoutContext,
    groups: Groups | None = None,
) -> LayoutInputs:
    """What the memory of a layout is computed from, be it of a mix of modes or of layers of which a
    fraction leaves the GPU; `groups`: `row_groups`."""
    if groups is None:
        return memory_inputs(cost_model, costed, row, layout, ctx)
    return _share_inputs(cost_model, costed, row, layout, ctx, groups)[0]


def cost_any_layout(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    ctx: LayoutContext,
    groups: Groups | None = None,
) -> CostedLayout:
    """The kernel's figures for a layout; arguments as `any_memory_inputs`."""
    if groups is None:
        return cost_layout(cost_model, costed, row, layout, ctx)
    heavy, timed = _share_inputs(cost_model, costed, row, layout, ctx, groups)
    step, stages = cost_model.cost_inputs(timed)
    held, sizes = cost_model.cost_inputs(heavy)
    memory = [f.STEP_PEAK_BYTES, f.STEP_PEAK_STAGE, f.STEP_ALLOCATED_BYTES]
    step[memory] = held[memory]
    of_time = [f.STAGE_FORWARD_S, f.STAGE_BACKWARD_S, f.STAGE_OFFLOADED]
    sizes[:, of_time] = stages[:, of_time]
    return CostedLayout(step, sizes, timed.layout, timed.costs, heavy)


def _share_inputs(
    cost_model: CostModel, costed: CostedShapes, row: int, layout: Layout, ctx: LayoutContext,
    groups: Groups,
) -> tuple[LayoutInputs, LayoutInputs]:  # fmt: skip
    """(of its memory, of its seconds) of a layout in which some layers' activations stay."""
    plain = kernel_layout(cost_model, layout, ctx)
    any_stays, all_stays = (
        np.array(counts, dtype=float).T for counts in resident_counts(layout, ctx, groups)
    )
    kinds = cost_model.job_inputs.kinds
    layout_inputs = replace(
        cost_model.layout_inputs(costed, row, plain),
        costs=_costs(cost_model, costed, row),
        job=wider_job(cost_model.job_inputs, 1),
        framework=cost_model.share_inputs,
    )
    heavy, timed = (_split(plain, stays, kinds) for stays in (any_stays, all_stays))
    return replace(layout_inputs, layout=heavy), replace(layout_inputs, layout=timed)


def _split(plain: KernelLayout, resident: Array, kinds: int) -> KernelLayout:
    """Counts of pieces with so many layers of each kind as layers that stay."""

    def parts(counts: Array, stay: Array) -> Array:
        leave = counts.copy()
        leave[:kinds] -= stay
        return stack(leave, [stay], kinds)

    again = np.where(plain.recomputed[:kinds] > 0.0, resident, 0.0)
    return KernelLayout(
        parts(plain.counts, resident), parts(plain.recomputed, again), plain.mtp_standalone
    )


def _key(costed: CostedShapes, row: int) -> Array:
    key: Array = costed.keys[int(costed.shapes[row, f.SHAPE_KEY])]
    return key


def _costs(cost_model: CostModel, costed: CostedShapes, row: int) -> Array:
    """Piece costs of the kinds that leave, those that stay, and the ends."""
    key, kinds = _key(costed, row)[None, :], cost_model.job_inputs.kinds
    leaving, resident = cost_model.cost_keys(key)[0], cost_model.cost_resident(key)[0]
    return stack(leaving, [resident], kinds)
