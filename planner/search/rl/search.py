"""`find_rl_plans`: from a reinforcement-learning request to a proven front."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf

from planner._version import __version__
from planner.job.errors import UsageError, unknown_name
from planner.job.rl.checks import demand_behind
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.limit_results import SLOWEST, TIE, Ending, Progress
from planner.search.rl.costs import CostModels, Costs, Predicted
from planner.search.rl.engines import EngineLimits, demand_formats, no_engine
from planner.search.rl.explorer import Pair, RlExplorer, Within
from planner.search.rl.given import demand_room
from planner.search.rl.plans import Status, plan_of, summary_of
from planner.search.rl.result import RlCounts, RlPlan, RlResult
from planner.search.rl.sides import MOST_SPLITS, splits_of, ways_of
from planner.search.rl.trainers import jobs_of

# Least difference of memory shares between two plans of a front.
SHARE_STEP = 0.02
# Most plans of a front.
MOST_PLANS = 16


def find_rl_plans(
    request: RlRequest,
    *,
    limits: EngineLimits | None = None,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    fastest_only: bool = False,
    models: CostModels | None = None,
    remedies: bool = True,
) -> RlResult:
    """Front of plans: step time against memory of the fullest GPU.

    The search covers placements, splits of the GPUs, every legal trainer configuration in its
    framework's own layout of layers, every engine, and the staleness values that the request leaves
    open. `limits`: limits on the engines' degrees. `seed`, `time_limit_s`, `progress`,
    `fastest_only`: as in `planner.search.search.find_plans`. UsageError if nothing is legal;
    RlDoesNotFitError if nothing fits, with what would fit if `remedies`. `models`: cost both sides.
    """
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    ending = Ending(deadline)
    jobs = jobs_of(request)
    demand_formats(jobs[0])
    demand_behind(jobs[0])
    explorer = RlExplorer(jobs, Costs(models or Predicted()), ending, limits, progress, seed)
    if not explorer.sides:
        raise UsageError(explorer.refused)
    if not explorer.options:
        raise UsageError(no_engine(jobs[0]))
    _demand_way(jobs[0], limits)
    with ending.interruptible():
        found = front_of(explorer, fastest_only=fastest_only)
    if found[0].pair is None:
        demand_room(explorer)
        from planner.search.rl.why import does_not_fit

        raise does_not_fit(request, explorer, found[0], remedies=remedies)
    return RlResult(
        planner_version=__version__,
        request=request,
        job=summary_of(jobs[0]),
        counts=_counts(explorer, time.perf_counter() - started),
        plans=tuple(_plans(found)),
        proven=all(one.gap <= OPTIMAL_WITHIN for one in found),
        gap=max(one.gap for one in found),
        stopped=ending.stopped,
        notes=tuple(_notes(jobs[0], explorer)),
    )


def _demand_way(job: RlJob, limits: EngineLimits | None) -> None:
    """Raise UsageError if the framework can send new weights this way in none of the placements
    tried."""
    way = limits.way if limits else ""
    known = [one for placement in job.placements for one in ways_of(job, placement)]
    if way and way not in known:
        hint = f"{job.framework.name} has {', '.join(known)}"
        raise unknown_name("--rollout-way", way, known, hint)


def front_of(explorer: RlExplorer, *, fastest_only: bool = False) -> tuple[Within, ...]:
    """The shortest step, then steps with less and less memory, until they are far slower.
    `fastest_only`: only the shortest step, with the least memory."""
    found = [explorer.within(1.0)]
    slowest = 1.0 + TIE if fastest_only else SLOWEST
    while (best := found[-1].pair) is not None:
        if len(found) >= MOST_PLANS or explorer.ending.is_over:
            break
        first_s = found[0].pair.step.step_s if found[0].pair else inf
        lighter = explorer.within(best.share - SHARE_STEP, slowest * first_s)
        if lighter.pair is None or lighter.pair.step.step_s > slowest * first_s:
            break
        found.append(lighter)
    return tuple(_lightest(explorer, one) for one in found[: 1 if fastest_only else None])


def _lightest(explorer: RlExplorer, within: Within) -> Within:
    """Among equally short steps, the one whose GPUs are filled least."""
    if within.pair is None:
        return within
    most = within.pair.step.step_s * (1.0 + TIE)
    alike = (
        pair
        for pair in explorer.pairs
        if pair.step.step_s <= most and pair.share <= within.pair.share
    )
    lightest = min(alike, key=lambda pair: (pair.share, pair.step.step_s))
    return Within(within.share, lightest, within.bound_s)


def _plans(found: Sequence[Within]) -> Iterator[RlPlan]:
    """A plan for each distinct step of a front."""
    seen = list[Pair]()
    for one in found:
        if one.pair is None or one.pair in seen:
            continue
        seen.append(one.pair)
        status: Status = "optimal" if one.gap <= OPTIMAL_WITHIN else "feasible"
        yield plan_of(one.pair.trainer.job, one.pair.step, status, one.gap)


def _counts(explorer: RlExplorer, seconds: float) -> RlCounts:
    sides = {id(one.side): len(one.side.row) for one in explorer.options}
    return RlCounts(
        groups=len({one.group for one in explorer.options}),
        trainers=sum(sides.values()),
        engines=explorer.engines,
        costed=explorer.costed,
        pairs=sum(len(one.known) for one in explorer.options),
        seconds=seconds,
    )


def _notes(job: RlJob, explorer: RlExplorer) -> Iterator[str]:
    """Notes on what was not examined. Those on splits of the GPUs appear only if the request asks
    for separate GPUs."""
    if explorer.ending.stopped == "time-limit":
        yield "the time limit ended the search; plans that are not proven are marked"
    behind = [one for one in job.staleness if one > 0]
    if len(behind) > 1:
        yield (
            f"staleness: of the values above 0 only {behind[0]} was tried, because more does not "
            "shorten a step in the cost model"
        )
    if "colocated" in job.placements and job.trainer.cluster.num_gpus not in explorer.sides:
        yield f"no colocated plan: {explorer.refused}"
    if job.placements != ("separate",):
        return
    if len(splits_of(job)) >= MOST_SPLITS:
        yield f"splits of the GPUs: at most {MOST_SPLITS} were tried, evenly spaced"
    if explorer.refused:
        yield f"some splits have no trainer: {explorer.refused}"
