"""A lower bound on the step time of one shape, with layers in any order and in fractions.

It is for models whose kinds of layers hardly repeat, where `planner.search.block_bound` does not
apply. A linear programme distributes the layers of each kind over the stages and lets fractions of
them recompute. Only the prices of its solution are used, for a stage's seconds and for its bytes.
At any prices, the cost of all layers in their cheapest places bounds every layout from below
(Lagrange), so the bound is valid however exact the solver was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.cost.tables import Array
from planner.search.limit_results import Spent
from planner.search.stages import StageSeconds, StagesThatHold

if TYPE_CHECKING:
    from ortools.linear_solver.pywraplp import Constraint, Variable

# Exceeding the memory by this share costs as much as the step that is to be beaten.
_TOO_MUCH = 1e-3


# Seconds of work of a linear programme per stage.
PRICES_S = 3e-4
# Shares of the slowest stage's seconds [stage], which sum to one; seconds of the step per whole
# memory [moment, stage], and per layer missing from those that must recompute [stage].
Prices = tuple[Array, Array, Array]


def least_step_s(
    seconds: StageSeconds,
    memory: StagesThatHold,
    enough_s: float,
    known: dict[object, Prices],
    spent: Spent,
) -> float:
    """A lower bound in seconds on the step time of every layout of the shape within its memory; at
    most `enough_s`. `known`: prices of similar shapes, which may suffice. `spent`: counts the work.
    """
    ctx, none, every = seconds.ctx, np.zeros(seconds.ctx.pp), np.full(seconds.ctx.pp, np.inf)
    # With one number for all blocks, no layer recomputes, or at least one in each block that must
    # have any.
    alone = ctx.may_part
    blocks = [
        float(sum(min(1, ctx.least_layers(block, alone)) for block in ctx.stage_blocks(stage)))
        for stage in range(ctx.pp)
    ]
    ends = {
        "none": ((none, none),),
        "all": ((every, every),),
        "free": ((none, every),),
        "shared": ((none, none), (np.array(blocks), every)),
    }
    for case, (least, most) in enumerate(ends[ctx.recomputation]):
        bound = FractionalBound(seconds, memory, least, most)
        key = memory.shares[0].shape, ctx.recomputation, case
        found_s = bound.at(known[key], enough_s) if key in known else 0.0
        if found_s < enough_s:
            spent.work_s += PRICES_S * ctx.pp
            known[key] = bound.best_prices(enough_s)
            found_s = max(found_s, bound.at(known[key], enough_s))
        enough_s = found_s
    return enough_s


@dataclass(frozen=True)
class FractionalBound:
    """The bound of a shape whose stages recompute `least` to `most` layers (infinite: all they
    hold)."""

    seconds: StageSeconds
    memory: StagesThatHold
    least: Array
    most: Array

    def at(self, prices: Prices, enough_s: float) -> float:
        """Lower bound on the step time at some prices, at most `enough_s`."""
        seconds, (pinned, each) = self.seconds, self.memory.shares
        slowest_prices, byte_prices, again_prices = prices
        second_prices = seconds.weight * slowest_prices + seconds.terms.bubble_share
        number_s = second_prices[:, None] * seconds.number_s
        number_s += np.einsum("ms,msn->sn", byte_prices, each)
        layers_s, again_s = np.split(number_s, 2, axis=1)
        again_s = again_s - again_prices[:, None]
        if not np.isinf(self.least).all():
            again_s = np.minimum(again_s, 0.0) * (self.most > 0.0)[:, None]
        step_s = float(np.array(seconds.ctx.totals) @ (layers_s + again_s).min(axis=0))
        step_s += float(second_prices @ seconds.vocab_s + (byte_prices * (pinned - 1.0)).sum())
        step_s += float(again_prices @ np.where(np.isinf(self.least), 0.0, self.least))
        return min(enough_s, step_s + seconds.rest_s)

    def best_prices(self, enough_s: float) -> Prices:
        """The prices of the dual solution."""
        programme = _Programme(self, enough_s)
        for stage in range(self.seconds.ctx.pp):
            held = programme.held(stage)
            programme.add_layers(stage, held)
            programme.add_limits(stage, held)
        return programme.prices()


class _Programme:
    """The linear programme of a bound. Variables: layers of each kind on each stage, then those
    that recompute; seconds of the slowest stage; and the excess over any memory limit."""

    def __init__(self, bound: FractionalBound, enough_s: float) -> None:
        from ortools.linear_solver import pywraplp

        self.bound, self.ctx = bound, bound.seconds.ctx
        self.solver = solver = pywraplp.Solver.CreateSolver("GLOP")
        self.goal = solver.Objective()
        self.slowest, self.beyond = (solver.NumVar(0.0, np.inf, "") for _ in range(2))
        self.goal.SetCoefficient(self.slowest, bound.seconds.weight)
        self.goal.SetCoefficient(self.beyond, enough_s / _TOO_MUCH)
        self.whole = [solver.Constraint(float(total), float(total)) for total in self.ctx.totals]
        self.in_time: list[Constraint] = []
        self.in_memory: list[Constraint] = []
        self.again: list[Constraint] = []

    def _row(
        self, low: float, high: float, variables: Sequence[Variable], factors: Sequence[float]
    ) -> Constraint:
        """A constraint on a weighted sum of variables."""
        constraint = self.solver.Constraint(low, high)
        for variable, factor in zip(variables, factors, strict=True):
            constraint.SetCoefficient(variable, factor)
        return constraint

    def held(self, stage: int) -> list[Variable]:
        """Variables for the layers that a stage holds, with the seconds that they add to the step
        as objective."""
        totals, seconds = self.ctx.totals, self.bound.seconds
        held = [self.solver.NumVar(0.0, float(total), "") for total in (*totals, *totals)]
        for number, second_s in zip(held, seconds.number_s[stage].tolist(), strict=True):
            self.goal.SetCoefficient(number, seconds.terms.bubble_share * second_s)
        return held

    def add_layers(self, stage: int, held: list[Variable]) -> None:
        """Count the layers of a stage towards the totals of their kinds, and limit how many of them
        recompute."""
        layers, recomputed = held[: self.ctx.kind_count], held[self.ctx.kind_count :]
        all_again, none_again = np.isinf(self.bound.least[stage]), not self.bound.most[stage]
        least = 0.0 if all_again else float(self.bound.least[stage])
        counted = [float(not all_again)] * self.ctx.kind_count
        self.again.append(self._row(least, np.inf, [*recomputed, self.beyond], [*counted, 1.0]))
        for kind, total in enumerate(self.ctx.totals):
            self.whole[kind].SetCoefficient(layers[kind], 1.0)
            least = 0.0 if all_again else -float(total)
            self._row(least, 0.0, [recomputed[kind], layers[kind]], [1.0, -float(not none_again)])

    def add_limits(self, stage: int, held: list[Variable]) -> None:
        """Keep a stage no slower than the slowest one, and within its memory in every phase."""
        seconds = self.bound.seconds
        most_s, factors = -float(seconds.vocab_s[stage]), seconds.number_s[stage].tolist()
        self.in_time.append(self._row(-np.inf, most_s, [*held, self.slowest], [*factors, -1.0]))
        for taken, sizes in zip(*self.bound.memory.shares, strict=True):
            most, shares = 1.0 - float(taken[stage]), [*sizes[stage].tolist(), -1.0]
            self.in_memory.append(self._row(-np.inf, most, [*held, self.beyond], shares))

    def prices(self) -> Prices:
        """Prices from the dual solution; any prices are valid if there is none."""
        pp = self.ctx.pp
        if self.solver.Solve() != self.solver.OPTIMAL:
            moments = len(self.bound.memory.shares[0])
            return np.full(pp, 1.0 / pp), np.zeros((moments, pp)), np.zeros(pp)
        slow = np.maximum(1e-12, [-row.dual_value() for row in self.in_time])
        prices = np.array([-row.dual_value() for row in self.in_memory])
        again = np.array([row.dual_value() for row in self.again])
        byte_prices = np.maximum(0.0, prices.reshape(pp, -1).T)
        return slow / slow.sum(), byte_prices, np.maximum(0.0, again)
