"""Epsilon-constraint search: the fastest plan under each limit of a memory ladder.

At each limit the shapes are visited in order of their lower bound. A shape is skipped once its
bound cannot beat the best plan by more than TIE. Other shapes get their layout from CP-SAT, and the
kernel costs what it finds. So the gap between the best plan and the lowest bound of all layouts is
known at each limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from constraints.layout_context import LayoutContext, shared_count
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.predict.configuration import Configuration, even_layout, row_degrees
from planner.predict.cost_model import Columns, CostedShapes, CostModel
from planner.predict.mixture import cost_layout
from planner.search import walk
from planner.search.block_bound import NO_BOUND, Bound
from planner.search.bounded_shapes import TIGHTEST, BoundedShapes
from planner.search.front import Floats
from planner.search.layout_model import (
    GAP_LIMIT,
    LayoutSolution,
    first_blocks,
    first_layout,
    solve_layout,
)
from planner.search.limit_results import Effort, LimitResult, Look, Point, Spent
from planner.search.result import SolverBound

# Tolerance for rounding of floats.
_SAME = 1e-12
# Number of undecided solves after which a shape is no longer tried first, and no longer tried at
# all.
IN_VAIN = (2, 4)
# Number of shapes that get bounds from the cost core together.
_BOUNDED_AT_ONCE = 1024


class Explorer(BoundedShapes):
    """Finds the fastest plan of one job's costed shapes within each memory limit."""

    def __init__(
        self,
        cost_model: CostModel,
        costed: CostedShapes,
        columns: Columns,
        limit_bytes: float,
        effort: Effort,
    ) -> None:
        super().__init__(
            cost_model, costed, columns, limit_bytes, effort.tie, Spent(effort.deadline)
        )
        self.effort = effort
        self.solved: list[Point] = []
        self.solved_rows: set[int] = set()
        # Bounds that CP-SAT proved.
        self.solver_bounds: list[SolverBound] = []
        # Rows that may still hold a better plan within some limit.
        self.undecided: set[int] = set()
        # (position, limit) of shapes solved there -> the time they had to beat.
        self._asked: dict[tuple[int, int], float] = {}
        # (position, limit, whether long) of walks done; and by row, the blocks and recomputing
        # layers of the last layout that a walk found.
        self._walked: set[tuple[int, int, bool]] = set()
        self._starts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # Number of undecided solves of a row.
        self._in_vain: Counter[int] = Counter()
        # Called regularly while a limit is examined.
        self.working: Callable[[], None] = lambda: None
        # Index of this job among those searched with it.
        self.source = 0

    def descend(self, limits: Floats) -> None:
        super().descend(limits)
        self._asked, self._walked = {}, set()

    def look(self, index: int, look: Look, beside: float) -> Point | None:
        """The fastest plan known at one limit, after examining the shapes that may beat it.

        `beside`: best sample time known from other jobs; layouts that do not beat it are not
        searched for.
        """
        best = self.best_known(float(self.limits[index]))
        known = min(beside, np.inf if best is None else best.sample_s)
        waiting = [] if self.spent.stopped else self._open(index, known, look.tie)
        heapify(waiting)
        while waiting and not self.spent.is_over:
            bound, position = heappop(waiting)
            target = beside if best is None else min(beside, best.sample_s)
            if bound * (1.0 + look.tie) >= target:
                break
            if self.effort.any_plan and np.isfinite(target):
                break
            self.working()
            if self._bounded[position] > index:
                for pushed in self._bound_next(waiting, (bound, position), index, target):
                    heappush(waiting, pushed)
                continue
            # No work is left. The other bounds are all higher, so none of them could reduce the
            # gap.
            if self._exhausted(look) and self._tightened[position, index] > 0:
                break
            if self._tightened[position, index] < TIGHTEST:
                heappush(waiting, (self._tighten(position, index, target), position))
                continue
            if (position, index) in self._asked:
                continue
            walks = self._walks(position, index)
            if walks:
                best = self._better(best, self._walk(position, index, target, look), target)
                target = beside if best is None else min(beside, best.sample_s)
            # CP-SAT may prove more but takes far longer than a walk.
            later = walks and not look.again and np.isfinite(target)
            beaten = bound * (1.0 + look.tie) >= target
            if later or beaten or self._hopeless(position, look, walks):
                continue
            best = self._better(best, self._solve(position, index, target), target)
        if look.again:
            best = self._ask_again(index, best, beside, look)
        return best

    def _hopeless(self, position: int, look: Look, walks: bool) -> bool:
        """Whether solves of this shape within other limits were undecided so often that others come
        first. Its bound then stays as it is."""
        most = 1 if walks else IN_VAIN[look.again]
        return self._in_vain[int(self.rows[position])] >= most

    @staticmethod
    def _better(best: Point | None, point: Point | None, target: float) -> Point | None:
        return point if point is not None and point.sample_s < target else best

    def result(self, index: int, beside: float) -> LimitResult:
        """The result at a limit after it was examined."""
        limit = float(self.limits[index])
        best = self.best_known(limit)
        target = beside if best is None else min(beside, best.sample_s)
        bound = self.least_bound(index, target)
        able = self.bounds[:, index] * (1.0 + self.effort.tie) < target * (1.0 - _SAME)
        self.undecided.update(self.rows[able].tolist())
        return LimitResult(limit, best, bound)

    def _open(self, index: int, target: float, tie: float) -> list[tuple[float, int]]:
        """(bound, position) of the shapes that may have a useful layout at a limit."""
        bound = self.bounds[:, index]
        beats = bound * (1.0 + tie) < target
        useful = np.flatnonzero(beats & np.isfinite(bound) & ~self.only_even[self.rows])
        return list(zip(bound[useful].tolist(), useful.tolist(), strict=True))

    def _bound_next(
        self, waiting: list[tuple[float, int]], first: tuple[float, int], index: int, target: float
    ) -> list[tuple[float, int]]:
        """Take the next shapes that may be useful off `waiting`, tighten their bounds, and return
        those."""
        taken = [first[1]]
        while waiting and len(taken) < _BOUNDED_AT_ONCE:
            if waiting[0][0] * (1.0 + self.effort.tie) >= target:
                break
            taken.append(heappop(waiting)[1])
        self._bound(np.array(taken), index)
        bounds = self.bounds[taken, index].tolist()
        return [pair for pair in zip(bounds, taken, strict=True) if pair[0] < np.inf]

    def _ask_again(self, index: int, best: Point | None, beside: float, look: Look) -> Point | None:
        """Solve undecided shapes once more if a better plan has been found since. Proving that
        nothing lies below a nearer target is easier."""
        for (position, at), before in list(self._asked.items()):
            target = beside if best is None else min(beside, best.sample_s)
            bound = self.bounds[position, index]
            undecided = bound * (1.0 + self.effort.tie) < target * (1.0 - _SAME)
            if at != index or not undecided or target >= before or self.effort.any_plan:
                continue
            if self.spent.is_over or self._exhausted(look):
                break
            self.working()
            self._tighten_block(position, index, target)
            best = self._better(best, self._solve(position, index, target), target)
        return best

    def _exhausted(self, look: Look) -> bool:
        spent, most = self.spent, self.effort.most_solves
        return spent.work_s >= look.until_s or (most is not None and spent.solves >= most)

    def best_known(self, limit: float) -> Point | None:
        """The fastest of all even and all solved layouts within a limit."""
        points = [point for point in self.solved if point.peak <= limit]
        even = self._fastest_even[self.peak[self._fastest_even] <= limit]
        if len(even):
            points.append(self.even_point(int(even[np.argmin(self.sample_s[even])])))
        return min(points, key=lambda point: (point.sample_s, point.peak, point.row), default=None)

    @cached_property
    def _fastest_even(self) -> np.ndarray:
        """Shapes that fit and whose even layouts are as fast as any that is no heavier."""
        fitting = np.flatnonzero(self.peak <= self.limit_bytes)
        order = fitting[np.lexsort((self.sample_s[fitting], self.peak[fitting]))]
        sample_s = self.sample_s[order]
        return np.sort(order[sample_s <= np.minimum.accumulate(sample_s)])

    def as_good(self, point: Point) -> Point:
        """The lightest costed layout that is neither slower nor heavier than a point; among equally
        light ones the fastest."""
        even = np.flatnonzero((self.sample_s <= point.sample_s) & (self.peak <= point.peak))
        order = np.lexsort((self.sample_s[even], self.peak[even]))
        points = [point, *(self.even_point(row) for row in even[order[:1]].tolist())]
        points += [
            solved
            for solved in self.solved
            if solved.sample_s <= point.sample_s and solved.peak <= point.peak
        ]
        return min(points, key=lambda point: (point.peak, point.sample_s))

    def even_point(self, row: int) -> Point:
        """A shape in its even layout."""
        pp, vpp = int(self.columns["pp"][row]), int(self.columns["vpp"][row])
        layout = even_layout(self.cost_model.job, pp, vpp, self.mode(row))
        return Point(row, layout, float(self.sample_s[row]), float(self.peak[row]), self.source)

    def _walks(self, position: int, index: int) -> bool:
        return walk.applies(self.linear(int(self.rows[position]), float(self.limits[index]))[1])

    def _walk(self, position: int, index: int, target: float, look: Look) -> Point | None:
        """A layout of a shape that beats `target` at a limit, found by a short walk and then a long
        one from there."""
        row, key = int(self.rows[position]), (position, index, look.again)
        if key in self._walked:
            return None
        self._walked.add(key)
        limit, gbs = float(self.limits[index]), float(self.columns["gbs"][row])
        terms, ctx = self.linear(row, limit)
        within_s = float(self.bounds[position, index]) * gbs, target * gbs
        blocks, again = self._starts.get(row) or first_blocks(
            ctx, self._hints[position, index].stage_layers
        )
        steps = walk.MOST_STEPS if look.again else walk.STEPS
        found = None
        one_walk = walk.Walk(terms, ctx, self.spent)
        for layout in one_walk.layouts(blocks, max(again, default=0), within_s, steps):
            point = self.cost(row, layout)
            if point.peak <= limit and point.sample_s < target:
                found, target = point, point.sample_s
                self._starts[row] = layout.block_layers, (shared_count(layout) or 0,)
        if found is not None:
            self.solved.append(found)
        return found

    def _solve(self, position: int, index: int, target: float) -> Point | None:
        """Solve one shape at one limit for a layout that beats `target` by more than a tie.

        The resulting bound holds for lower limits too.
        """
        row, limit = int(self.rows[position]), float(self.limits[index])
        self._asked[position, index] = target
        gbs = float(self.columns["gbs"][row])
        bound_s = float(self.bounds[position, index]) * gbs
        within_s = bound_s, target / (1.0 + self.effort.tie) * gbs
        solution = self.solution(row, limit, within_s, self._hints[position, index])
        self.spent.add_solve(solution.effort_s)
        self.solved_rows.add(row)
        self._raise_bound(position, index, solution.bound_s / gbs)
        if solution.bound_s > bound_s:
            self.solver_bounds.append(
                SolverBound(
                    choice=self.source,
                    degrees=row_degrees(self.columns, row),
                    recompute=self.mode(row).name,
                    parts=self._parts(row),
                    limit_bytes=limit,
                    sample_s=solution.bound_s / gbs,
                )
            )
        if solution.layout is None:
            self._in_vain[row] += solution.status == "unknown"
            return None
        point = self.cost(row, solution.layout)
        self.solved.append(point)
        return point if point.peak <= limit else None

    def _parts(self, row: int) -> tuple[int, ...]:
        pool = self.cost_model.job.pool
        return pool.places[int(self.columns["place"][row])] if pool else ()

    def solution(
        self,
        row: int,
        limit_bytes: float,
        within_s: tuple[float, float] = (0.0, np.inf),
        hint: Bound = NO_BOUND,
    ) -> LayoutSolution:
        """The layout of one shape under a memory limit: the one that attains its bound, or
        CP-SAT's.

        `hint`: the bound by whole blocks to start from.
        """
        terms, ctx = self.linear(row, limit_bytes)
        attained = self._attained(row, ctx, within_s, hint)
        if attained is not None:
            return attained
        options = replace(self.effort.options, wall_s=self.spent.seconds_left)
        return solve_layout(terms, ctx, options, within_s, hint.stage_layers)

    def _attained(
        self, row: int, ctx: LayoutContext, within_s: tuple[float, float], hint: Bound
    ) -> LayoutSolution | None:
        """The layout that attains the bound by whole blocks, if it is legal and as close to the
        bound as CP-SAT would have to come; else None."""
        layout = first_layout(ctx, hint.stage_layers) if hint.stage_layers else None
        if layout is None:
            return None
        step_s = self.cost(row, layout).sample_s * float(self.columns["gbs"][row])
        gap = max(0.0, 1.0 - within_s[0] / step_s)
        if gap > GAP_LIMIT or step_s > within_s[1]:
            return None
        return LayoutSolution("optimal", layout, within_s[0], gap, step_s=step_s)

    def cost(self, row: int, layout: Layout) -> Point:
        """Cost a layout with the kernel."""
        step, _ = self.step_and_stages(row, layout)
        sample_s = float(step[f.STEP_TIME]) / float(self.columns["gbs"][row])
        place = self.cost_model.place(self.costed, row)
        return Point(row, layout, sample_s, self.cost_model.weighed_peak(step, place), self.source)

    def step_and_stages(self, row: int, layout: Layout) -> tuple[Array, Array]:
        """(STEP_* values of a layout, STAGE_* values of its stages)."""
        configuration = self.configuration(row, layout)
        found = cost_layout(self.cost_model, self.costed, row, configuration)
        return found.step, found.stages

    def configuration(self, row: int, layout: Layout) -> Configuration:
        """The configuration of a shape in a layout."""
        return Configuration.of_row(self.cost_model.job, self.columns, row, layout)

    def unable_to_improve(self) -> int:
        """Number of shapes that were never solved because their bounds exclude an improvement."""
        return len(self.sample_s) - len(self.solved_rows | self.undecided)
