"""One Pareto front over several clusters: speed, peak HBM, number of GPUs, dollars.

The number of GPUs and their price are constant within a cluster. So each cluster is searched for
its front of speed and memory, and the points that no other cluster's point dominates form the joint
front. It is proven if the front of every cluster is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hardware.frozen import Frozen
from planner._version import __version__
from planner.compare.comparison import (
    EnteredOffer,
    enter,
    raise_common_problem,
    search_entries,
    with_batch,
)
from planner.compare.offers import Offer, choose
from planner.compare.searches import ONE_BY_ONE, How, Outcome
from planner.compare.settings import Settings
from planner.job.quantities import HOUR_S
from planner.job.request import Request
from planner.job.written import picked
from planner.predict.plan import PLAN_FILE_VERSION, Plan
from planner.search.front import ALIKE, SAVING, nondominated, without_near
from planner.search.result import SearchResult

if TYPE_CHECKING:
    import pandas as pd

MOST_PLANS = 1_000


class ClusterPoint(Frozen):
    """A plan of the front. `plan`: its number, from 1, in its cluster's result.

    `usd_per_billion_tokens`: for all GPUs of the cluster at the on-demand price, without
    interruptions; None without a price.
    """

    cluster: str
    plan: int
    num_gpus: int
    gpu: str
    tokens_per_s: float
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_bytes: float
    fit_probability: float
    usd_per_billion_tokens: float | None
    status: Literal["optimal", "feasible", "evaluated"]
    gap: float


class ClusterSearched(Frozen):
    """The search on one cluster. `plans`: number of plans that it found; `on_front`: how many of
    them no other cluster dominates; `reason`: why it has no plan, otherwise empty; `price`:
    provider and date of `usd_per_gpu_hour`."""

    cluster: str
    num_gpus: int
    plans: int = 0
    on_front: int = 0
    proven: bool = False
    reason: str = ""
    usd_per_gpu_hour: float | None = None
    price: str = ""


class ClusterFront(Frozen):
    """The front over all clusters, fastest first, and each cluster's result.

    `dimensions`: the figures that the front weighs. `proven`: no plan of any cluster was missed.
    """

    version: int = PLAN_FILE_VERSION
    planner_version: str
    dimensions: tuple[str, ...]
    proven: bool
    stopped: Literal["", "time-limit", "interrupted"] = ""
    points: tuple[ClusterPoint, ...]
    clusters: tuple[ClusterSearched, ...]
    results: dict[str, SearchResult]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row per point: its number, its figures in SI units, then everything of its plan."""
        import pandas as pd

        frames = {name: result.to_frame() for name, result in self.results.items()}
        rows = []
        for number, point in enumerate(self.points, start=1):
            whole = frames[point.cluster].iloc[point.plan - 1].to_dict()
            rows.append({"number": number} | point.model_dump() | whole)
        return pd.DataFrame(rows)

    def plan_of(self, point: ClusterPoint) -> Plan:
        """The whole plan of a point."""
        return self.results[point.cluster].plans[point.plan - 1]


