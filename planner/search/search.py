"""`search`: from a request to a proven Pareto front."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hardware.load import parse_gpus
from planner.job.errors import CannotTellError, UsageError, unknown_name
from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.predict.plan_text import step_time_text
from planner.predict.threads import OutOfTimeError, until
from planner.predict.uncertainty.differences import standing_of
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.predict.uncertainty.selection import Luck, luck_of
from planner.search.exact_front import front, thin_points, undominated
from planner.search.infeasibility import Verdict, silent
from planner.search.launchable import SILENT, LaunchNotes
from planner.search.layout_model import SolverOptions
from planner.search.limit_results import MOST_WORK_S, TIE, WORK_OF_TIME, Effort, Point, Progress
from planner.search.near_plans import rivals_of
from planner.search.outcome import (
    SORT_KEYS,
    best_point,
    front_points,
    gap_of,
    job_summary,
    of_front,
    proof_of,
    stop_notes,
)
from planner.search.result import Counts, SearchResult
from planner.search.sample_rules import pack_note, rule_notes, with_pack_length
from planner.search.shares import CostedJob, CostedShares, SharesExplorer, cost_job, cost_shares
from planner.search.trial import try_job
from planner.search.unused import mtp_note, unused_techniques

# Costing every configuration once may take this many seconds, whatever the time limit.
COSTING_S = 2.0
# Most plans shown that may fit, but less surely than requested.
MOST_RISKIER = 5
# Further share of a search's work to find those.
RISKIER_WORK = 0.1


def find_plans(
    request: Request,
    *,
    top: int | None = None,
    sort: str = "tokens_per_s",
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    fastest_only: bool = False,
    short: int | None = None,
    relaxed: bool = True,
    launch: LaunchNotes = SILENT,
    verdict: Verdict = silent,
) -> SearchResult:
    """Pareto front of plans, tokens/s against peak memory per GPU, among plans that fit as surely
    as requested; complete at the request's `resolution`.

    `top`: most plans returned, the best by `sort` (a field of Plan, see SORT_KEYS); the recommended
    one is always included. `seed`: seed of the layout solver. Equal seeds give equal results unless
    `time_limit_s` cuts the search short. The limit starts with the call; costing every
    configuration once, which even the worst front needs, gets at least COSTING_S. Ctrl-C, once
    plans are known, ends the search like a time limit, with the best front so far and a reason in
    `stopped`.

    `progress(what, done, total)` is called regularly. `fastest_only`: find only plans as fast as
    the fastest, one of which is recommended. `short`: find those and lighter plans, until there are
    this many that people would choose between; the recommended plan is the same. `relaxed`: if
    nothing fits, search for what would; `verdict` is called before that. `launch`: what launch
    writers say about the job and its plans, which becomes a note.

    UsageError if no configuration is legal; NothingFitsError if none fits; CannotTellError if time
    is up before every configuration is costed.
    """
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS, "known: " + ", ".join(SORT_KEYS))
    if time_limit_s is not None and not 0 < time_limit_s < float("inf"):
        raise UsageError(f"time_limit_s {time_limit_s:g}: give seconds above 0, or None")
    work_s = MOST_WORK_S if time_limit_s is None else WORK_OF_TIME * time_limit_s
    effort = Effort(SolverOptions(seed=seed), time_limit_s, most_work_s=work_s)
    started = time.perf_counter()
    asked, request = request, with_pack_length(request, effort)
    job = request.resolve()
    shares = _costed_in_time(job, launch, effort)
    explorer = shares.explorer(effort, progress)
    limit_results = front(
        explorer, explorer.limit_bytes, fastest_only=fastest_only, short=short,
        resolution=job.resolution, recommend=partial(best_point, shares.plan),
    )  # fmt: skip
    points = front_points(limit_results, explorer.stopped)
    riskier = () if fastest_only else _riskier(shares, explorer, points)
    if not points:
        from planner.search.infeasible import nothing_fits

        raise nothing_fits(
            request, shares, explorer, relaxed=relaxed, riskier=riskier, verdict=verdict
        )
    found = of_front(
        points, limit_results, shares.plan, sort=sort, top=top, resolution=job.resolution,
        whole=short is None and not fastest_only, stopped=explorer.stopped,
    )  # fmt: skip
    note = launch.of_plans(found["plans"], request, shares.job)
    taken = found["plans"][found["recommended"] - 1]
    return SearchResult(
        request=request,
        job=job_summary(shares.job, job.cluster.num_gpus),
        counts=_counts(shares, explorer, time.perf_counter() - started),
        riskier=riskier,
        unused=unused_techniques(shares.job, taken, request.without),
        notes=(
            *((note,) if note else ()),
            *stop_notes(explorer.stopped, time_limit_s),
            *shares.jobs[0].candidates.notes,
            *_share_notes(shares),
            *mtp_note(shares.job, taken),
            *pack_note(asked, request),
            *(() if fastest_only or explorer.stopped else alone_notes(request, job, taken)),
            *(() if fastest_only or explorer.stopped else rule_notes(request, job, taken, effort)),
        ),
        rule_counts=shares.rule_counts,
        proof=proof_of(limit_results, explorer),
        luck=_luck(found["plans"], shares.job, explorer),
        **found,
    )


def _luck(plans: Sequence[Plan], job: Job, explorer: SharesExplorer) -> Luck:
    """How much of the fastest plan's lead may be prediction error, because it was chosen as the
    best of many."""
    fastest = max(plans, key=lambda plan: plan.tokens_per_s)
    winner = standing_of(fastest, "", job.model.moe is not None)
    return luck_of(winner, rivals_of(explorer.explorers))


def _riskier(
    shares: CostedShares, explorer: SharesExplorer, points: Sequence[Point]
) -> tuple[Plan, ...]:
    """Plans that may fit, but less surely than requested, and are faster than all plans that fit
    surely enough; fastest first.

    Their predicted peaks are within the available memory.
    """
    if explorer.stopped:
        return ()
    target = min((point.sample_s for point in points), default=np.inf) / (1.0 + TIE)
    effort = replace(explorer.effort, most_work_s=RISKIER_WORK * explorer.effort.most_work_s)
    bold = shares.explorer(effort, explorer.progress, probability=0.0)
    limits = [limit for limit in bold.limits if limit > explorer.limit_bytes]
    if not limits:
        return ()
    limit_results = bold.within(limits, [target] * len(limits))
    faster = [
        limit_result.point
        for limit_result in limit_results
        if limit_result.point is not None and limit_result.point.sample_s <= target
    ]
    return tuple(
        shares.plan(point, gap_of(limit_results, point))
        for point in thin_points(undominated(faster))[:MOST_RISKIER]
    )


def _costed_in_time(job: Job, launch: LaunchNotes, effort: Effort) -> CostedShares:
    """`launchable_shares` with at least COSTING_S seconds, even if the time limit is shorter,
    because there is no answer without costs."""
    deadline = effort.deadline
    try:
        with until(None if deadline is None else max(deadline, effort.started_s + COSTING_S)):
            return launchable_shares(job, launch, deadline)
    except OutOfTimeError as error:
        raise CannotTellError(
            f"the time limit of {effort.time_limit_s:g} s ended before every configuration was "
            f"costed once ({error}): give more time, or limits such as --fix tp=8"
        ) from None


def launchable_shares(
    job: Job, launch: LaunchNotes = SILENT, deadline: float | None = None
) -> CostedShares:
    """The job costed at each choice of offload. Choices that the framework could not launch are
    left out if others can be launched."""
    launchable = launch.of_job(job.decided()[0]) is None

    def cost(job: Job) -> CostedJob:
        note = launch.of_job(job) if launchable else None
        if note is not None:
            raise UsageError(note)
        return cost_job(job)

    return cost_shares(job, cost, deadline)


def _counts(shares: CostedShares, explorer: SharesExplorer, seconds: float) -> Counts:
    reports = [job.candidates.report for job in shares.jobs]
    limit = likely_limit_bytes(shares.job, 0.0)
    return Counts(
        considered=sum(report.considered for report in reports),
        legal=sum(report.legal for report in reports),
        fitting=sum(int((explorer.peak <= limit).sum()) for explorer in explorer.explorers),
        solved=explorer.solved_shapes(),
        skipped=explorer.unable_to_improve(),
        seconds=seconds,
        costing_seconds=shares.seconds,
    )


def alone_notes(request: Request, job: Job, best: Plan) -> Iterator[str]:
    """Notes on what each cluster of a pool achieves alone, to show what the others add."""
    best_sample_s = best.step_time_s / best.gbs
    for text in job.pool.texts if job.pool else ():
        trial = try_job(request.model_copy(update={"gpus": text}).resolve)
        plan = None if trial is None else trial.plan()
        if plan is None:
            yield f"{text} alone: no plan was found that fits safely"
            continue
        used = plan.degrees.gpus
        where = text if used == parse_gpus(text).num_gpus else f"{used} of {text}"
        ratio = plan.step_time_s / plan.gbs / best_sample_s
        yield (
            f"{where} alone: {step_time_text(plan)} a step of {plan.gbs:,} sequences; by the cost "
            f"model the pool is {ratio:.2f} times as fast"
        )


def _share_notes(shares: CostedShares) -> Iterator[str]:
    """Notes on the optimizer shares and offloaded modules that were searched, and on those that the
    time limit cut off."""
    jobs, left_out = [job.job for job in shares.jobs], shares.left_out
    if shares.untried:
        yield (
            f"no time was left for {len(shares.untried)} of the choices of offload and "
            "techniques; how much their plans could save is not known"
        )
    tried = dict.fromkeys(job.optimizer_offload for job in jobs)
    rest = dict.fromkeys(
        job.optimizer_offload for job in left_out if job.optimizer_offload not in tried
    )
    if len(tried) + len(rest) > 1 and not shares.jobs[0].job.optimizer.paged:
        note = (
            f"optimizer offload: the best of the shares {', '.join(f'{one:g}' for one in tried)}; "
            "no measured run offloads, so the error bars do not cover the CPU's part"
        )
        illegal = f"; no configuration is legal with {', '.join(f'{one:g}' for one in rest)} of it"
        yield f"{note}{illegal} on the CPU" if rest else note
    modules = dict.fromkeys(job.activation_offload for job in (*jobs, *left_out))
    if len(modules) > 1:
        named = "; ".join(" + ".join(some) or "none" for some in modules)
        yield (
            f"activation offload: the best of {named}; few measured runs offload, so the error "
            "bars do not cover the copies"
        )
