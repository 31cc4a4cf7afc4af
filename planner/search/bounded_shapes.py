"""Lower bounds on the sample time of a job's shapes under each limit of a memory ladder.

A bound is tightened only when its shape comes first in a search.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from constraints.layout_context import LayoutContext, Recomputation
from planner.cost import compiled, schedule, tight_bounds
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.recomputation import recomputation
from planner.job.recompute import RecomputeMode
from planner.predict.configuration import job_placement
from planner.predict.cost_model import Columns, CostedShapes, CostModel
from planner.predict.plan import OPTIMAL_WITHIN
from planner.predict.threads import in_threads
from planner.search import block_bound
from planner.search.block_bound import NO_BOUND, Bound
from planner.search.fractional_bound import Prices, least_step_s
from planner.search.front import Floats
from planner.search.limit_results import LIMIT_STEP, LIMIT_STEPS, SLOWEST, Spent
from planner.search.stages import StageSeconds, StagesThatHold
from planner.search.terms import RECOMPUTE_CODES, ShapeTerms, layout_context, shape_terms, within

# Number of shapes whose bounds are computed between two checks of the clock.
_CHUNK = 4096
# Seconds of work of a bound besides that of its parts.
BOUND_S = 1e-3
# How often bounds are tightened: by `planner.cost.tight_bounds`, then by whole blocks.
TIGHTEST = 2


class BoundedShapes:
    """Costed shapes of one job under a memory limit. `tie`: relative time differences that do not
    matter.

    `spent`: counts the work of bounds; once it runs out, no bound is tightened further.
    """

    def __init__(
        self,
        cost_model: CostModel,
        costed: CostedShapes,
        columns: Columns,
        limit_bytes: float,
        tie: float,
        spent: Spent | None = None,
    ) -> None:
        self.cost_model = cost_model
        self.costed = costed
        self.columns = columns
        self.limit_bytes = limit_bytes
        self.spent = spent or Spent()
        # Best known sample time of other jobs that are searched together with this one.
        self.best_beside = np.inf
        self._tight_bounds: dict[tuple[int, int], Array] = {}
        # Starting points of solves: the last bound by whole blocks, where it is attained.
        self._hints: dict[tuple[int, int], Bound] = {}
        self._prices: dict[object, Prices] = {}
        # Whether bounds by whole blocks are worthwhile; not if a rough answer will do.
        self._whole_blocks = tie <= OPTIMAL_WITHIN
        # By shape, within `limit_bytes`.
        self._linear: dict[int, tuple[ShapeTerms, LayoutContext]] = {}

    @cached_property
    def sample_s(self) -> Floats:
        """Seconds per sample of every shape in its even layout."""
        return np.asarray(self.costed.steps[:, f.STEP_TIME] / self.columns["gbs"])

    @cached_property
    def peak(self) -> Floats:
        """Peak bytes of every shape in its even layout, scaled to the largest memory."""
        return self.cost_model.peaks(self.costed)

    @cached_property
    def recomputations(self) -> tuple[Recomputation, ...]:
        """For each recompute mode of the job, how many layers may recompute."""
        job = self.cost_model.job
        return tuple(recomputation(mode, job.framework) for mode in job.recompute)

    @cached_property
    def only_even(self) -> np.ndarray:
        """True for shapes whose only layout is the even one; their cost is exact."""
        whole = np.array(
            [recomputation in ("none", "all") for recomputation in self.recomputations]
        )
        job = self.cost_model.job
        split = job.framework.parallelism.layouts
        copies = job_placement(job) == "mirrored"
        one_block = self.columns["pp"] == 1
        fixed = one_block | (split in ("even", "greedy")) | copies
        return np.asarray(fixed & whole[self.columns["recompute"]])

    @cached_property
    def limits(self) -> Floats:
        """The memory ladder, highest limit first."""
        return np.asarray(self.limit_bytes * LIMIT_STEP ** np.arange(LIMIT_STEPS))

    @cached_property
    def rows(self) -> np.ndarray:
        """Shapes that may matter by their plain bounds: light enough and not far too slow."""
        steps = self.costed.steps
        light = steps[:, f.STEP_PEAK_BOUND] <= self.limit_bytes
        best = self.best_even()
        best = min(best, self.best_beside)
        quick = steps[:, f.STEP_TIME_BOUND] / self.columns["gbs"] <= SLOWEST * best
        return np.flatnonzero(light & quick)

    def best_even(self) -> float:
        """Best sample time of an even layout within the limit; infinite if none fits."""
        return float(self.sample_s[self.peak <= self.limit_bytes].min(initial=np.inf))

    @cached_property
    def bounds(self) -> Floats:
        """[rows, limits]: lower bounds on the sample time of the shape's layouts within each limit.

        The kernel's plain bounds, until a search examines the shape (`_bound`).
        """
        self._tightened = np.zeros((len(self.rows), len(self.limits)), dtype=np.int8)
        rows = self.rows
        exact = self.only_even[rows]
        fits = self.peak[rows][:, None] <= self.limits[None, :]
        even = np.where(fits, self.sample_s[rows][:, None], np.inf)
        # Limit from which on the bounds of a shape are better than the plain ones.
        self._bounded = np.where(exact, 0, len(self.limits))
        return np.where(exact[:, None], even, self._plain_sample_times)

    def descend(self, limits: Floats) -> None:
        """Switch to other memory limits, in descending order.

        Bounds that hold under a higher limit hold under a lower one. A shape starts from those, or
        from the plain ones if no earlier limit was as high.
        """
        above = np.searchsorted(-self.limits, -limits, side="right") - 1
        inherited = np.where(above >= 0, self.bounds[:, above], 0.0)
        for name in ("limits", "bounds", "_plain_sample_times"):
            self.__dict__.pop(name, None)
        self._tight_bounds, self._hints = {}, {}
        self.limits = limits
        self.bounds = np.maximum(self.bounds, inherited)

    @cached_property
    def _plain_sample_times(self) -> Floats:
        """[rows, limits]: plain lower bounds on the sample time; infinite if no layout can fit."""
        steps = self.costed.steps[self.rows]
        light = steps[:, f.STEP_PEAK_BOUND][:, None] <= self.limits[None, :]
        sample_times = steps[:, f.STEP_TIME_BOUND] / self.columns["gbs"][self.rows]
        return np.where(light, sample_times[:, None], np.inf)

    def least_bound(self, index: int, enough: float) -> float:
        """Seconds per sequence that no layout of any shape within a limit beats. Stops as soon as
        no bound is below `enough`."""
        bound = self.bounds[:, index]
        known = float(bound[self._bounded <= index].min(initial=enough))
        self._bound(np.flatnonzero((self._bounded > index) & (bound < known)), index)
        return float(self.bounds[:, index].min(initial=np.inf))

    def _bound(self, positions: np.ndarray, index: int) -> None:
        """Raise the bounds of shapes, at this limit and lower ones, to those of
        `bounds.bound_shapes`. Shapes that already have them keep theirs, and so do all once the
        search is over."""
        positions = positions[self._bounded[positions] > index]
        for start in range(0, len(positions), _CHUNK):
            if self.spent.is_over:
                break
            part = positions[start : start + _CHUNK]
            gbs = self.columns["gbs"][self.rows[part]]
            sample_times = self._bound_seconds(part, index) / gbs[:, None]
            self.bounds[part, index:] = np.maximum(self.bounds[part, index:], sample_times)
        self._bounded[positions] = index

    def _bound_seconds(self, positions: np.ndarray, index: int) -> Floats:
        """[shapes, limits]: lower bounds on the step time in seconds, at this limit and lower
        ones."""
        codes = np.array(
            [RECOMPUTE_CODES[recomputation] for recomputation in self.recomputations],
            dtype=np.float64,
        )
        codes = codes[self.columns["recompute"][self.rows[positions]]]
        model, costed, limits = self.cost_model, self.costed, self.limits[index:]
        shapes = costed.shapes[self.rows[positions]]
        table = np.zeros((len(positions), len(limits)))
        in_threads(
            lambda part: compiled.bound_shapes(
                shapes[part], codes[part], limits, False, costed.keys, costed.costs,
                model.prefix, model.totals, model.job_inputs,
                *model.machine_inputs, table[part],
            ),
            len(shapes),
        )  # fmt: skip
        return table

    def _tighten(self, position: int, index: int, target: float) -> float:
        """The next tighter bound on the sample time within a limit, which also holds within lower
        limits."""
        self._tightened[position, index] += 1
        if self._tightened[position, index] < TIGHTEST:
            gbs = float(self.columns["gbs"][self.rows[position]])
            least_s = float(self._tight_s(position, index).min())
            self._raise_bound(position, index, least_s / gbs)
        else:
            self._tighten_block(position, index, target)
        return float(self.bounds[position, index])

    def _tighten_block(self, position: int, index: int, target: float) -> None:
        """Raise a bound to the tightest one, and keep the layout from which a solve starts."""
        self.spent.work_s += BOUND_S
        found = self._block_bound(position, index, target)
        self._hints[position, index] = found.over(self._hints.get((position, index)))
        gbs = float(self.columns["gbs"][self.rows[position]])
        self._raise_bound(position, index, found.step_s / gbs)

    def _raise_bound(self, position: int, index: int, sample_s: float) -> None:
        self.bounds[position, index:] = np.maximum(self.bounds[position, index:], sample_s)

    def _block_bound(self, position: int, index: int, target: float) -> Bound:
        """The tightest bound, up to the target; 0 seconds if it says nothing new.

        Without a plan to beat, any layout will do, and finding one is CP-SAT's task.
        """
        row = int(self.rows[position])
        found = NO_BOUND
        wanted = self._whole_blocks and target < np.inf
        if wanted:
            terms, ctx = self.linear(row, float(self.limits[index]))
            target_s = target * float(self.columns["gbs"][row])
            whole = block_bound.applies(ctx)
            if ctx.placement == "straight" and not (whole and block_bound.is_quick(ctx)):
                seconds, memory = StageSeconds(terms, ctx), StagesThatHold(ctx)
                found = Bound(least_step_s(seconds, memory, target_s, self._prices, self.spent))
            if whole and found.step_s < target_s:
                each_s = np.maximum(found.step_s, self._tight_s(position, index))
                found = block_bound.least_step(terms, ctx, target_s, each_s, self.spent).over(found)
        return found

    def linear(self, row: int, limit_bytes: float) -> tuple[ShapeTerms, LayoutContext]:
        """The linear terms of a shape, and the inputs of layout rules under a memory limit."""
        if row not in self._linear:
            self._linear[row] = self._linear_terms(row)
        terms, ctx = self._linear[row]
        return terms, within(ctx, terms, limit_bytes)

    def _linear_terms(self, row: int) -> tuple[ShapeTerms, LayoutContext]:
        index = int(self.columns["recompute"][row])
        terms = shape_terms(self.cost_model, self.costed, row, self.recomputations[index])
        return terms, layout_context(terms, self.cost_model.job, self.mode(row), self.limit_bytes)

    def mode(self, row: int) -> RecomputeMode:
        """The recompute mode of a shape."""
        return self.cost_model.job.recompute[int(self.columns["recompute"][row])]

    def _tight_s(self, position: int, index: int) -> Array:
        """`planner.cost.tight_bounds` of a shape at a limit: [n - 1] seconds if every block
        recomputes n layers, else one figure; 0 for schedules without such a bound."""
        if (position, index) in self._tight_bounds:
            return self._tight_bounds[position, index]
        model, row = self.cost_model, int(self.rows[position])
        recomputation = self.recomputations[int(self.columns["recompute"][row])]
        shared = recomputation == "shared"
        found = np.zeros((1, len(model.job.model.piece_sequence) if shared else 1))
        pp = float(self.columns["pp"][row])
        if schedule.copies_of_model(model.framework_inputs.schedule, pp) == 1.0:
            costed = self.costed
            code = tight_bounds.RECOMPUTE_SHARED if shared else RECOMPUTE_CODES[recomputation]
            compiled.bound_shapes(
                costed.shapes[[row]], np.array([float(code)]), self.limits[[index]], True,
                costed.keys, costed.costs, model.prefix, model.totals, model.job_inputs,
                *model.machine_inputs, found,
            )  # fmt: skip
        each_s: Array = found[0]
        self._tight_bounds[position, index] = each_s
        return each_s
