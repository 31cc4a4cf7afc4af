"""Layers whose offloadable activations stay on the GPU, beside those whose leave it.

A framework's fraction leaves the last groups of every chunk there (`constraints.offload`). Layers
that stay become kinds of their own, as recompute modes of a mix do (`planner.search.mixture`): the
pieces are the kinds whose activations leave, those whose stay, then the ends. A layer of which some
groups stay counts as one that stays in bytes and as one that leaves in seconds: a plan holds and
takes no more than is said, by less than a layer of each chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from constraints.layout import LayoutContext, OffloadShares
from constraints.offload import kept_groups
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost import kernel, linear, schedule
from planner.cost.linear_memory import MemoryMoments, memory_moments
from planner.cost.tables import Array
from planner.cost_model import Columns, CostedShapes, CostModel
from planner.cost_model import Layout as KernelLayout
from planner.frameworks import RecomputeMode
from planner.job import Job
from planner.memory.offload import shape_groups
from planner.search.arrays import even_layout, kernel_layout
from planner.search.mixture import CostedLayout, cost_layout, stack, wider_job

# Fractions among which the solver has to choose for a shape, at most.
MOST_FRACTIONS = 16
# Decimals of a fraction that is written into launch files.
DECIMALS = 4


@dataclass(frozen=True)
class StayingTerms:
    """What a layer costs whose activations stay: `layer[kind, TERM_*]` seconds; `more[moment,
    stage, kind]` bytes beside one whose leave."""

    layer: Array
    more: Array


def row_shares(job: Job, columns: Columns, row: int) -> OffloadShares | None:
    """The fractions that a shape may have; None where all that can leaves, or nothing does."""
    if job.offload_fraction == 1.0:
        return None
    mode = job.recompute[int(columns["recompute"][row])]
    degrees = {name: int(columns[name][row]) for name in ("tp", "cp", "ep", "etp", "mbs")}
    groups = shape_groups(job, mode, **degrees)
    if job.offload_fraction != "search":
        return OffloadShares((job.offload_fraction,), groups)
    pp, vpp = int(columns["pp"][row]), int(columns["vpp"][row])
    longest = max(even_layout(job, pp, vpp, recomputes=False).block_layers)
    return OffloadShares(fractions(longest, max(groups)), groups)


def fractions(layers: int, groups: int) -> tuple[float, ...]:
    """Fractions that keep whole layers of a chunk of so many, the largest first.

    Half a group off the edge, where rounding of floats would decide. Of more than MOST_FRACTIONS
    some are left out, evenly.
    """
    count = layers * groups
    if not count:
        return (0.5,)
    stays = range(1, layers) if layers > 1 else range(1)
    step = max(1.0, len(stays) / MOST_FRACTIONS)
    picked = [stays[int(own * step)] for own in range(min(len(stays), MOST_FRACTIONS))]
    found = [round(1.0 - (own * groups + 0.5) / count, DECIMALS) for own in picked]
    return tuple(
        own for own, kept in zip(found, picked, strict=True)
        if 0.0 < own < 1.0 and kept_groups(count, own) == kept * groups
    ) or (0.5,)  # fmt: skip


def price_share(
    cost_model: CostModel, costed: CostedShapes, row: int, recomputed: bool
) -> tuple[Array, StayingTerms, MemoryMoments]:
    """(`layer[kind, TERM_*]` of layers whose activations leave, what those cost whose stay, bytes
    at every moment with all leaving) of a shape; `recomputed`: all of its layers recompute."""
    shape, key, wide = costed.shapes[row], _key(costed, row), wider_job(cost_model.job_inputs, 1)
    costs, framework = _costs(cost_model, costed, row), cost_model.share_inputs
    terms, _ = linear.layout_terms(
        shape, key, costs, wide, framework, cost_model.gpu_inputs, cost_model.link_inputs
    )
    passes = [linear.TERM_FORWARD, linear.TERM_BACKWARD, linear.TERM_RECOMPUTE]
    terms[:, passes] *= schedule.microbatch_share(framework.schedule)
    kinds = cost_model.job_inputs.kinds
    leaving, staying = terms[:kinds], terms[kinds : 2 * kinds].copy()
    if recomputed:
        # The solver counts recomputation as that of layers that leave.
        again = linear.TERM_RECOMPUTE
        staying[:, linear.TERM_BACKWARD] += staying[:, again] - leaving[:, again]
    own = memory_moments(shape, key, costs, wide, framework)
    more = own.layer[:, :, kinds:] - own.layer[:, :, :kinds]
    if recomputed:
        more = more - own.freed[:, :, kinds:] + own.freed[:, :, :kinds]
    memory = MemoryMoments(
        own.stage,
        own.layer[:, :, :kinds],
        own.freed[:, :, :kinds],
        np.maximum(own.working[:, :kinds], own.working[:, kinds:]),
        np.maximum(own.working_again[:, :kinds], own.working_again[:, kinds:]),
        np.maximum(own.gather[:, :kinds], own.gather[:, kinds:]),
    )
    return leaving, StayingTerms(staying, more), memory


def cost_any_layout(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    ctx: LayoutContext,
    modes: tuple[RecomputeMode, ...] = (),
) -> CostedLayout:
    """The kernel's figures for a layout, be it of a mix of modes or of layers of which a share
    leaves the GPU; `modes`: those that `layout.others` counts."""
    if ctx.offload is None:
        return cost_layout(cost_model, costed, row, layout, ctx, modes)
    plain = kernel_layout(cost_model, layout, ctx)
    any_stays, all_stays = (np.array(own, dtype=float).T for own in ctx.staying_counts(layout))
    kinds, costs = cost_model.job_inputs.kinds, _costs(cost_model, costed, row)
    heavy, timed = (_split(plain, own, kinds) for own in (any_stays, all_stays))
    step, stages = _cost(cost_model, costed, row, timed, costs)
    held, sizes = _cost(cost_model, costed, row, heavy, costs)
    memory = [f.STEP_PEAK_BYTES, f.STEP_PEAK_STAGE, f.STEP_ALLOCATED_BYTES]
    step[memory] = held[memory]
    of_time = [f.STAGE_FORWARD_S, f.STAGE_BACKWARD_S, f.STAGE_OFFLOADED]
    sizes[:, of_time] = stages[:, of_time]
    return CostedLayout(step, sizes, timed, costs)


def _split(plain: KernelLayout, staying: Array, kinds: int) -> KernelLayout:
    """Counts of pieces with so many layers of each kind as layers that stay."""

    def parts(counts: Array, stay: Array) -> Array:
        leave = counts.copy()
        leave[:kinds] -= stay
        return stack(leave, [stay], kinds)

    again = np.where(plain.recomputed[:kinds] > 0.0, staying, 0.0)
    return KernelLayout(parts(plain.counts, staying), parts(plain.recomputed, again))


def _key(costed: CostedShapes, row: int) -> Array:
    key: Array = costed.keys[int(costed.shapes[row, f.SHAPE_KEY])]
    return key


def _costs(cost_model: CostModel, costed: CostedShapes, row: int) -> Array:
    """Piece costs of the kinds that leave, those that stay, and the ends."""
    key, kinds = _key(costed, row)[None, :], cost_model.job_inputs.kinds
    leaving, staying = cost_model.cost_leaving(key)[0], cost_model.cost_staying(key)[0]
    return stack(leaving, [staying], kinds)


def _cost(
    cost_model: CostModel, costed: CostedShapes, row: int, layout: KernelLayout, costs: Array
) -> tuple[Array, Array]:
    return kernel.cost_layout(
        costed.shapes[row],
        _key(costed, row),
        costs,
        layout.counts,
        layout.recomputed,
        wider_job(cost_model.job_inputs, 1),
        cost_model.share_inputs,
        cost_model.gpu_inputs,
        cost_model.link_inputs,
    )
