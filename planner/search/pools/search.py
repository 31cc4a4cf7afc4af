"""Plans for GPUs of several types: every stage on one type, layers by its speed and memory.

All shapes whose stages fill each part are searched (`planner.search.pools.explorer`), until the
front is complete at the resolution asked for, in bytes of the largest memory;
with what each part does alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from constraints.errors import ConstraintError
from constraints.numbers import IntArray
from hardware.errors import HardwareError
from hardware.load import parse_gpus
from planner.job.errors import UsageError
from planner.job.pool import Pool
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.shapes import no_legal_shape, rule_context
from planner.predict.space import enumerate_shapes, legal_shapes
from planner.search.costed import likely_limit_bytes
from planner.search.exact_front import front
from planner.search.infeasibility import Verdict, silent
from planner.search.limit_results import Effort, Progress
from planner.search.outcome import (
    best_point,
    front_points,
    job_summary,
    of_front,
    proof_of,
    stop_notes,
)
from planner.search.pools.cost import PoolModel
from planner.search.pools.explorer import PoolExplorer, PoolPoint
from planner.search.pools.jobs import pool_jobs
from planner.search.pools.plan import pool_plan
from planner.search.result import Counts, SearchResult
from planner.search.trial import try_job


def pool_shapes(pool: Pool, model: PoolModel) -> tuple[dict[str, IntArray], int]:
    """(shapes whose stages fill each part and that are legal on all of them, how many were
    considered). UsageError if there are none."""
    considered = 0
    found: list[set[tuple[int, ...]]] = []
    names: tuple[str, ...] = ()
    for job in model.jobs:
        ctx = rule_context(job)
        shapes = enumerate_shapes(ctx)
        columns, report = legal_shapes(ctx, shapes)
        if not report.legal:
            raise UsageError(no_legal_shape(ctx, shapes))
        considered = max(considered, report.considered)
        names = tuple(columns)
        table = np.column_stack([columns[name] for name in names])
        stage = columns["tp"] * columns["cp"] * columns["dp"]
        fills = np.ones(len(stage), dtype=np.bool_)
        for part in pool.parts:
            fills &= part.num_gpus % stage == 0
        found.append({tuple(values) for values in table[fills].tolist()})
    rows = sorted(set.intersection(*found))
    if not rows:
        counts = " and ".join(str(part.num_gpus) for part in pool.parts)
        raise UsageError(
            f"no legal configuration has pipeline stages that fill {counts} GPUs: tp·cp·dp must "
            "divide each number, and the sum of the quotients is pp, so pp is at least "
            f"{len(pool.parts)}; give numbers with a larger common divisor, or looser conditions"
        )
    table = np.array(rows, dtype=np.int64)
    return {name: table[:, index] for index, name in enumerate(names)}, considered


def search_pool(
    request: Request,
    *,
    top: int | None = None,
    sort: str,
    effort: Effort,
    progress: Progress | None = None,
    fastest_only: bool = False,
    short: int | None = None,
    relaxed: bool = True,
    verdict: Verdict = silent,
) -> SearchResult:
    """`planner.find_plans` for GPUs of several types; see there."""
    started = time.perf_counter()
    pool, jobs = pool_jobs(request)
    model = PoolModel(jobs)
    columns, considered = pool_shapes(pool, model)
    explorer = PoolExplorer(pool, model, columns, effort, progress)
    limits = [likely_limit_bytes(job, request.fit_probability) for job in jobs]
    explorer.search_within(limits)
    plan_of = partial(_plan, explorer)
    limit_results = front(
        explorer, explorer.limit_bytes, fastest_only=fastest_only, short=short,
        resolution=jobs[0].resolution, recommend=partial(best_point, plan_of),
    )  # fmt: skip
    known = front_points(limit_results, explorer.stopped)
    points = [point for point in known if isinstance(point, PoolPoint)]
    if not points:
        from planner.search.pools.infeasible import pool_nothing_fits

        raise pool_nothing_fits(
            request, explorer, limit_results, _fastest, relaxed=relaxed, verdict=verdict
        )
    found = of_front(
        points, limit_results, plan_of, sort=sort, top=top, resolution=jobs[0].resolution,
        whole=short is None and not (fastest_only or explorer.tired), stopped=explorer.stopped,
    )  # fmt: skip
    return SearchResult(
        request=request,
        job=job_summary(jobs, pool.num_gpus, pool.parts),
        counts=Counts(
            considered=considered,
            legal=len(explorer.orders),
            fitting=explorer.fitting(),
            solved=len(explorer.solved_rows),
            skipped=len(explorer.orders) - len(explorer.solved_rows | explorer.undecided),
            seconds=time.perf_counter() - started,
            costing_seconds=explorer.costing_s,
        ),
        notes=(
            *stop_notes(explorer.stopped, effort.time_limit_s),
            *(
                ()
                if fastest_only or explorer.stopped
                else alone_notes(request, pool, found["plans"][0])
            ),
        ),
        proof=proof_of(limit_results, explorer.solver_bounds),
        **found,
    )


def _fastest(request: Request, effort: Effort) -> Plan:
    """The fastest plan of a request; NothingFitsError without what would fit."""
    return search_pool(
        request, top=1, sort="tokens_per_s", effort=effort, fastest_only=True, relaxed=False
    ).plans[0]


def _plan(explorer: PoolExplorer, point: PoolPoint, gap: float) -> Plan:
    counts = explorer.kernel_layout(point.row, point.layout)
    return pool_plan(
        explorer.model, explorer.costed, explorer.columns, point, counts, gap, OPTIMAL_WITHIN
    )


def alone_notes(request: Request, pool: Pool, best: Plan) -> Iterator[str]:
    """What each part does alone, so that one sees what the others add."""
    from planner.predict.plan_text import step_time_text

    best_sample_s = best.step_time_s / best.gbs
    for text in pool.texts:
        try:
            trial = try_job(request.model_copy(update={"gpus": text}).resolve())
        except (UsageError, HardwareError, ConstraintError):
            trial = None
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
