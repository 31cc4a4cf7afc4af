"""Layouts by exhaustion: the oracle of the solver tests. Knows the cost terms, no solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.cost import linear
from planner.cost.codes import Sharers
from planner.cost.layout import usual_split
from planner.cost.schedule import SCHEDULE_1F1B, SCHEDULE_ALL_FORWARD_FIRST
from planner.cost.tables import Array, ClassInputs, FrameworkInputs
from planner.search.explorer import Explorer
from planner.search.limit_results import SLOWEST, LimitResult
from planner.search.shares import SharesExplorer
from planner.search.terms import ShapeTerms


def explore(explorer: Explorer | SharesExplorer) -> list[LimitResult]:
    """The fastest plan at each limit of the memory ladder."""
    if isinstance(explorer, Explorer):
        explorer = SharesExplorer([explorer])
    found = [explorer.climb(0)]
    fastest = found[0].point.sample_s if found[0].point else 0.0
    for index in range(1, len(explorer.limits)):
        result = explorer.climb(index)
        if result.point is None or result.point.sample_s > SLOWEST * fastest:
            break
        found.append(result)
        fastest = min(fastest, result.point.sample_s)
    return found


# The two classes of parameters that pretraining has.
CLASSES = tuple(ClassInputs(sharers, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0) for sharers in Sharers)


def framework_inputs(**changes: Any) -> FrameworkInputs:
    """Framework numbers of which only a few matter here."""
    values: dict[str, Any] = dict.fromkeys(FrameworkInputs._fields, 0.0)
    return FrameworkInputs(**values | {"classes": CLASSES} | changes)


def context(*numbers: Any, modes: tuple[str, ...] = ("full",), **more: Any) -> LayoutContext:
    """Numbers of a shape, with the modes that its layers may take if they recompute at all."""
    ctx = LayoutContext(*numbers, **more)
    if not ctx.usual_split:
        cost = 1.0 if ctx.layouts == "greedy" else 0.0
        ctx = replace(ctx, usual_split=usual_split(ctx.layers, ctx.blocks, cost))
    return ctx if ctx.recomputation == "none" else replace(ctx, modes=modes)


def every_layout(ctx: LayoutContext, largest: int | None = None) -> Iterator[Layout]:
    """Every layout up to `largest` layers a block, legal or not."""
    largest = ctx.layers if largest is None else largest
    for blocks in product(range(largest + 1), repeat=ctx.blocks):
        plain = Layout(ctx.pp, ctx.vpp, blocks, {}, ctx.placement)
        for counts in product(every_count(plain), repeat=len(ctx.modes)):
            yield replace(plain, recomputed=dict(zip(ctx.modes, counts, strict=True)))


def every_count(plain: Layout) -> list[tuple[int, ...]]:
    """Every number of layers of each stage."""
    return list(product(*(range(count + 1) for count in plain.stage_layers)))


def legal_layouts(ctx: LayoutContext) -> Iterator[Layout]:
    """Layouts that every rule's check accepts."""
    for layout in every_layout(ctx):
        if all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
            yield layout


def step_time_s(terms: ShapeTerms, layout: Layout, ctx: LayoutContext) -> float:
    """Step time of a layout from the linear terms, as `planner.cost.step` composes it."""
    counts = np.array(ctx.counts(layout), dtype=float)
    found = counts @ terms.layer + terms.stage
    recompute = np.zeros(terms.pp)
    forward = found[:, linear.TERM_FORWARD]
    for taken in ctx.mode_counts(layout)[:1]:
        recompute += np.array(taken, dtype=float) @ terms.layer[:, linear.TERM_RECOMPUTE]
    backward = found[:, linear.TERM_BACKWARD] + recompute
    total = forward + backward
    slowest = total.max()
    if terms.framework.schedule == SCHEDULE_ALL_FORWARD_FIRST:
        slowest = forward.max() + backward.max()
    span = terms.grad_acc * slowest + terms.bubble_share * (total.sum() - slowest)
    framework, scalars = terms.framework, terms.scalars
    reduce = found[:, linear.TERM_REDUCE] + scalars[linear.SCALAR_REDUCE_BASE]
    gather = found[:, linear.TERM_ALL_GATHER] + scalars[linear.SCALAR_ALL_GATHER_BASE]
    exposed = drain = 0.0
    first, passes = 0.0, 1.0
    if framework.schedule == SCHEDULE_1F1B and terms.vpp > 1:
        # The first chunk's traffic has nothing beside it, that of the others pp micro-batches.
        first = 1.0 / terms.vpp
        passes = min(terms.pp, terms.grad_acc) * (1.0 - first)
    hide_reduce = (1.0 - first) * framework.hide_gradient_reduction
    hide_gather = (1.0 - first) * framework.hide_parameter_gather
    for stage in range(terms.pp):
        seconds = found[stage, linear.TERM_SHARED]
        window_s = passes * backward[stage] - found[stage, linear.TERM_TAKEN_BACKWARD]
        seconds += reduce[stage] - min(reduce[stage] * hide_reduce, window_s)
        window_s = passes * forward[stage] - found[stage, linear.TERM_TAKEN_FORWARD]
        seconds += gather[stage] - min(gather[stage] * hide_gather, window_s)
        exposed = max(exposed, seconds - drain)
        drain += backward[stage] / terms.vpp
    fixed = scalars[linear.SCALAR_FIXED_S]
    return float(span + exposed + found[:, linear.TERM_OPTIMIZER].max() + fixed)


def all_bounds(explorer: Explorer) -> Array:
    """[rows, rungs]: the bounds of all shapes, also of those that no search has looked at."""
    explorer.bounds.shape  # noqa: B018 (the plain ones first)
    explorer._bound(np.arange(len(explorer.rows)), 0)
    return explorer.bounds.copy()
