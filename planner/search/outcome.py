"""Conclusions from a front: the order of its plans, the recommended one, whether the search was cut
short, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import mul
from typing import Any

from planner._version import __version__
from planner.job.amounts import Resolution
from planner.job.job import Job
from planner.job.models.catalog import beside_notes
from planner.predict.assumptions import assumption_lines
from planner.predict.cost_tables import half_precision
from planner.predict.ops.table import parameter_count
from planner.predict.ops.trained import held_parameters
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.search.exact_front import at_resolution, thin_points, undominated
from planner.search.front import ALIKE
from planner.search.limit_results import LimitResult, Point, Stopped
from planner.search.result import JobSummary, LimitBound, Proof
from planner.search.shares import SharesExplorer


def front_points(limit_results: Sequence[LimitResult], stopped: Stopped) -> list[Point]:
    """The undominated points, fastest first. KeyboardInterrupt if Ctrl-C came before there were
    any."""
    points = undominated([result.point for result in limit_results if result.point is not None])
    if not points and stopped == "interrupted":
        raise KeyboardInterrupt
    return points


def of_front(
    points: Sequence[Point],
    limit_results: Sequence[LimitResult],
    plan_of: Callable[[Point, float], Plan],
    *,
    sort: str,
    top: int | None,
    whole: bool,
    stopped: Stopped,
    resolution: Resolution,
) -> dict[str, Any]:
    """The fields of a `SearchResult` that follow from its front: the plans of its points, the best
    `top` by `sort`, and how certain it is that none is missing.

    The recommended plan is always included. `plan_of(point, gap)` makes the plan of a point.
    `whole`: the complete front was searched, and its points were reduced by `at_resolution`.
    """
    costed = {point: plan_of(point, gap_of(limit_results, point)) for point in points}
    if whole:
        taken = points[recommended(list(costed.values())) - 1]
        points = at_resolution(points, resolution, taken)
    shown = set(thin_points(points))
    every = sorted(
        ((costed[point], point in shown) for point in points),
        key=lambda item: sort_value(item[0], sort),
    )
    best = recommended([plan for plan, _ in every])
    both = every[:top]
    if best > len(both):
        both, best = [*both[:-1], every[best - 1]], len(both)
    plans = tuple(plan for plan, _ in both)
    proven = all(limit_result.gap <= OPTIMAL_WITHIN for limit_result in limit_results)
    return {
        "planner_version": __version__,
        "plans": plans,
        "shown": tuple(
            number for number, (_, is_shown) in enumerate(both, 1) if is_shown or number == best
        ),
        "recommended": best,
        # A gap above the resolution may hide a plan.
        "complete": whole and proven and not stopped,
        "proven": proven,
        "gap": max(limit_result.gap for limit_result in limit_results),
        "stopped": stopped,
    }


def best_point(plan_of: Callable[[Point, float], Plan], points: Sequence[Point]) -> Point:
    """The point to recommend of a front, given fastest first."""
    near = [point for point in points if point.sample_s <= points[0].sample_s * (1.0 + ALIKE)]
    return near[recommended([plan_of(point, 0.0) for point in near]) - 1]


def gap_of(limit_results: Sequence[LimitResult], point: Point) -> float:
    """The share that a plan with no more memory could still save, from the tightest limit that
    holds the point."""
    return min(limit_result.gap for limit_result in limit_results if limit_result.point == point)


def proof_of(limit_results: Sequence[LimitResult], explorer: SharesExplorer) -> Proof:
    """The proven bound within each memory limit, and which bounds rest on CP-SAT alone."""
    return Proof(
        limits=tuple(
            LimitBound(limit_bytes=result.limit_bytes, sample_s=result.bound)
            for result in limit_results
        ),
        by_solver=tuple(chain.from_iterable(one.solver_bounds for one in explorer.explorers)),
    )


def job_summary(job: Job, num_gpus: int) -> JobSummary:
    """The resolved job in words and totals, on the GPUs that it uses. On several clusters peak
    rates are means. `num_gpus`: how many were given."""
    jobs, count = job.machines, parameter_count(job.model)
    parts = job.pool.parts if job.pool else (job.cluster,)
    used, gpus = sum(part.num_gpus for part in parts), [part.gpu for part in parts]
    shares = [part.num_gpus / used for part in parts]
    half = [gpu.peak(half_precision(gpu)) for gpu in gpus]
    asked = [gpu.peak(job.precision) for gpu in gpus]
    held = held_parameters(job)
    return JobSummary(
        model=job.model.name,
        model_alias=job.model_alias,
        parameters=count.total,
        active_parameters=count.active,
        cluster=" + ".join(part.describe() for part in parts),
        gpu=" + ".join(gpu.name for gpu in gpus),
        num_gpus=num_gpus,
        used_gpus=used,
        usable_bytes=min(gpu.hbm_usable_bytes for gpu in gpus),
        limit_bytes=min(one.hbm_limit_bytes for one in jobs),
        peak_flop_per_s=sum(map(mul, shares, half)),
        precision_peak_flop_per_s=sum(map(mul, shares, asked)),
        framework=job.framework.name,
        framework_version=job.framework.version,
        precision=job.precision,
        optimizer=job.optimizer.name,
        seq=job.seq,
        batch_target_sequences=job.batch.sequences,
        tuning="" if job.tuning.trains_all else job.tuning.words,
        trained_parameters=0 if job.tuning.trains_all else held.trained,
        objective="" if job.objective.is_plain else job.objective.words,
        notes=tuple(f"{note[0].upper()}{note[1:]}." for note in beside_notes(job.beside)),
        assumed=assumption_lines(jobs),
    )


# Smaller differences in the probability of fitting are ignored, because it rests on few measured
# peaks.
AS_SURE = 0.05

# Fields that plans may be sorted by, and whether more is better.
SORT_KEYS: dict[str, bool] = {
    "tokens_per_s": True,
    "tokens_per_s_per_gpu": True,
    "mfu": True,
    "fit_probability": True,
    "step_time_s": False,
    "peak_bytes": False,
}


def sort_value(plan: Plan, sort: str) -> float:
    """Sort key of a plan by one of SORT_KEYS; smaller comes first."""
    value = float(getattr(plan, sort))
    return -value if SORT_KEYS[sort] else value


def recommended(plans: Sequence[Plan]) -> int:
    """Number, from 1, of the plan to recommend; 0 without plans.

    Among the plans as fast as the fastest, to within ALIKE, it is the fastest one that fits as
    surely as any of them, to within AS_SURE. Recomputing a layer or having twenty chunks per stage
    is not worth a small gain.
    """
    most = max((plan.tokens_per_s for plan in plans), default=0.0)
    fast = [(plan, n) for n, plan in enumerate(plans, 1) if plan.tokens_per_s * (1 + ALIKE) >= most]
    surest = max((plan.fit_probability for plan, _ in fast), default=0.0)
    sure = [(plan, n) for plan, n in fast if plan.fit_probability >= surest - AS_SURE]
    return max(sure, key=lambda plan: plan[0].tokens_per_s)[1] if sure else 0


def stop_notes(stopped: Stopped, time_limit_s: float | None) -> tuple[str, ...]:
    """Notes that the search was cut short."""
    if not stopped:
        return ()
    late = f"stopped by the time limit of {time_limit_s or 0:g} s"
    what = late if stopped == "time-limit" else "interrupted"
    return (f"{what}, with layouts left to solve; this is the best front so far",)
