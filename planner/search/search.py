"""`search`: from a request to a short, proven Pareto front."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner._version import __version__
from planner.job.errors import UsageError, unknown_name
from planner.job.job import Job
from planner.job.pool import is_pool
from planner.job.request import Request
from planner.predict.assumed_hardware import hardware_ledger
from planner.predict.costed_plan import job_plan
from planner.predict.device import half_precision
from planner.predict.ops import parameter_count
from planner.predict.plan import Plan
from planner.search.costed import (
    LEAST_FIT_PROBABILITY,
    RECOMMENDED_FIT_PROBABILITY,
    CostedJob,
    cost_job,
)
from planner.search.explorer import TIE, Effort, Point, Progress, Rung
from planner.search.front import front, thin
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.layout_model import SolverOptions
from planner.search.ordering import SORT_KEYS, sort_value, stop_notes
from planner.search.result import Counts, JobSummary, SearchResult
from planner.search.shares import CostedShares, SharesExplorer, cost_shares

# A plan that saves less memory than this share is not shown beside the faster one.
SAVING = 0.05


def find_plans(
    request: Request,
    *,
    top: int = 8,
    sort: str = "tokens_per_s",
    seed: int = 0,
    workers: int = 1,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    fastest_only: bool = False,
    relaxed: bool = True,
    launch: LaunchNotes = SILENT,
) -> SearchResult:
    """Pareto front of plans, tokens/s against peak memory of a GPU.

    `top`: most plans returned, the best by `sort` (a field of Plan, see SORT_KEYS). `seed`: of
    the layout solver; `workers`: layouts solved at a time. An equal seed repeats the result
    exactly, with any number of workers, unless `time_limit_s` cuts the search short: it begins with
    the call, and only costing every shape once, which is what even the worst front needs, is always
    finished. Ctrl-C, once
    plans are known, ends it like a time limit: the best front so far, which says so in `stopped`.
    `progress(what, done, total)` is called as it goes. `fastest_only`: stop once no plan can be
    faster than the first; what lies below it on the front is then not searched. `relaxed`: where
    nothing fits, search what would. `launch`: what launch writers say of the job and its plans,
    which becomes a note.
    UsageError if no configuration is legal; NothingFitsError if none fits.
    """
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS, "known: " + ", ".join(SORT_KEYS))
    if time_limit_s is not None and not 0 < time_limit_s < float("inf"):
        raise UsageError(f"time_limit_s {time_limit_s:g}: give seconds above 0, or None")
    effort = Effort(SolverOptions(seed=seed), time_limit_s, workers=workers)
    if is_pool(request.gpus):
        from planner.search.pools.search import search_pool

        return search_pool(request, top=top, sort=sort, effort=effort, progress=progress)
    started = time.perf_counter()
    job = request.resolve()
    shares = cost_shares(job, _launchable_cost(job, launch), effort.deadline)
    explorer, rungs = _explore(shares, effort, progress, fastest_only)
    rungs = [explorer.lighter_equal(rung) for rung in rungs]
    points = [rung.point for rung in rungs if rung.point is not None]
    if not points and explorer.stopped == "interrupted":
        raise KeyboardInterrupt
    if not points:
        from planner.search.infeasible import nothing_fits

        raise nothing_fits(request, shares, explorer, progress, relaxed=relaxed)
    shown = _short_front(points)
    plans = [_plan(shares.jobs[point.source], point, _gap(rungs, point)) for point in shown]
    plans.sort(key=lambda plan: sort_value(plan, sort))
    note = launch.of_plans(plans[:top], request, shares.job)
    thinned = explorer.exact_front_size() - len(plans)
    return SearchResult(
        planner_version=__version__,
        request=request,
        job=job_summary(shares.job, request),
        counts=_counts(shares, explorer, rungs, time.perf_counter() - started),
        plans=tuple(plans[:top]),
        proven=all(rung.gap <= TIE for rung in rungs),
        gap=max(rung.gap for rung in rungs),
        stopped=explorer.stopped,
        notes=(
            *((note,) if note else ()),
            *stop_notes(explorer.stopped, time_limit_s),
            *_notes(shares, max(0, thinned), len(plans) - top),
        ),
        rule_counts=shares.rule_counts,
    )


def _launchable_cost(job: Job, launch: LaunchNotes) -> Callable[[Job], CostedJob]:
    """How to cost the job at a share of the offload: UsageError where the framework could launch
    the job, but not with that share."""
    launchable = launch.of_job(job.decided()[0]) is None

    def cost(own: Job) -> CostedJob:
        note = launch.of_job(own) if launchable else None
        if note is not None:
            raise UsageError(note)
        return cost_job(own)

    return cost


def _explore(
    shares: CostedShares, effort: Effort, progress: Progress | None, fastest_only: bool
) -> tuple[SharesExplorer, list[Rung]]:
    """Search among plans that are safe to recommend; without any, among those that may fit.

    Also when the time is over: what is said of a job that fits nowhere is about the latter.
    """
    for probability in (RECOMMENDED_FIT_PROBABILITY, LEAST_FIT_PROBABILITY):
        explorer = shares.explorer(effort, progress, probability)
        rungs = explorer.explore(fastest_only)
        if explorer.stopped == "interrupted" or any(own.point is not None for own in rungs):
            break
    return explorer, rungs


def _short_front(points: list[Point]) -> list[Point]:
    """Points that none dominates, thinned to those that differ by more than the error bars."""
    unique = list(dict.fromkeys(points))
    pace = np.array([own.pace for own in unique])
    peak = np.array([own.peak for own in unique])
    kept = thin(pace, peak, front(pace, peak), TIE, SAVING)
    return [unique[index] for index in kept.tolist()]


def _gap(rungs: list[Rung], point: Point) -> float:
    """What a plan of no more memory could still save: the tightest rung that holds the point."""
    return min(rung.gap for rung in rungs if rung.point == point)


def _plan(costed_job: CostedJob, point: Point, gap: float) -> Plan:
    return job_plan(
        costed_job.cost_model,
        costed_job.costed,
        point.row,
        point.layout,
        costed_job.candidates.columns,
        "optimal" if gap <= TIE else "feasible",
        gap,
    )


def _counts(
    shares: CostedShares, explorer: SharesExplorer, rungs: list[Rung], seconds: float
) -> Counts:
    reports = [own.candidates.report for own in shares.jobs]
    limit = shares.job.hbm_limit_bytes
    return Counts(
        considered=sum(own.considered for own in reports),
        legal=sum(own.legal for own in reports),
        fitting=sum(int((own.peak <= limit).sum()) for own in explorer.explorers),
        solved=explorer.solved_shapes(),
        skipped=explorer.unable_to_improve(rungs),
        seconds=seconds,
        costing_seconds=shares.seconds,
    )


def _notes(shares: CostedShares, thinned: int, cut: int) -> tuple[str, ...]:
    notes = [*shares.jobs[0].candidates.notes, *_share_notes(shares)]
    if thinned:
        notes.append(
            f"{thinned:,} more plans lie on the exact front, within {TIE:.0%} of the time or "
            f"{SAVING:.0%} of the memory of those found, or far slower"
        )
    if cut > 0:
        notes.append(f"{cut} more plans on the short front; --top shows them")
    return tuple(notes)


def _share_notes(shares: CostedShares) -> tuple[str, ...]:
    """Which shares of the optimizer, and activations of which modules, were searched."""
    jobs = [own.job for own in shares.jobs]
    return (
        *_untried_notes(shares.untried),
        *_optimizer_notes(jobs, shares.left_out),
        *_activation_notes(jobs, shares.left_out),
    )


def _untried_notes(untried: Sequence[Job]) -> tuple[str, ...]:
    """That the time limit came before some of what was to be searched."""
    if not untried:
        return ()
    return (
        f"no time was left for {len(untried)} of the choices of what is offloaded: the most that a "
        "plan of theirs could save is not known",
    )


def _optimizer_notes(jobs: Sequence[Job], left_out: Sequence[Job]) -> tuple[str, ...]:
    tried = list(dict.fromkeys(own.optimizer_offload for own in jobs))
    rest = [own.optimizer_offload for own in left_out if own.optimizer_offload not in tried]
    if len(tried) + len(rest) == 1:
        return ()
    note = (
        f"optimizer offload: the best of the shares {', '.join(f'{one:g}' for one in tried)}; no "
        "measured run offloads, so the error bars do not cover the CPU's part"
    )
    if rest:
        shown = ", ".join(f"{share:g}" for share in dict.fromkeys(rest))
        note += f"; no configuration is legal with {shown} of it on the CPU"
    return (note,)


def _activation_notes(jobs: Sequence[Job], left_out: Sequence[Job]) -> tuple[str, ...]:
    every = (*jobs, *left_out)
    tried = dict.fromkeys(own.activation_offload for own in every)
    if len(tried) == 1:
        return ()
    named = "; ".join(" + ".join(modules) or "none" for modules in tried)
    return (
        f"activation offload: the best of {named}; few measured runs offload, so the error bars "
        "do not cover the copies",
    )


def job_summary(job: Job, request: Request) -> JobSummary:
    """The resolved job in words and totals."""
    count = parameter_count(job.model)
    gpu = job.cluster.gpu
    given = request.resolve().cluster if request is not None else job.cluster
    values: dict[str, Any] = {
        "model": job.model.name,
        "model_alias": job.model_alias,
        "parameters": count.total,
        "active_parameters": count.active,
        "cluster": job.cluster.describe(),
        "gpu": gpu.name,
        "num_gpus": given.num_gpus,
        "used_gpus": job.cluster.num_gpus,
        "usable_bytes": gpu.hbm_usable_bytes,
        "limit_bytes": job.hbm_limit_bytes,
        "peak_flop_per_s": gpu.peak(half_precision(gpu)),
        "precision_peak_flop_per_s": gpu.peak(job.precision),
        "framework": job.framework.name,
        "framework_version": job.framework.version,
        "precision": job.precision,
        "optimizer": job.optimizer.name,
        "seq": job.seq,
        "batch_target_sequences": job.batch.sequences,
        "assumed": hardware_ledger((job,)),
    }
    return JobSummary(**values)
