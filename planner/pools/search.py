"""Plans for GPUs of several types: every stage on one type, layers by its speed and memory.

All shapes whose stages fill each part are bounded, visited in order of their bounds under a ladder
of memory limits (a share of each GPU's), and laid out by CP-SAT for every order of the parts along
the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from constraints.context import IntArray
from constraints.layout import Recomputation
from constraints.rule import Layout
from planner.cost import bounds
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.cost_model import CostedShapes
from planner.cost_model import Layout as KernelLayout
from planner.errors import NothingFitsError, UsageError
from planner.pools.cost import CostedPool, PoolModel
from planner.pools.jobs import pool_jobs
from planner.pools.plan import pool_plan, pool_summary
from planner.pools.pool import Pool
from planner.pools.terms import pool_context, pool_terms
from planner.recomputation import recomputation
from planner.request import Request
from planner.result import Counts, SearchResult
from planner.search.arrays import even_layout, kernel_layout, plain_context
from planner.search.costed import (
    LEAST_FIT_PROBABILITY,
    RECOMMENDED_FIT_PROBABILITY,
    likely_limit_bytes,
)
from planner.search.explorer import TIE, Effort, Progress
from planner.search.front import front, thin
from planner.search.layout_model import solve_layout
from planner.search.shapes import rule_context
from planner.search.terms import recompute_code
from planner.space import enumerate_shapes, legal_shapes

# Share of each GPU's limit at the rungs of the memory ladder.
RUNGS = (1.0, 0.85, 0.7, 0.55)
# Plans that save less memory than this share are not shown beside a faster one.
SAVING = 0.05

Parts = tuple[int, ...]


@dataclass(frozen=True)
class PoolPoint:
    """A costed layout. `pace`: seconds of step time per sequence; `fill`: largest share of a
    GPU's memory that a stage takes at its peak."""

    row: int
    parts: Parts
    layout: Layout
    pace: float
    fill: float


@dataclass(frozen=True)
class PoolRung:
    """The fastest plan within a share of the memory, and a pace that no plan beats."""

    point: PoolPoint | None
    bound: float

    @property
    def gap(self) -> float:
        """Share of the pace that a better plan could save at most."""
        if self.point is None:
            return 0.0 if np.isinf(self.bound) else 1.0
        return max(0.0, 1.0 - self.bound / self.point.pace)