def search_clusters(
    request: Request, clusters: Sequence[str], *, how: How = ONE_BY_ONE
) -> ClusterFront:
    """The front of a job over alternative clusters, each written as `64xH100`.

    `request`: without gpus and cluster. The time limit is for all searches together. UsageError or
    HardwareError for a problem of every cluster.
    """
    base, notes = with_batch(request)
    entries = [enter(Offer(gpus=text), base, None, how.prepare) for text in clusters]
    raise_common_problem(entries)
    ready = sum(entry.job is not None for entry in entries)
    limit_s = how.time_limit_s
    each_s = None if limit_s is None else limit_s * min(how.jobs, ready) / ready
    outcomes = search_entries(entries, how, time_limit_s=each_s, top=MOST_PLANS, only_plans=True)
    searched = [_searched(*pair) for pair in zip(entries, outcomes, strict=True)]
    results = {
        entry.offer.label: outcome.result
        for entry, outcome in zip(entries, outcomes, strict=True)
        if outcome is not None and outcome.result is not None
    }
    points = [
        _point(one, number, plan, results[one.cluster])
        for one in searched
        if one.cluster in results
        for number, plan in enumerate(results[one.cluster].plans, start=1)
    ]
    priced = all(point.usd_per_billion_tokens is not None for point in points)
    kept = front_points(points, priced)
    count = Counter(point.cluster for point in kept)
    dollars = ("usd_per_billion_tokens",) if priced else ()
    return ClusterFront(
        planner_version=__version__,
        dimensions=("tokens_per_s", "peak_bytes", "num_gpus", *dollars),
        proven=all(one.proven for one in searched),
        stopped=next((result.stopped for result in results.values() if result.stopped), ""),
        points=tuple(kept),
        clusters=tuple(one.model_copy(update={"on_front": count[one.cluster]}) for one in searched),
        results=results,
        notes=notes,
    )


def _searched(entry: EnteredOffer, outcome: Outcome | None) -> ClusterSearched:
    choice = choose(entry.offer, entry.cluster, "on_demand", Settings())
    found: dict[str, Any] = {"reason": str(entry.problem), "proven": True}
    if outcome is not None:
        found = {"reason": outcome.reason, "proven": outcome.proven}
        if (result := outcome.result) is not None:
            proven = result.proven and all(plan.status == "optimal" for plan in result.plans)
            found = {"plans": len(result.plans), "proven": proven}
    if choice is not None:
        found["usd_per_gpu_hour"] = choice.per_gpu_hour
        found["price"] = f"{choice.price.provider}, {choice.price.date or 'no date'}"
    gpus = entry.cluster.num_gpus
    return ClusterSearched(cluster=entry.offer.label, num_gpus=gpus, **found)


def _point(one: ClusterSearched, number: int, plan: Plan, result: SearchResult) -> ClusterPoint:
    gpus, usd = one.num_gpus, one.usd_per_gpu_hour
    if usd is not None:
        usd = gpus * usd / HOUR_S / plan.tokens_per_s * 1e9
    return ClusterPoint(
        cluster=one.cluster,
        plan=number,
        num_gpus=gpus,
        gpu=result.job.gpu,
        step_time_low_s=plan.step_time.low,
        step_time_high_s=plan.step_time.high,
        usd_per_billion_tokens=usd,
        **picked(plan, "tokens_per_s step_time_s peak_bytes fit_probability status gap"),
    )


def front_points(points: Sequence[ClusterPoint], priced: bool) -> list[ClusterPoint]:
    """The points that no other dominates in speed, memory, GPUs and (if `priced`) dollars, fastest
    first.

    As on one cluster, a point is left out next to a faster one (within ALIKE) unless it saves at
    least the share SAVING of one of the figures.
    """
    if not points:
        return []
    # All columns are minimised; seconds per token come first.
    names = ("peak_bytes", "num_gpus", *(("usd_per_billion_tokens",) if priced else ()))
    columns = [[float(getattr(point, name)) for point in points] for name in names]
    table = np.array([[1.0 / point.tokens_per_s for point in points], *columns]).T
    kept = without_near(table, nondominated(table), ALIKE, SAVING)
    return [points[index] for index in kept.tolist()]


def shortened(points: Sequence[ClusterPoint], most: int) -> list[ClusterPoint]:
    """At most `most` points, fastest first: the fastest plan of each cluster, then second plans,
    and so on. Every cluster keeps one point, even if there are more clusters than `most`."""
    ranks: dict[str, int] = {}
    ranked = []
    for position, point in enumerate(points):
        ranks[point.cluster] = ranks.get(point.cluster, 0) + 1
        ranked.append((ranks[point.cluster], position))
    chosen = sorted(ranked)[: max(most, len(ranks))]
    return [points[position] for position in sorted(position for _, position in chosen)]
