"""One Pareto front over several clusters: speed, peak HBM, number of GPUs, dollars.

The number of GPUs and their price are constant within a cluster, so the epsilon-constraint over
them is to search each cluster for its own front over speed and memory; what no point of another
cluster dominates is the front over all. It is proven where each cluster's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from hardware.frozen import Frozen
from planner._version import __version__
from planner.compare.batch import with_batch
from planner.compare.comparison import (
    Entry,
    enter,
    raise_common_problem,
    search_entries,
)
from planner.compare.offers import Offer
from planner.compare.quotes import choose
from planner.compare.searches import ONE_BY_ONE, How, Outcome
from planner.compare.settings import Settings
from planner.job.request import Request
from planner.predict.plan import PLAN_FILE_VERSION, Plan
from planner.search.front import ALIKE, SAVING, Floats, nondominated, without_near
from planner.search.result import SearchResult

if TYPE_CHECKING:
    import pandas as pd

MOST_PLANS = 1_000
BILLION = 1e9
HOUR_S = 3600.0


class ClusterPoint(Frozen):
    """A plan of the front. `plan`: its number, from 1, in its cluster's result.

    `usd_per_billion_tokens`: of all GPUs of the cluster at the on-demand price, without
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
    """What one cluster gave. `on_front`: how many of its `plans` no other cluster dominates.

    `reason`: why it has no plan. `usd_per_gpu_hour`: with the provider and the date in `price`.
    """

    cluster: str
    num_gpus: int
    plans: int = 0
    on_front: int = 0
    proven: bool = False
    reason: str = ""
    usd_per_gpu_hour: float | None = None
    price: str = ""


class ClusterFront(Frozen):
    """The front over all clusters, fastest first, and every cluster's own result.

    `dimensions`: what the front weighs. `proven`: no plan of any cluster was missed.
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
        """One row a point with its number: SI units, then everything of its plan."""
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
    request: Request,
    clusters: Sequence[str],
    *,
    how: How = ONE_BY_ONE,
) -> ClusterFront:
    """The front of a job over clusters of which any may be taken, each as `64xH100`.

    `request`: without gpus and cluster. The time limit is for all searches together. UsageError
    or HardwareError for what is wrong with every cluster.
    """
    base, batch_note = with_batch(request)
    entries = [enter(Offer(gpus=text), base, None, how.prepare) for text in clusters]
    raise_common_problem(entries)
    ready = sum(entry.job is not None for entry in entries)
    limit_s = how.time_limit_s
    each_s = None if limit_s is None else limit_s * min(how.jobs, ready) / ready
    outcomes = search_entries(entries, how, time_limit_s=each_s, top=MOST_PLANS, only_plans=True)
    found = {
        entry.offer.label: outcome
        for entry, outcome in zip(entries, outcomes, strict=True)
        if outcome is not None
    }
    return _joined(entries, found, (batch_note,) if batch_note else ())


def _joined(
    entries: Sequence[Entry], found: dict[str, Outcome], notes: tuple[str, ...]
) -> ClusterFront:
    searched = [_searched(entry, found.get(entry.offer.label)) for entry in entries]
    results = {
        name: outcome.result for name, outcome in found.items() if outcome.result is not None
    }
    prices = {searched.cluster: searched.usd_per_gpu_hour for searched in searched}
    points = [
        _point(
            searched.cluster,
            number,
            plan,
            searched.num_gpus,
            prices[searched.cluster],
            results[searched.cluster],
        )
        for searched in searched
        if searched.cluster in results
        for number, plan in enumerate(results[searched.cluster].plans, start=1)
    ]
    priced = all(prices[point.cluster] is not None for point in points)
    kept = front_points(points, priced)
    count = {
        searched.cluster: sum(p.cluster == searched.cluster for p in kept) for searched in searched
    }
    return ClusterFront(
        planner_version=__version__,
        dimensions=("tokens_per_s", "peak_bytes", "num_gpus")
        + (("usd_per_billion_tokens",) if priced else ()),
        proven=all(searched.proven for searched in searched),
        stopped=next((result.stopped for result in results.values() if result.stopped), ""),
        points=tuple(kept),
        clusters=tuple(
            searched.model_copy(update={"on_front": count[searched.cluster]})
            for searched in searched
        ),
        results=results,
        notes=notes,
    )


def _searched(entry: Entry, outcome: Outcome | None) -> ClusterSearched:
    settings = Settings()
    choice = choose(entry.offer, entry.cluster, "on_demand", settings)
    cluster_searched = ClusterSearched(
        cluster=entry.offer.label,
        num_gpus=entry.cluster.num_gpus,
        usd_per_gpu_hour=None if choice is None else choice.amount,
        price=""
        if choice is None
        else f"{choice.price.provider}, {choice.price.date or 'no date'}",
    )
    if outcome is None:
        return cluster_searched.model_copy(update={"reason": str(entry.problem), "proven": True})
    if outcome.result is None:
        return cluster_searched.model_copy(
            update={"reason": outcome.reason, "proven": outcome.proven}
        )
    result = outcome.result
    proven = result.proven and all(plan.status == "optimal" for plan in result.plans)
    return cluster_searched.model_copy(update={"plans": len(result.plans), "proven": proven})


def _point(
    cluster: str, number: int, plan: Plan, gpus: int, price: float | None, result: SearchResult
) -> ClusterPoint:
    usd = None if price is None else gpus * price / HOUR_S / plan.tokens_per_s * BILLION
    return ClusterPoint(
        cluster=cluster,
        plan=number,
        num_gpus=gpus,
        gpu=result.job.gpu,
        tokens_per_s=plan.tokens_per_s,
        step_time_s=plan.step_time_s,
        step_time_low_s=plan.step_time.low,
        step_time_high_s=plan.step_time.high,
        peak_bytes=plan.peak_bytes,
        fit_probability=plan.fit_probability,
        usd_per_billion_tokens=usd,
        status=plan.status,
        gap=plan.gap,
    )


def front_points(points: Sequence[ClusterPoint], priced: bool) -> list[ClusterPoint]:
    """Points that none dominates in speed, memory, GPUs and (`priced`) dollars, fastest first.

    As on one cluster, a point is left out beside a faster one (within ALIKE) unless it saves the
    share SAVING of something.
    """
    if not points:
        return []
    table = _table(points, priced)
    kept = without_near(table, nondominated(table), ALIKE, SAVING)
    return [points[index] for index in kept.tolist()]


def _table(points: Sequence[ClusterPoint], priced: bool) -> Floats:
    """[points, dimensions], each to be small, seconds a token first."""
    columns = [
        [1.0 / point.tokens_per_s for point in points],
        [point.peak_bytes for point in points],
        [float(point.num_gpus) for point in points],
    ]
    if priced:
        columns.append([point.usd_per_billion_tokens or 0.0 for point in points])
    return np.array(columns).T


def shortened(points: Sequence[ClusterPoint], most: int) -> list[ClusterPoint]:
    """The fastest plan of each cluster, then their next ones in turn, `most` where that leaves one
    of each; fastest first."""
    ranks: dict[str, int] = {}
    ranked = []
    for position, point in enumerate(points):
        ranks[point.cluster] = ranks.get(point.cluster, 0) + 1
        ranked.append((ranks[point.cluster], position))
    chosen = sorted(ranked)[: max(most, len(ranks))]
    return [points[position] for position in sorted(position for _, position in chosen)]
