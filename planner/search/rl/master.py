"""Choose among placements, splits, trainers, engines and staleness with CP-SAT.

Both sides of a step are first costed alone. Together they take at least the sum of both if they
wait for each other, and at least the longer one if they do not. The solver finds the pair with the
lowest such bound that has not been costed together yet. If no pair is left whose bound beats the
best known step, that step is proven the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from planner.search import solver_module

# The solver counts in integer multiples of this share of the best known step.
_UNITS = 100_000


@dataclass(frozen=True, slots=True)
class Way:
    """Trainers and engines that can be combined, on their GPUs at a staleness.

    `trainers`, `engines`: (index, seconds) of those that may matter. `together`: both sides work at
    once, so that the longer one decides. `known`: pairs that were already costed.
    """

    trainers: Sequence[tuple[int, float]]
    engines: Sequence[tuple[int, float]]
    together: bool
    known: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """The pair with the lowest bound; None if no remaining pair beats the best. `bound_s`: no
    remaining pair takes less. `proven`: whether the solver finished."""

    pair: tuple[int, int, int] | None
    bound_s: float
    proven: bool


def choose(
    ways: Sequence[Way], best_s: float, seed: int = 0, wall_s: float | None = None
) -> Choice:
    """The pair (way, trainer, engine) with the lowest bound below `best_s` that was not costed
    yet."""
    cp_model = solver_module.cp_model()
    model = cp_model.CpModel()
    unit = best_s / _UNITS
    step = model.new_int_var(0, _UNITS, "step")
    taken: list[Any] = []
    trainers: dict[int, dict[int, Any]] = {}
    engines: dict[int, dict[int, Any]] = {}
    for number, way in enumerate(ways):
        use = model.new_bool_var(f"way{number}")
        taken.append(use)
        for side, options in ((trainers, way.trainers), (engines, way.engines)):
            made = {index: model.new_bool_var("") for index, _ in options}
            side[number] = made
            model.add(sum(made.values()) == use)
        _bound_step(model, step, way, use, (trainers[number], engines[number]), unit)
        for one, two in way.known:
            if one in trainers[number] and two in engines[number]:
                model.add_bool_or(trainers[number][one].negated(), engines[number][two].negated())
    model.add_exactly_one(taken)
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    if wall_s is not None:
        solver.parameters.max_time_in_seconds = wall_s
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Choice(None, best_s, proven=True)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Choice(None, 0.0, proven=False)
    number = next(at for at, use in enumerate(taken) if solver.boolean_value(use))
    pair = tuple(
        next(index for index, made in side[number].items() if solver.boolean_value(made))
        for side in (trainers, engines)
    )
    bound_s = unit * solver.best_objective_bound
    return Choice((number, pair[0], pair[1]), bound_s, status == cp_model.OPTIMAL)


def _bound_step(
    model: Any, step: Any, way: Way, use: Any, made: Sequence[dict[int, Any]], unit: float
) -> None:
    """The step takes both sides, or the longer one. Seconds are rounded down, so that the solver's
    bound is valid for the cost model."""
    sums = [
        sum(floor(seconds / unit) * of_side[index] for index, seconds in options)
        for options, of_side in zip((way.trainers, way.engines), made, strict=True)
    ]
    for part in sums if way.together else [sums[0] + sums[1]]:
        model.add(step >= part).only_enforce_if(use)
