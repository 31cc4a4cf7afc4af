"""The search of a pool's shapes: the fastest layout within some memory limits.

All shapes are bounded, visited in order of their bounds, and laid out by CP-SAT for every order of
the parts along the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from constraints.layout import broken_but_memory
from constraints.layout_context import Recomputation
from constraints.numbers import IntArray
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.pool import Pool
from planner.job.recomputation import recomputation
from planner.predict.configuration import Configuration, even_layout, row_degrees
from planner.predict.cost_model import CostedShapes, KernelLayout
from planner.search.layout_model import solve_layout
from planner.search.limit_results import (
    TIE,
    Effort,
    LimitResult,
    LimitSearch,
    Point,
    Progress,
    Spent,
    seconds_left,
)
from planner.search.pools.cost import CostedPool, PoolModel
from planner.search.pools.terms import PartTerms, part_terms, pool_bound_s, pool_terms
from planner.search.result import SolverBound
from planner.search.terms import recompute_code

Parts = tuple[int, ...]
# Bound on the sample time of a shape in one order, whether it is the tight one, row, parts.
Waiting = tuple[float, bool, int, Parts]


@dataclass(frozen=True)
class PoolPoint(Point):
    """A costed layout. `fill`: largest share of a GPU's memory that a stage takes at its peak;
    `peak`: as many bytes of the largest memory. `parts`: of the stages."""

    parts: Parts = ()
    fill: float = 0.0


class PoolExplorer(LimitSearch):
    """Finds the fastest plan of a pool within each memory limit."""

    limit_step, limit_steps = 0.85, 12

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
        super().__init__(effort, Spent(effort.deadline), progress)
        self.limits: tuple[float, ...] = ()
        self._ladder: tuple[float, ...] = ()
        self.solved: list[PoolPoint] = []
        self.solved_rows: set[int] = set()
        # Never solved, and not shown unable to improve the front.
        self.undecided: set[int] = set()
        self.costing_s = 0.0
        # Terms of shapes on each part, and sample times that no layout of a shape beats within a
        # share of the memory.
        self._terms: dict[int, tuple[PartTerms, ...]] = {}
        self._proven: dict[tuple[int, Parts], list[tuple[float, float]]] = {}
        # What CP-SAT proved.
        self.solver_bounds: list[SolverBound] = []

    @cached_property
    def costed(self) -> CostedPool:
        """All shapes on all parts."""
        # The first call of a process loads the kernels, or compiles them: not part of their speed.
        self.model.cost_shapes({name: values[:1] for name, values in self.columns.items()})
        started = time.perf_counter()
        found = self.model.cost_shapes(self.columns)
        self.costing_s = time.perf_counter() - started
        return found

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
        """No layout of a shape has a better sample time, whatever the memory."""
        return np.array([self._balanced_s(row) for row in range(len(self.orders))]) / self.gbs

    @cached_property
    def _unbounded(self) -> list[Waiting]:
        """Every shape in every order with the sample time that no memory limit lets it beat."""
        return [
            (float(self.balanced[row]), False, row, parts)
            for row, orders in enumerate(self.orders)
            for parts in orders
        ]

    def bound(self, row: int, parts: Parts, share: float) -> float:
        """No layout of a shape in this order is faster within a share of the limits."""
        totals = self.model.models[0].totals
        shape = self.costed.parts[0].shapes[row]
        bound_s = pool_bound_s(
            self._part_terms(row),
            parts,
            [share * limit for limit in self.limits],
            totals,
            self._code(row),
            float(shape[f.SHAPE["grad_acc"]]),
            float(shape[f.SHAPE["vpp"]]),
            self.model.models[0].job_inputs.standalone_vocab,
        )
        return bound_s / float(self.gbs[row])

    def _part_terms(self, row: int) -> tuple[PartTerms, ...]:
        if row not in self._terms:
            self._terms[row] = tuple(
                part_terms(model, part, row, self._code(row))
                for model, part in zip(self.model.models, self.costed.parts, strict=True)
            )
        return self._terms[row]

    def _code(self, row: int) -> int:
        return recompute_code(self._recomputations[int(self.columns["recompute"][row])])

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
        share = 1.0 / float(shape[f.SHAPE["vpp"]])
        fixed = max(float(part.steps[row, f.STEP_HOST]) for part in self.costed.parts)
        return (float(shape[f.SHAPE["grad_acc"]]) - share) * slowest + share * total + fixed

    def _recomputes_all(self, row: int) -> bool:
        return self._recomputations[int(self.columns["recompute"][row])] == "all"

    def search_within(self, limits: Sequence[float]) -> None:
        """Begin a search under the limits of the parts, bytes."""
        self.limits = tuple(limits)
        self.solved, self.solver_bounds, self._proven = [], [], {}
        self.spent.solves, self.spent.work_s = 0, 0.0

    @property
    def limit_bytes(self) -> float:
        """The largest limit: others are shares of it."""
        return max(self.limits)

    @property
    def tired(self) -> bool:
        """Whether the work that is allowed is done."""
        return self.spent.tired(self.effort)

    def descend(self, limits: Sequence[float]) -> None:
        """Take other limits, in bytes of the largest memory."""
        self._ladder = tuple(limits)

    def known(self, row: int, parts: Parts, share: float) -> float:
        """No layout of a shape in this order has a better sample time, by what was proven within as
        much memory or more."""
        proven = (bound for at, bound in self._proven.get((row, parts), ()) if at >= share)
        return max(proven, default=0.0)

    def prove(self, row: int, parts: Parts, share: float, bound: float) -> None:
        """Note such a sample time."""
        if bound > self.known(row, parts, share):
            self._proven.setdefault((row, parts), []).append((share, bound))

    def climb(self, index: int, target_sample_s: float = np.inf) -> LimitResult:
        """The fastest plan whose stages take at most that share of their limits which a limit is of
        the largest.

        Shapes wait with a quick bound, and again with a tight one once they come first.
        """
        limit_bytes = self._ladder[index]
        share = limit_bytes / self.limit_bytes
        best = min(
            (pool_point for pool_point in self.solved if pool_point.fill <= share),
            key=_by_time,
            default=None,
        ) or self._best_even(share)
        waiting: list[Waiting] = [
            each
            if each[2:] not in self._proven
            else (max(each[0], self.known(*each[2:], share)), *each[1:])
            for each in self._unbounded
        ]
        heapify(waiting)
        left = np.inf
        while waiting:
            bound, tight, row, parts = heappop(waiting)
            target = min(target_sample_s, np.inf if best is None else best.sample_s)
            if np.isinf(bound) or bound * (1.0 + TIE) >= target or self._is_over():
                left = min(left, bound)
                self._leave_open(waiting, target, (bound, tight, row, parts))
                break
            if not tight:
                item = max(bound, self.bound(row, parts, share))
                self.prove(row, parts, share, item)
                heappush(waiting, (item, True, row, parts))
                continue
            point, solved = self._solve(row, parts, share, target, bound)
            solved = max(bound, solved)
            self.prove(row, parts, share, solved)
            mode = self.model.jobs[0].recompute[int(self.columns["recompute"][row])]
            self.solver_bounds.append(
                SolverBound(
                    degrees=row_degrees(self.columns, row),
                    recompute=mode.name,
                    parts=parts,
                    limit_bytes=limit_bytes,
                    sample_s=solved,
                )
            )
            if point is not None and (best is None or point.sample_s < best.sample_s):
                best = point
            left = min(left, solved)
        bound = left if best is None else min(left, best.sample_s)
        return LimitResult(limit_bytes, best, bound)

    def _best_even(self, share: float) -> PoolPoint | None:
        """Of the even layouts that fit on any of the GPUs within a share of their limits, the one
        that is fastest on the slowest: what is known before the first solve."""
        steps = np.array([part.steps for part in self.costed.parts])
        fits = steps[:, :, f.STEP_PEAK_BYTES].max(axis=0) <= share * min(self.limits)
        sample_s = np.where(fits, steps[:, :, f.STEP_TIME].max(axis=0) / self.gbs, np.inf)
        row = int(np.argmin(sample_s))
        if not fits[row] or not self._may_be_even(row):
            return None
        self.solved.append(self.cost(row, self.orders[row][0], self.even(row)))
        return self.solved[-1]

    def _may_be_even(self, row: int) -> bool:
        """Whether the even layout of a shape obeys the rules, but for memory."""
        parts = self.orders[row][0]
        _, ctx = pool_terms(self.model, self.costed, row, parts, self.limits)
        return not broken_but_memory(self.even(row), ctx)

    def _is_over(self) -> bool:
        return self.spent.is_over or self.tired

    def _leave_open(self, waiting: Sequence[Waiting], target: float, first: Waiting) -> None:
        """Note the shapes that may still beat `target`."""
        may = (waiting for waiting in (first, *waiting) if waiting[0] * (1.0 + TIE) < target)
        self.undecided.update(row for _, _, row, _ in may)

    def _solve(
        self, row: int, parts: Parts, share: float, target: float, bound: float
    ) -> tuple[PoolPoint | None, float]:
        """(a layout that beats `target` by more than a tie, the sample time that none beats)."""
        gbs = float(self.gbs[row])
        limits = [share * limit for limit in self.limits]
        terms, ctx = pool_terms(self.model, self.costed, row, parts, limits)
        within_s = (bound * gbs, target / (1.0 + TIE) * gbs)
        options = replace(self.effort.options, wall_s=seconds_left(self.effort.deadline))
        solution = solve_layout(terms, ctx, options, within_s)
        self.spent.add_solve(solution.effort_s)
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
        fill = float((stages[:, f.STAGE_PEAK] / limits).max())
        sample_s = float(step[f.STEP_TIME]) / float(self.gbs[row])
        return PoolPoint(row, layout, sample_s, fill * self.limit_bytes, parts=parts, fill=fill)

    def kernel_layout(self, row: int, layout: Layout) -> KernelLayout:
        """Counts of pieces per stage."""
        configuration = Configuration.of_row(self.model.jobs[0], self.columns, row, layout)
        return configuration.kernel_layout(self.model.models[0])

    def fitting(self) -> int:
        """Shapes whose even layout fits in some order."""
        peaks = self._even_peaks()
        sure = peaks.max(axis=0) <= min(self.limits)
        open_rows = np.flatnonzero(~sure & (peaks.min(axis=0) <= max(self.limits)))
        return int(sure.sum()) + sum(self.even_fill(row) <= 1.0 for row in open_rows.tolist())

    def lightest(self) -> int:
        """The shape whose even layout has the smallest peak."""
        return int(np.argmin(self._even_peaks().min(axis=0)))

    def _even_peaks(self) -> Array:
        """[part, shape] peak bytes in even layouts, all stages on one part."""
        return np.array([part.steps[:, f.STEP_PEAK_BYTES] for part in self.costed.parts])

    def even_fill(self, row: int) -> float:
        """Least share of its fullest GPU's memory that a shape's even layout takes in any order."""
        layout = self.kernel_layout(row, self.even(row))
        peaks = [
            model.cost_layout(part, row, layout)[1][:, f.STAGE_PEAK] / limit
            for model, part, limit in zip(
                self.model.models, self.costed.parts, self.limits, strict=True
            )
        ]
        return min(
            max(float(peaks[part][stage]) for stage, part in enumerate(parts))
            for parts in self.orders[row]
        )

    def even(self, row: int) -> Layout:
        """The even layout of a shape."""
        job = self.model.jobs[0]
        pp, vpp = int(self.columns["pp"][row]), int(self.columns["vpp"][row])
        mode = job.recompute[int(self.columns["recompute"][row])]
        return even_layout(job, pp, vpp, mode)


def _by_time(point: PoolPoint) -> tuple[float, float, int]:
    return point.sample_s, point.fill, point.row


def piece_seconds(part: CostedShapes, row: int, recomputes: bool) -> Array:
    """Seconds of one micro-batch in each piece of a shape, exposed traffic included."""
    costs = part.piece_costs(row)
    columns = [*f.FORWARD_COLUMNS, *f.BACKWARD_COLUMNS, *(f.RECOMPUTE_COLUMNS * recomputes)]
    seconds: Array = costs[:, columns].sum(axis=1)
    return seconds