class PoolExplorer:
    """Finds the rungs of a pool's shapes."""

    def __init__(
        self,
        pool: Pool,
        model: PoolModel,
        columns: dict[str, IntArray],
        effort: Effort,
        progress: Progress | None,
    ) -> None:
        self.pool = pool
        self.model = model
        self.columns = columns
        self.effort = effort
        self.progress = progress or (lambda _what, _done, _total: None)
        self.limits: tuple[float, ...] = ()
        self.solved: list[PoolPoint] = []
        self.solved_rows: set[int] = set()
        self.solves = 0
        self.effort_s = 0.0
        self.deadline = (
            np.inf
            if effort.time_limit_s is None
            else time.perf_counter() + float(effort.time_limit_s)
        )
        self.stopped = False

    @cached_property
    def costed(self) -> CostedPool:
        """All shapes on all parts."""
        return self.model.cost_shapes(self.columns)

    @cached_property
    def orders(self) -> list[list[Parts]]:
        """Per shape, the parts of its stages in each order along the pipeline."""
        stage = self.columns["tp"] * self.columns["cp"] * self.columns["dp"]
        return [list(self.pool.stage_parts(int(size))) for size in stage]

    @cached_property
    def gbs(self) -> Array:
        """Global batch of each shape, sequences."""
        return np.asarray(self.columns["gbs"], dtype=np.float64)

    @cached_property
    def balanced(self) -> Array:
        """No layout of a shape has a better pace, whatever the memory."""
        return np.array([self._balanced_s(row) for row in range(len(self.orders))]) / self.gbs

    def bounds(self, share: float) -> Array:
        """No layout of a shape has a better pace within a share of the limits; infinite where
        none fits.

        Memory does not depend on the GPU: what does not fit where all stages have the largest
        limit fits nowhere, and what must recompute there must do so here.
        """
        codes = np.array([recompute_code(own) for own in self._recomputations], dtype=np.float64)
        limit = np.array([share * max(self.limits)])
        alone = [
            bounds.bound_shapes(
                part.shapes,
                codes[self.columns["recompute"]],
                limit,
                part.keys,
                part.costs,
                model.totals,
                model.job_inputs,
                model.framework_inputs,
                model.gpu_inputs,
                model.link_inputs,
            )[:, 0]
            for part, model in zip(self.costed.parts, self.model.models, strict=True)
        ]
        return np.asarray(np.maximum(self.balanced, np.min(alone, axis=0) / self.gbs))

    @cached_property
    def _recomputations(self) -> tuple[Recomputation, ...]:
        job = self.model.jobs[0]
        return tuple(recomputation(mode, job.framework) for mode in job.recompute)

    def _balanced_s(self, row: int) -> float:
        """A stage on part q takes at least r_q times what its work takes on part 0, where r_q is
        the least ratio of any piece: the slowest stage has at least W_0 / sum(stages_q / r_q)."""
        totals = self.model.models[0].totals
        whole = self._recomputes_all(row)
        seconds = np.array([piece_seconds(part, row, whole) for part in self.costed.parts])
        present = totals > 0
        ratios = (seconds[:, present] / seconds[0, present]).min(axis=1)
        parts = self.orders[row][0]
        stages = np.array([parts.count(part) for part in range(len(ratios))])
        slowest = float(totals @ seconds[0]) / float((stages / ratios).sum())
        total = float(totals @ seconds.min(axis=0))
        shape = self.costed.parts[0].shapes[row]
        share = 1.0 / float(shape[f.SHAPE_VPP])
        fixed = max(float(part.steps[row, f.STEP_HOST]) for part in self.costed.parts)
        return (float(shape[f.SHAPE_GRAD_ACC]) - share) * slowest + share * total + fixed

    def _recomputes_all(self, row: int) -> bool:
        return self._recomputations[int(self.columns["recompute"][row])] == "all"

    def explore(self, limits: Sequence[float]) -> list[PoolRung]:
        """The rungs under the limits of the parts, bytes."""
        self.limits = tuple(limits)
        rungs = []
        for index, share in enumerate(RUNGS):
            self.progress("solving layouts", index, len(RUNGS))
            rung = self._climb(share)
            rungs.append(rung)
            if rung.point is None:
                break
        return rungs

    def _climb(self, share: float) -> PoolRung:
        """The fastest plan whose stages take at most `share` of their limits."""
        best = min((own for own in self.solved if own.fill <= share), key=_by_pace, default=None)
        table = self.bounds(share)
        left = np.inf
        for row in np.argsort(table, kind="stable").tolist():
            bound = float(table[row])
            target = np.inf if best is None else best.pace
            if np.isinf(bound) or bound * (1.0 + TIE) >= target:
                left = min(left, bound)
                break
            if not self._may_fit(row, share):
                continue
            for parts in self.orders[row]:
                if self._exhausted():
                    return PoolRung(best, min(left, bound))
                point, solved = self._solve(row, parts, share, target, bound)
                left = min(left, solved)
                if point is not None and point.pace < target:
                    best, target = point, point.pace
        return PoolRung(best, left if best is None else min(left, best.pace))

    def _may_fit(self, row: int, share: float) -> bool:
        """Whether the mean stage fits the mean limit."""
        parts = self.orders[row][0]
        room = share * float(np.mean([self.limits[part] for part in parts]))
        return min(float(own.steps[row, f.STEP_PEAK_BOUND]) for own in self.costed.parts) <= room

    def _exhausted(self) -> bool:
        if time.perf_counter() > self.deadline:
            self.stopped = True
        spent = self.effort_s >= self.effort.most_effort_s or self.solves >= self.effort.most_solves
        return self.stopped or spent

    def _solve(
        self, row: int, parts: Parts, share: float, target: float, bound: float
    ) -> tuple[PoolPoint | None, float]:
        """(a layout that beats `target` by more than a tie, the pace that none beats)."""
        gbs = float(self.gbs[row])
        terms = pool_terms(self.model, self.costed, row, parts)
        limits = [share * limit for limit in self.limits]
        ctx = pool_context(self.model, self.costed, row, parts, limits, terms)
        within_s = (bound * gbs, target / (1.0 + TIE) * gbs)
        solution = solve_layout(terms[0], ctx, self.effort.options, within_s)
        self.solves += 1
        self.effort_s += solution.effort_s
        self.solved_rows.add(row)
        if solution.layout is None:
            return None, max(solution.bound_s / gbs, bound)
        point = self.cost(row, parts, solution.layout)
        self.solved.append(point)
        return (point if point.fill <= share else None), solution.bound_s / gbs

    def cost(self, row: int, parts: Parts, layout: Layout) -> PoolPoint:
        """The kernel's figures for a layout."""
        step, stages = self.model.cost_layout(
            self.costed, row, self.kernel_layout(row, layout), parts
        )
        limits = np.array([self.limits[part] for part in parts])
        return PoolPoint(
            row,
            parts,
            layout,
            float(step[f.STEP_TIME]) / float(self.gbs[row]),
            float((stages[:, f.STAGE_PEAK] / limits).max()),
        )

    def kernel_layout(self, row: int, layout: Layout) -> KernelLayout:
        """Counts of pieces per stage."""
        kind = self._recomputations[int(self.columns["recompute"][row])]
        ctx = plain_context(self.model.jobs[0], layout.pp, layout.vpp, kind)
        return kernel_layout(self.model.models[0], layout, ctx)

    def tightest(self) -> PoolPoint:
        """Of all even layouts, the one that overfills its GPUs least."""
        points = (
            self.cost(row, parts, self._even(row))
            for row in range(len(self.orders))
            for parts in self.orders[row]
        )
        return min(points, key=lambda own: own.fill)

    def _even(self, row: int) -> Layout:
        job = self.model.jobs[0]
        pp, vpp = int(self.columns["pp"][row]), int(self.columns["vpp"][row])
        mode = job.recompute[int(self.columns["recompute"][row])]
        return even_layout(job, pp, vpp, bool(mode.mask))


