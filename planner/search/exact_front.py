"""From the fastest plan within each of a ladder of memory limits to the exact front.

Between two limits of the ladder there may be a plan that is lighter than the upper one's and faster
than the lower one's. So each gap is searched again just below the plan above it, until none is left
in which a plan could lie: the epsilon-constraint method (Haimes et al. 1971), at a resolution of
TIME and MEMORY_BYTES.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.limit_results import SLOWEST, TIE, LimitResult, Point, Stopped

# No two plans of a complete front are closer than this share of the step time and these bytes, and
# no plan is missing that lies further from all of them.
TIME = OPTIMAL_WITHIN
MEMORY_BYTES = 0.1 * 2**30


AnyPoint = TypeVar("AnyPoint", bound=Point)


class Explored(Protocol):
    """What searches within memory limits: `planner.search.shares.SharesExplorer`, and that of
    pools."""

    @property
    def stopped(self) -> Stopped:
        """What cut the search short, if anything did."""

    @property
    def tired(self) -> bool:
        """Whether the work that is allowed is done."""

    def rest_after(self, block_bounds: int, effort_s: float) -> None:
        """Tire after so many more block bounds and seconds of CP-SAT."""

    def ladder(self, limit_bytes: float, fastest: float) -> list[LimitResult]:
        """The rungs from a limit down, until nothing fits or plans take far longer than a pace."""

    def within(
        self, limits: Sequence[float], target_sample_times: Sequence[float]
    ) -> list[LimitResult]:
        """The fastest plan within each of some falling limits, of those that beat a pace."""


def fastest_plan(explorer: Explored, limit_bytes: float, memory_bytes: float) -> list[LimitResult]:
    """The fastest plan within a limit, then lighter ones that are as fast, to within TIE."""
    found = explorer.within([limit_bytes], [np.inf])
    target = _sample_s(found[0]) * (1.0 + TIE) ** 2
    while (point := found[-1].point) is not None and not _ended(explorer):
        if point.peak <= memory_bytes:
            break
        lighter = explorer.within([point.peak - memory_bytes], [target])
        if _sample_s(lighter[0]) > target:
            break
        found += lighter
    return found


def complete_front(
    explorer: Explored,
    first: Sequence[LimitResult],
    memory_bytes: float,
    refinement: tuple[int, float] | None = None,
) -> list[LimitResult]:
    """The fastest plan with all plans that are lighter, down to the lightest that is not far too
    slow.

    `first`: `fastest_plan`; `memory_bytes`: resolution; `refinement`: block bounds and CP-SAT's
    seconds that are spent on plans between those of the ladder; None: what it takes. What was left
    undecided when the search was stopped, or tired, is in the gaps.
    """
    found, fastest = list(first), min(_sample_s(limit_result) for limit_result in first)
    while (point := found[-1].point) is not None and point.sample_s <= SLOWEST * fastest:
        if point.peak <= memory_bytes or _ended(explorer):
            break
        below = explorer.ladder(point.peak - memory_bytes, fastest)
        if refinement is not None:
            explorer.rest_after(*refinement)
            refinement = None
        found += _without_gaps(explorer, below, memory_bytes)
    return [
        limit_result for limit_result in found if _sample_s(limit_result) <= SLOWEST * fastest
    ] or list(first)


def _without_gaps(
    explorer: Explored, ladder: Sequence[LimitResult], memory_bytes: float
) -> list[LimitResult]:
    """Rungs by falling limit, between which no plan could lie."""
    found = list(ladder)
    while not _ended(explorer):
        gaps = [
            (upper.point.peak - memory_bytes, _sample_s(lower) / (1.0 + TIE))
            for upper, lower in pairwise(found)
            if upper.point is not None
            and upper.point.peak - memory_bytes > lower.limit_bytes
            and upper.point.sample_s * (1.0 + TIE) < _sample_s(lower)
        ]
        if not gaps:
            break
        limits, sample_times = zip(*gaps, strict=True)
        known = {limit_result.point for limit_result in found}
        # A gap that was left open says nothing, unless it has a plan of its own.
        found += [
            limit_result
            for limit_result in explorer.within(limits, sample_times)
            if not explorer.tired or limit_result.point not in known
        ]
        found.sort(key=lambda limit_result: -limit_result.limit_bytes)
    return found


def _ended(explorer: Explored) -> bool:
    return bool(explorer.stopped) or explorer.tired


def _sample_s(limit_result: LimitResult) -> float:
    return np.inf if limit_result.point is None else limit_result.point.sample_s


def undominated(points: Sequence[AnyPoint]) -> list[AnyPoint]:
    """Points, fastest first, of which none is both lighter and as fast as another, to within TIE:
    of points as fast the lightest stands for all."""
    kept: list[AnyPoint] = []
    fastest = -np.inf
    for point in sorted(dict.fromkeys(points), key=lambda point: (point.sample_s, point.peak)):
        if kept and point.peak >= kept[-1].peak:
            continue
        if kept and point.sample_s <= fastest * (1.0 + TIE):
            kept[-1] = point
        else:
            fastest = point.sample_s
            kept.append(point)
    return kept
