"""Layers of one stage in several recompute modes: costed by the kernel as so many kinds of layers.

A layer that recomputes in another mode than the shape's own becomes a kind of its own. For memory
it is a plain layer that keeps and works with what the mode leaves it, and whose backward contains
what runs again; so every maximum and moment of the cost core holds for it unchanged. The pieces
are the kinds, the kinds in each other mode, then the ends. No search chooses a mix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array, JobInputs
from planner.job.frameworks import RecomputeMode
from planner.predict.cost_model import CostedShapes, CostModel, KernelLayout, LayoutInputs
from planner.predict.layouts import kernel_layout

_PASSES = slice(f.PIECE_BACKWARD, f.PIECE_BACKWARD_EP + 1)
_AGAIN = slice(f.PIECE_RECOMPUTE, f.PIECE_RECOMPUTE_EP + 1)
_PASS_LINKS = slice(f.PIECE_LINKS + f.LINK_PASS, f.PIECE_LINKS + 2 * f.LINK_PASS)
_AGAIN_LINKS = slice(f.PIECE_LINKS + 2 * f.LINK_PASS, f.PIECE_LINKS + 3 * f.LINK_PASS)


@dataclass(frozen=True)
class CostedLayout:
    """A layout costed by the kernel: STEP_*, [stage, STAGE_*]; counts and costs of its pieces;
    what its memory was costed from."""

    step: Array
    stages: Array
    counts: KernelLayout
    costs: Array
    memory: LayoutInputs


def mode_costs(cost_model: CostModel, costed: CostedShapes, row: int, mode: RecomputeMode) -> Array:
    """Piece costs [pieces, PIECE_COLUMNS] of a shape's key in another recompute mode."""
    key = costed.keys[int(costed.shapes[row, f.SHAPE_KEY])].copy()
    key[[f.KEY_MODULES, f.KEY_SHARE, f.KEY_SPAN]] = int(mode.mask), mode.share, mode.span
    costs: Array = cost_model.cost_keys(key[None, :])[0]
    return costs


def as_plain(costs: Array) -> Array:
    """Layers that recompute, as plain layers that keep and take as much; see the module."""
    out = costs.copy()
    out[:, _PASSES] += out[:, _AGAIN]
    out[:, _AGAIN] = 0.0
    out[:, _PASS_LINKS] += out[:, _AGAIN_LINKS]
    out[:, _AGAIN_LINKS] = 0.0
    out[:, f.PIECE_SAVED] = out[:, f.PIECE_SAVED_RECOMPUTED]
    out[:, f.PIECE_WORKING] += out[:, f.PIECE_AGAIN]
    out[:, f.PIECE_SOFTMAX] += out[:, f.PIECE_AGAIN]
    out[:, f.PIECE_AGAIN] = 0.0
    return out


def wider_job(job: JobInputs, others: int) -> JobInputs:
    """The job with its kinds of layers once more for each other mode."""
    return job._replace(
        kinds=job.kinds * (1 + others),
        pieces=job.pieces + job.kinds * others,
        kinds_in_order=0.0,
    )


def stack(base: Array, others: list[Array], kinds: int) -> Array:
    """Rows of the kinds, of the kinds in each other mode, then of the ends."""
    rows = [base[:kinds], *(other[:kinds] for other in others), base[kinds:]]
    return np.ascontiguousarray(np.concatenate(rows))


def memory_inputs(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    ctx: LayoutContext,
) -> LayoutInputs:
    """What the memory of a layout is computed from."""
    counts = kernel_layout(cost_model, layout, ctx)
    others = [as_plain(costs) for costs in _other_costs(cost_model, costed, row, layout, ctx)]
    if not others:
        return cost_model.layout_inputs(costed, row, counts)
    return _wide_inputs(cost_model, costed, row, others, _mixed(counts, layout, ctx, again=False))


def cost_layout(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    ctx: LayoutContext,
) -> CostedLayout:
    """The kernel's figures for a layout."""
    held = memory_inputs(cost_model, costed, row, layout, ctx)
    step, stages = cost_model.cost_inputs(held)
    others = _other_costs(cost_model, costed, row, layout, ctx)
    if not others:
        return CostedLayout(step, stages, held.layout, held.costs, held)
    counts = kernel_layout(cost_model, layout, ctx)
    # The same layers once as such that recompute: what runs again is then named as such.
    mixed = _mixed(counts, layout, ctx, again=True)
    timed = _wide_inputs(cost_model, costed, row, others, mixed)
    seconds, _ = cost_model.cost_inputs(timed)
    memory = [f.STEP_PEAK_BYTES, f.STEP_PEAK_STAGE, f.STEP_ALLOCATED_BYTES]
    seconds[memory] = step[memory]
    return CostedLayout(seconds, stages, mixed, timed.costs, held)


def _other_costs(
    cost_model: CostModel, costed: CostedShapes, row: int, layout: Layout, ctx: LayoutContext
) -> list[Array]:
    """Piece costs in each mode but the first, where layers take any of them."""
    if not set(layout.recomputed) - set(ctx.modes[:1]):
        return []
    find = cost_model.job.framework.recompute_mode
    return [mode_costs(cost_model, costed, row, find(name)) for name in ctx.modes[1:]]


def _mixed(
    counts: KernelLayout, layout: Layout, ctx: LayoutContext, *, again: bool
) -> KernelLayout:
    """Counts with layers in other modes as kinds of their own; `again`: as such that recompute."""
    taken = np.array(ctx.mode_counts(layout)[1:], dtype=float).transpose(0, 2, 1)
    kinds, plain = taken.shape[1], counts.counts.copy()
    plain[:kinds] -= taken.sum(axis=0)
    remade = list(taken) if again else [np.zeros_like(item) for item in taken]
    return KernelLayout(
        stack(plain, list(taken), kinds),
        stack(counts.recomputed, remade, kinds),
        layout.mtp_standalone,
    )


def _wide_inputs(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    others: list[Array],
    layout: KernelLayout,
) -> LayoutInputs:
    """Inputs of a layout with further kinds of given costs."""
    layout_inputs = cost_model.layout_inputs(costed, row, layout)
    return replace(
        layout_inputs,
        costs=stack(layout_inputs.costs, others, layout_inputs.job.kinds),
        job=wider_job(layout_inputs.job, len(others)),
    )
