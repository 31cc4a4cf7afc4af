"""The objective of the layout model: a layout's step time in integer units, rounded in one
direction.

`planner.search.layout_model` states its form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from constraints.layout_context import LayoutContext
from constraints.layout_variables import LayoutVariables
from planner.cost import linear, schedule
from planner.cost.tables import Array
from planner.search.terms import TIME_RESOLUTION, ShapeTerms

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

    from constraints.layout_variables import Expression

Rounding = Callable[[float], int]

# A bubble share that is not a simple fraction is rounded down to a multiple of one over this. Large
# coefficients make the solver's linear relaxation slow.
SHARE_STEPS = 256
# CP-SAT sums in 64 bits; models with larger sums are not given to it.
LARGEST_INTEGER = 2**60
# A bound in seconds is loosened by the possible error of rounding terms down to units.
ROUNDING = 1e-3


def share_fraction(share: float, vpp: int) -> tuple[int, int]:
    """The bubble share as a fraction: exact for 1/vpp, else rounded down to SHARE_STEPS."""
    if share * vpp == 1.0:
        return 1, vpp
    # If it is a fraction, drains are divided by vpp too; a multiple keeps them whole.
    scale = SHARE_STEPS * vpp
    return floor(share * scale), scale


class Objective:
    """Step time of a layout in integer time units, never above the kernel's figure."""

    def __init__(
        self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext, terms: ShapeTerms
    ) -> None:
        self.model = model
        self.terms = terms
        passes = terms.layer[:, linear.TERM_FORWARD] + terms.layer[:, linear.TERM_BACKWARD]
        self.unit_s = max(float(passes.max()), 1e-9) * TIME_RESOLUTION
        self.share, self.scale = share_fraction(terms.bubble_share, terms.vpp)
        stages = range(ctx.pp)
        self.layers = [variables.stage(variables.kind_layers, s, ctx) for s in stages]
        # Recomputing layers of each stage; empty if no layer may recompute.
        again = variables.kind_recomputed
        self.again = [variables.stage(again, s, ctx) for s in stages] if again else []
        columns = list(linear.TIME_TERMS)
        longest_s = float(
            abs(terms.layer[:, columns]).sum() * ctx.layers
            + abs(terms.stage[:, columns]).sum()
            + abs(terms.scalars[list(linear.TIME_BASES)]).sum()
        )
        self.horizon = ceil(longest_s / self.unit_s) + 1

    def largest(self) -> int:
        """An upper bound on every sum in the model."""
        weight = (self.terms.grad_acc + self.terms.pp + 2) * self.scale
        return 2 * weight * self.horizon

    def seconds(self, value: float) -> float:
        """Step time of an objective value, including constants."""
        fixed_s = float(self.terms.scalars[linear.SCALAR_FIXED_S])
        return value * self.unit_s / self.scale + fixed_s

    def units(self, seconds: float) -> float:
        """A step time in units of the objective."""
        fixed_s = float(self.terms.scalars[linear.SCALAR_FIXED_S])
        return (seconds - fixed_s) * self.scale / self.unit_s

    def restrict(self, steps: Expression, within_s: tuple[float, float]) -> None:
        """Keep the objective between two step times, rounded outwards."""
        low, high = (self.units(seconds) for seconds in within_s)
        self.model.add(steps >= floor(low * (1.0 - ROUNDING)))
        if high < inf:
            self.model.add(steps <= ceil(high))

    def expression(self) -> Expression:
        """T·d in units, without the constant terms."""
        terms = self.terms
        both = linear.BOTH_PASSES
        if terms.framework.schedule == schedule.SCHEDULE_ALL_FORWARD_FIRST:
            passes = [self._seconds(both[:1]), self._seconds(both[1:])]
        else:
            passes = [self._seconds(both)]
        slowest = sum(self._largest(one_pass) for one_pass in passes)
        times = [item for each in passes for item in each]
        weight = terms.grad_acc * self.scale - self.share
        tail = self._traffic() + self.scale * self._optimizer()
        return weight * slowest + self.share * sum(times) + tail

    def _seconds(self, columns: Sequence[int]) -> list[Expression]:
        """Seconds of each stage for some columns; recomputation belongs to the backward pass."""
        stages = range(self.terms.pp)
        sums = [self._sum(stage, columns, floor) for stage in stages]
        if linear.TERM_BACKWARD not in columns:
            return sums
        return [
            one_sum + self._recompute(stage, floor)
            for stage, one_sum in zip(stages, sums, strict=True)
        ]

    def _largest(self, candidates: Sequence[Expression]) -> IntVar:
        """A variable at least as large as each candidate; minimisation makes it the maximum."""
        largest = self._variable()
        for candidate in candidates:
            self.model.add(largest >= candidate)
        return largest

    def _variable(self, factor: int = 1) -> IntVar:
        return self.model.new_int_var(0, self.horizon * factor, "")

    def _units(self, seconds: float, rounding: Rounding) -> int:
        return rounding(seconds / self.unit_s)

    def _weighted(
        self, counts: Sequence[Expression], seconds: Array, rounding: Rounding
    ) -> Expression:
        return sum(
            count * self._units(float(second), rounding)
            for count, second in zip(counts, seconds, strict=True)
        )

    def _sum(
        self, stage: int, columns: Sequence[int], rounding: Rounding, count: float = 1.0
    ) -> Expression:
        """Seconds of a stage for some columns, times `count`: its layers and what is pinned
        there."""
        terms = self.terms
        per_layer = count * terms.layers[stage][:, list(columns)].sum(axis=1)
        pinned = self._units(count * float(terms.stage[stage, list(columns)].sum()), rounding)
        return pinned + self._weighted(self.layers[stage], per_layer, rounding)

    def _recompute(self, stage: int, rounding: Rounding, count: float = 1.0) -> Expression:
        if not self.again:
            return 0
        seconds = count * self.terms.layers[stage][:, linear.TERM_RECOMPUTE]
        return self._weighted(self.again[stage], seconds, rounding)

    def _backward(self, stage: int, count: float = 1.0) -> Expression:
        """A lower bound on the seconds of `count` backward passes of a stage."""
        backward = self._sum(stage, (linear.TERM_BACKWARD,), ceil, count)
        return backward + self._recompute(stage, ceil, count)

    def _optimizer(self) -> Expression:
        """Optimizer time of the slowest stage."""
        stages = range(self.terms.pp)
        return self._largest(
            [self._sum(stage, (linear.TERM_OPTIMIZER,), floor) for stage in stages]
        )

    def _traffic(self) -> Expression:
        """d times the exposed gradient reduction and weight gathering at the end of the step.

        A stage's traffic delays nothing while the earlier stages drain their backward passes.
        """
        terms = self.terms
        bases = [linear.SCALAR_REDUCE_BASE, linear.SCALAR_ALL_GATHER_BASE]
        columns = [linear.TERM_REDUCE, linear.TERM_ALL_GATHER]
        if not terms.scalars[bases].any() and not terms.layer[:, columns].any():
            return 0
        exposed = self._variable(self.scale)
        drain: Expression = 0
        hidden = dict(zip(columns, terms.boundary_hidden, strict=True))
        based = dict(zip(columns, terms.scalars[bases], strict=True))
        passes = terms.boundary_passes
        for stage in range(terms.pp):
            seconds = self._unhidden(stage, hidden, based)
            taken = self._sum(stage, (linear.TERM_TAKEN_BACKWARD,), floor)
            window_s = self._backward(stage, passes) - taken
            seconds = seconds + self._roomless(stage, columns[0], hidden, based, window_s)
            taken = self._sum(stage, (linear.TERM_TAKEN_FORWARD,), floor)
            window_s = self._sum(stage, (linear.TERM_FORWARD,), ceil, passes) - taken
            seconds = seconds + self._roomless(stage, columns[1], hidden, based, window_s)
            self.model.add(exposed >= self.scale * seconds - drain)
            drain = drain + self.scale // terms.vpp * self._backward(stage)
        return exposed

    def _unhidden(
        self, stage: int, hidden: Mapping[int, float], based: Mapping[int, float]
    ) -> Expression:
        """Seconds of a stage's traffic that can never be hidden, plus the compute that it slows
        down, rounded together."""
        layer, stage_s = self.terms.layers[stage], self.terms.stage[stage]
        per_layer, pinned_s = layer[:, linear.TERM_SHARED], float(stage_s[linear.TERM_SHARED])
        for column, share in hidden.items():
            per_layer = per_layer + (1.0 - share) * layer[:, column]
            pinned_s += (1.0 - share) * float(stage_s[column] + based[column])
        pinned = self._units(pinned_s, floor)
        return pinned + self._weighted(self.layers[stage], per_layer, floor)

    def _roomless(
        self, stage: int, column: int, hidden: Mapping[int, float], based: Mapping[int, float],
        window_s: Expression,
    ) -> Expression:  # fmt: skip
        """Seconds of the hideable share for which there is no room: max(0, h·seconds - room)."""
        share = hidden[column]
        pinned_s = share * float(self.terms.stage[stage, column] + based[column])
        per_layer = share * self.terms.layers[stage][:, column]
        if not pinned_s and not per_layer.any():
            return 0
        roomless = self._variable()
        pinned = self._units(pinned_s, floor)
        self.model.add(
            roomless >= pinned + self._weighted(self.layers[stage], per_layer, floor) - window_s
        )
        return roomless
