"""CP-SAT asked about each place of multi-token prediction by itself.

With its place fixed, a layout's seconds and memory hang on nothing else than its layers, and the
solver's relaxation is tighter. The bound by whole blocks says of each place what it can be worth:
one that cannot beat what is asked for is left out.
"""

from __future__ import annotations

from dataclasses import replace

from constraints.layout import LayoutContext
from planner.search.block_bound import Bound
from planner.search.layout_model import LayoutSolution, SolverOptions, solve_layout
from planner.search.rungs import TIE
from planner.search.terms import ShapeTerms

# A first solve gets this share of the work allowed; it is enough if its layout is this near to the
# bound.
_QUICK = 0.25
_NEAR = 0.5 * TIE


def solve_places(
    terms: ShapeTerms,
    ctx: LayoutContext,
    options: SolverOptions,
    within_s: tuple[float, float],
    known: Bound,
) -> LayoutSolution:
    """The fastest layout of a shape between two step times (`solve_layout`), wherever multi-token
    prediction stands; the place with the lower bound first.

    `known`: bounds that hold for the shape, and layers of each stage to start from.
    """
    if not ctx.may_part or known.apart is None:
        return _near_or_full(terms, ctx, options, within_s, known.stage_layers)
    best = LayoutSolution("infeasible", None, within_s[1], 0.0)
    for apart, own in sorted(
        ((False, known), (True, known.apart)), key=lambda place: (place[1].step_s, place[0])
    ):
        low_s, high_s = max(within_s[0], own.step_s), min(within_s[1], best.step_s)
        if low_s >= high_s:
            continue  # nothing here is faster than what is asked for, or than what was found
        found = _near_or_full(terms, ctx, options, (low_s, high_s), own.stage_layers, apart)
        best = _better(best, found)
    return best


def _better(one: LayoutSolution, other: LayoutSolution) -> LayoutSolution:
    """The faster of the layouts of two places, and what holds for both."""
    best = other if other.step_s < one.step_s else one
    bound_s, effort_s = min(one.bound_s, other.bound_s), one.effort_s + other.effort_s
    undecided = "unknown" in (one.status, other.status)
    if best.layout is None:
        if undecided:
            return LayoutSolution("unknown", None, bound_s, 1.0, effort_s)
        return LayoutSolution("infeasible", None, bound_s, 0.0, effort_s)
    gap = max(0.0, 1.0 - bound_s / best.step_s)
    decided = "feasible" not in (one.status, other.status) and not undecided
    return replace(
        best,
        status="optimal" if decided else "feasible",
        bound_s=bound_s,
        gap=gap,
        effort_s=effort_s,
    )


def _near_or_full(
    terms: ShapeTerms,
    ctx: LayoutContext,
    options: SolverOptions,
    within_s: tuple[float, float],
    start: tuple[int, ...],
    apart: bool | None = None,
) -> LayoutSolution:
    """A layout near to its bound, for little work where that is enough, else for all allowed."""
    quick = replace(options, deterministic_time_s=_QUICK * options.deterministic_time_s)
    found = solve_layout(terms, ctx, quick, within_s, start, apart)
    decided = found.status in ("optimal", "infeasible")
    if decided or (found.status == "feasible" and found.gap <= _NEAR):
        return found
    full = solve_layout(terms, ctx, options, within_s, start, apart)
    return replace(full, effort_s=found.effort_s + full.effort_s)
