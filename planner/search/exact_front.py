"""From the fastest plan within each limit of a memory ladder to the exact front.

Between two limits of the ladder there may be a plan that is lighter than the upper one's and faster
than the lower one's. Each gap is therefore searched again just below the plan above it, until no
gap is left in which a plan could lie: the epsilon-constraint method (Haimes et al. 1971), at the
requested resolution (`planner.job.amounts.Resolution`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from planner.job.amounts import Resolution
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.front import ALIKE, SAVING, thin
from planner.search.limit_results import SLOWEST, TIE, LimitResult, Point
from planner.search.shares import SharesExplorer

# Below an unproven plan, lighter plans are sought at this share of its peak.
COARSE_MEMORY = 0.03
# Default resolution: no two plans of a complete front are closer than this share of the step time
# and these bytes, and every plan that is missing is that close to one of them.
USUAL = Resolution()
TIME, MEMORY_BYTES = USUAL.time, USUAL.memory_bytes


# Picks the point to recommend from a front.
Recommend = Callable[[Sequence[Point]], Point]


def fastest_plan(
    explorer: SharesExplorer, limit_bytes: float, memory_bytes: float
) -> list[LimitResult]:
    """The fastest plan within a limit, then lighter ones that are as fast to within TIE."""
    found = explorer.within([limit_bytes], [np.inf])
    return lighter_plans(explorer, found, _sample_s(found[0]) * (1.0 + TIE) ** 2, memory_bytes)


def _is_known(results: Sequence[LimitResult], limit_bytes: float, sample_s: float) -> bool:
    """Whether it is known that no plan within a limit is faster."""
    return any(one.limit_bytes >= limit_bytes and one.bound >= sample_s for one in results)


def lighter_plans(
    explorer: SharesExplorer, found: Sequence[LimitResult], most_s: float, memory_bytes: float
) -> list[LimitResult]:
    """`found`, followed by the front's plans below its last one, up to a sample time."""
    results = list(found)
    while (point := results[-1].point) is not None and not explorer.stopped:
        if point.peak <= memory_bytes:
            break
        # An unproven result is not exact to the last byte anyway.
        proven = results[-1].gap <= OPTIMAL_WITHIN
        step = memory_bytes if proven else max(memory_bytes, COARSE_MEMORY * point.peak)
        lighter = explorer.within([point.peak - step], [most_s])
        if _sample_s(lighter[0]) > most_s:
            break
        results += lighter
    return results


def as_fast(
    explorer: SharesExplorer, first: Sequence[LimitResult], memory_bytes: float
) -> list[LimitResult]:
    """`first` (from `fastest_plan`), and all plans of the front that are as fast to within ALIKE.
    One of these is recommended, so they are found however short a front is wanted."""
    most_s = (1.0 + ALIKE) * min(_sample_s(limit_result) for limit_result in first) * (1.0 + TIE)
    return lighter_plans(explorer, first, most_s, memory_bytes)


def front(
    explorer: SharesExplorer,
    limit_bytes: float,
    *,
    fastest_only: bool,
    short: int | None,
    resolution: Resolution,
    recommend: Recommend,
) -> list[LimitResult]:
    """The plans as fast as the fastest, the short front of about `short` plans, or the complete
    front."""
    found = as_fast(explorer, fastest_plan(explorer, limit_bytes, MEMORY_BYTES), MEMORY_BYTES)
    if not fastest_only and short is None:
        found = complete_front(explorer, found, resolution.memory_bytes)
        found = _without_coarse_gaps(explorer, found, resolution, recommend)
    elif not fastest_only:
        found = short_front(explorer, found, MEMORY_BYTES, short or 0)
    return [explorer.as_good(result) for result in found]


def at_resolution(points: Sequence[Point], resolution: Resolution, best: Point) -> list[Point]:
    """Points of a front, fastest first, without those that another one represents.

    A point represents another if it is as fast and heavier by less than the resolution's bytes, or
    as light and slower by no more than its share. `best`, the recommended point, always stays and
    represents the points as fast as it. Among the others, the lightest one as fast as the fastest
    unrepresented point stays.
    """
    if resolution == USUAL or not points:
        return list(points)
    slower, kept = 1.0 + resolution.time, list[Point]()

    def apart(point: Point) -> bool:
        return not kept or point.peak <= kept[-1].peak - resolution.memory_bytes

    for point in points:
        if point.sample_s * slower < best.sample_s and apart(point):
            kept.append(point)
    kept.append(best)
    left = [point for point in points if point.peak < best.peak]
    while left := [point for point in left if apart(point)]:
        kept.append([point for point in left if point.sample_s <= left[0].sample_s * slower][-1])
    return kept