def _by_pace(point: PoolPoint) -> tuple[float, float, int]:
    return point.pace, point.fill, point.row


def piece_seconds(part: CostedShapes, row: int, recomputes: bool) -> Array:
    """Seconds of one micro-batch in each piece of a shape, exposed traffic included."""
    costs = part.piece_costs(row)
    passes = [f.PIECE_FORWARD, f.PIECE_BACKWARD, *([f.PIECE_RECOMPUTE] if recomputes else [])]
    columns = [first + offset for first in passes for offset in range(4)]
    seconds: Array = costs[:, columns].sum(axis=1)
    return seconds


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
            "divide each number, and the sum of the quotients is pp; give numbers with a larger "
            "common divisor, or more GPUs"
        )
    table = np.array(rows, dtype=np.int64)
    return {name: table[:, index] for index, name in enumerate(names)}, considered


def search_pool(
    request: Request,
    *,
    top: int,
    sort: str,
    effort: Effort,
    progress: Progress | None = None,
) -> SearchResult:
    """`planner.search.search` for GPUs of several types; see there."""
    from planner.search.search import sort_value

    started = time.perf_counter()
    pool, jobs = pool_jobs(request)
    model = PoolModel(jobs)
    columns, considered = pool_shapes(pool, model)
    explorer = PoolExplorer(pool, model, columns, effort, progress)
    rungs = _explore(explorer)
    points = [rung.point for rung in rungs if rung.point is not None]
    if not points:
        raise _nothing_fits(explorer)
    plans = [
        pool_plan(
            model,
            explorer.costed,
            columns,
            own,
            explorer.kernel_layout(own.row, own.layout),
            _gap(rungs, own),
            TIE,
        )
        for own in _short_front(points)
    ]
    plans.sort(key=lambda plan: sort_value(plan, sort))
    return SearchResult(
        planner_version=_version(),
        request=request,
        job=pool_summary(pool, jobs, request),
        counts=Counts(
            considered=considered,
            legal=len(explorer.orders),
            fitting=len({own.row for own in explorer.solved if own.fill <= 1.0}),
            solved=len(explorer.solved_rows),
            skipped=len(explorer.orders) - len(explorer.solved_rows),
            seconds=time.perf_counter() - started,
            costing_seconds=0.0,
        ),
        plans=tuple(plans[:top]),
        proven=all(rung.gap <= TIE for rung in rungs),
        stopped="time-limit" if explorer.stopped else "",
        notes=tuple(_notes(request, pool, plans[0].step_time_s / plans[0].gbs)),
    )


def _version() -> str:
    from planner._version import __version__

    return __version__


def _explore(explorer: PoolExplorer) -> list[PoolRung]:
    """Search among plans that are safe to recommend; without any, among those that may fit."""
    for probability in (RECOMMENDED_FIT_PROBABILITY, LEAST_FIT_PROBABILITY):
        limits = [likely_limit_bytes(job, probability) for job in explorer.model.jobs]
        rungs = explorer.explore(limits)
        if explorer.stopped or any(rung.point is not None for rung in rungs):
            break
    return rungs


def _short_front(points: Sequence[PoolPoint]) -> list[PoolPoint]:
    unique = list(dict.fromkeys(points))
    pace = np.array([own.pace for own in unique])
    fill = np.array([own.fill for own in unique])
    kept = thin(pace, fill, front(pace, fill), TIE, SAVING)
    return [unique[index] for index in kept.tolist()]


def _gap(rungs: Sequence[PoolRung], point: PoolPoint) -> float:
    return min(rung.gap for rung in rungs if rung.point == point)


def _nothing_fits(explorer: PoolExplorer) -> NothingFitsError:
    """Why no plan fits: the even layout that comes nearest."""
    own = explorer.tightest()
    return NothingFitsError(
        "no configuration fits all GPUs: the nearest even layout takes "
        f"{own.fill:.0%} of what its fullest GPU can likely hold; give more GPUs, a shorter "
        "--seq, --optimizer adamw-8bit, or --optimizer-offload"
    )


def _notes(request: Request, pool: Pool, pace_s: float) -> Iterator[str]:
    """What each part does alone, so that one sees what the others add."""
    from planner.search.search import search

    for text in pool.texts:
        try:
            alone = search(request.model_copy(update={"gpus": text}), top=1)
        except (NothingFitsError, UsageError) as error:
            reason = str(error).splitlines()[0].rstrip(":")
            yield f"{text} alone: {reason}"
            continue
        best = alone.plans[0]
        ratio = best.step_time_s / best.gbs / pace_s
        yield (
            f"{text} alone: {best.step_time_s:.3g} s a step; the pool is {ratio:.2f} times as fast"
        )