def _without_coarse_gaps(
    explorer: SharesExplorer,
    found: Sequence[LimitResult],
    resolution: Resolution,
    recommend: Recommend,
) -> list[LimitResult]:
    """Results without gaps between the points kept by `at_resolution`, where an unrepresented plan
    could lie."""
    results, asked = list(found), set[float]()
    while resolution != USUAL and not explorer.stopped:
        points = undominated(_points([explorer.as_good(result) for result in results]))
        if not points:
            break
        kept = at_resolution(points, resolution, recommend(points))
        most_s = SLOWEST * points[0].sample_s
        gaps = {
            upper.peak - resolution.memory_bytes: lower_s
            for upper, lower_s in zip(
                kept, [*(point.sample_s for point in kept[1:]), most_s], strict=True
            )
        }
        open_gaps = [
            (limit, lower_s / (1.0 + TIE))
            for limit, lower_s in gaps.items()
            if limit > 0.0 and limit not in asked
            if not _is_known(results, limit, lower_s / (1.0 + resolution.time))
        ]
        if not open_gaps:
            break
        limits, sample_times = zip(*open_gaps, strict=True)
        asked.update(limits)
        more = explorer.within(limits, sample_times)
        results += [result for result in more if _sample_s(result) <= most_s]
    return results


def complete_front(
    explorer: SharesExplorer, first: Sequence[LimitResult], memory_bytes: float
) -> list[LimitResult]:
    """The fastest plans and all lighter ones, down to the lightest that is not far too slow.

    `first`: from `as_fast`. `memory_bytes`: resolution. If the search was stopped, the gaps show
    what is undecided.
    """
    found, fastest = list(first), min(_sample_s(limit_result) for limit_result in first)
    while (point := found[-1].point) is not None and point.sample_s <= SLOWEST * fastest:
        if point.peak <= memory_bytes or explorer.stopped:
            break
        below = explorer.ladder(point.peak - memory_bytes, fastest)
        found += _without_gaps(explorer, below, memory_bytes)
    return _not_far_too_slow(found, fastest)


def short_front(
    explorer: SharesExplorer, first: Sequence[LimitResult], memory_bytes: float, most: int
) -> list[LimitResult]:
    """The fastest plans, and lighter ones until there are `most` that people would choose between
    (`thin_points`).

    `first`: from `as_fast`. No plan is missing that is as fast as a chosen one, to within TIE, and
    lighter by `memory_bytes`. Plans between the chosen ones are not searched for.
    """
    found, fastest = list(first), min(_sample_s(limit_result) for limit_result in first)
    point = found[-1].point
    if point is None or point.peak <= memory_bytes or explorer.stopped:
        return found

    def enough(below: Sequence[LimitResult]) -> bool:
        # The last one may still be replaced by a lighter one that is as fast.
        return len(_chosen([*first, *below])) > most

    found += explorer.ladder(point.peak - memory_bytes, fastest, enough)
    found = _not_far_too_slow(found, fastest)
    known = set(_points(first))
    while not explorer.stopped:
        chosen = _chosen(found)[:most]
        unsure = [point for point in chosen if point not in known and point.peak > memory_bytes]
        if not unsure:
            break
        known.update(unsure)
        found += _lighter_as_fast(explorer, unsure, memory_bytes)
    kept = {*_points(first), *_chosen(found)[:most]}
    return [result for result in found if result.point in kept] or found


def _lighter_as_fast(
    explorer: SharesExplorer, points: Sequence[Point], memory_bytes: float
) -> list[LimitResult]:
    """Plans as fast as these points, to within TIE, and lighter, if there are any."""
    limits = [point.peak - memory_bytes for point in points]
    most_s = [point.sample_s * (1.0 + TIE) ** 2 for point in points]
    lighter = zip(explorer.within(limits, most_s), most_s, strict=True)
    return [result for result, longest_s in lighter if _sample_s(result) <= longest_s]


def _chosen(results: Sequence[LimitResult]) -> list[Point]:
    return thin_points(undominated(_points(results)))


def _not_far_too_slow(results: Sequence[LimitResult], fastest: float) -> list[LimitResult]:
    """The results with plans up to SLOWEST; just the first result if there are none."""
    return [one for one in results if _sample_s(one) <= SLOWEST * fastest] or list(results[:1])


def _points(results: Sequence[LimitResult]) -> list[Point]:
    return [result.point for result in results if result.point is not None]


def _without_gaps(
    explorer: SharesExplorer, ladder: Sequence[LimitResult], memory_bytes: float
) -> list[LimitResult]:
    """Results at descending limits between which no other plan could lie."""
    found = list(ladder)
    while not explorer.stopped:
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
        found += explorer.within(limits, sample_times)
        found.sort(key=lambda limit_result: -limit_result.limit_bytes)
    return found


def _sample_s(limit_result: LimitResult) -> float:
    return np.inf if limit_result.point is None else limit_result.point.sample_s


def undominated(points: Sequence[Point]) -> list[Point]:
    """Points, fastest first, none of which is heavier and no faster than another, to within TIE.
    Among equally fast points the lightest stays."""
    kept: list[Point] = []
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


def thin_points(points: Sequence[Point]) -> list[Point]:
    """Points of a front, fastest first, reduced to those that people would choose between."""
    sample_s = np.array([point.sample_s for point in points])
    peak = np.array([point.peak for point in points])
    kept = thin(sample_s, peak, np.arange(len(points)), ALIKE, SAVING)
    return [points[index] for index in kept.tolist()]
