"""Which clusters to take: the cheapest, fastest or leanest choice within a deadline, a budget and a
power limit, proven by CP-SAT over a table of (job, cluster) -> days, money, energy.

Every figure of a choice is the bound that holds with the `certainty` asked for: the step time, and
so days and cost, is uncertain. Of several jobs the bounds are added, as if all errors went one way;
that is on the safe side. "proven": CP-SAT closed the gap; figures are rounded up to a millionth of
the largest, so two choices that differ by less count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from planner.compare.choice import Choice, Decision, Limits, Objective, Order, Taken
from planner.compare.energy import facility_kw
from planner.compare.interval import Range, bound, chance
from planner.compare.results import Run
from planner.compare.settings import CostBasis
from planner.job.errors import UsageError

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

# The largest sum of a table in the solver's whole numbers.
_STEPS = 10**6
_MOST_POINTS = 24
_SOLVE_S = 20.0


def choice_of(job: str, cluster: str, num_gpus: int, run: Run, basis: CostBasis) -> Choice:
    """A run as a choice, at one kind of price."""
    rental = None if basis == "owned" else run.rental(basis)
    return Choice(
        job=job,
        cluster=cluster,
        num_gpus=num_gpus,
        days=run.days,
        cost=run.cost(basis),
        mwh=run.energy.mwh,
        power_kw=facility_kw(run.energy.drawn_w, num_gpus),
        basis=basis,
        provider="" if rental is None else rental.price.provider,
    )


def best_of(
    runs: Sequence[tuple[str, int, Run]],
    limits: Limits,
    objective: Objective,
    basis: CostBasis,
) -> Decision | None:
    """Which of one job's runs, (cluster, GPUs, run), to take; None without any.

    Without prices and a budget the fastest stands in for the cheapest.
    """
    choices = [choice_of("", name, gpus, run, basis) for name, gpus, run in runs]
    if not choices:
        return None
    unpriced = all(one.cost is None for one in choices) and limits.budget is None
    return decide(choices, limits, "time" if unpriced and objective == "cost" else objective)


class _Table:
    """The choices as whole numbers, and the rows of each job."""

    def __init__(self, choices: Sequence[Choice], limits: Limits, objective: Objective) -> None:
        certainty = limits.certainty
        needs_price = objective == "cost" or limits.budget is not None
        self.choices = [
            one
            for one in choices
            if isfinite(bound(one.days, certainty)) and not (needs_price and one.cost is None)
        ]
        self.jobs = list(dict.fromkeys(one.job for one in choices))
        self.clusters = list(dict.fromkeys(one.cluster for one in self.choices))
        self.real: dict[str, list[float]] = {
            "time": [bound(one.days, certainty) for one in self.choices],
            "cost": [bound(one.cost, certainty) if one.cost else 0.0 for one in self.choices],
            "energy": [bound(one.mwh, certainty) for one in self.choices],
            "power": [one.power_kw for one in self.choices],
        }
        self.unit = {
            name: max(values, default=1.0) * len(self.jobs) / _STEPS or 1.0
            for name, values in self.real.items()
        }
        self.whole = {
            name: [ceil(value / self.unit[name] - 1e-9) for value in values]
            for name, values in self.real.items()
        }

    def of_job(self, job: str) -> list[int]:
        return [index for index, one in enumerate(self.choices) if one.job == job]


class _Model:
    """One solve: a choice a job, within limits in the table's units."""

    def __init__(self, table: _Table, order: Order, at_most: dict[str, float]) -> None:
        from ortools.sat.python import cp_model

        self.table, self.module = table, cp_model
        self.model: CpModel = cp_model.CpModel()
        self.taken = [self.model.new_bool_var(f"{one.job}|{one.cluster}") for one in table.choices]
        for job in table.jobs:
            self.model.add_exactly_one(self.taken[index] for index in table.of_job(job))
        if order == "one-after-another":
            self._one_cluster()
        side_by_side = order == "side-by-side"
        self.total: dict[str, Any] = {
            "cost": self._sum("cost"),
            "energy": self._sum("energy"),
            "time": self._largest("time") if side_by_side else self._sum("time"),
            "power": self._sum("power") if side_by_side else self._largest("power"),
        }
        for name, limit in at_most.items():
            self.model.add(self.total[name] <= int(limit / table.unit[name] + 1e-6))

    def _one_cluster(self) -> None:
        """All jobs run on the same cluster."""
        chosen = {name: self.model.new_bool_var(name) for name in self.table.clusters}
        self.model.add_exactly_one(chosen.values())
        for variable, one in zip(self.taken, self.table.choices, strict=True):
            self.model.add_implication(variable, chosen[one.cluster])

    def _sum(self, name: str) -> Any:
        return sum(
            value * variable
            for value, variable in zip(self.table.whole[name], self.taken, strict=True)
        )

    def _largest(self, name: str) -> IntVar:
        most = self.model.new_int_var(0, 2 * _STEPS, f"largest {name}")
        for value, variable in zip(self.table.whole[name], self.taken, strict=True):
            self.model.add(most >= value * variable)
        return most

    def solve(self, aims: Sequence[str]) -> tuple[list[int], bool] | None:
        """The rows taken, by the first aim, then the next; None if nothing keeps the limits."""
        rows: list[int] | None = None
        proven = True
        for aim in aims:
            solver = self.module.CpSolver()
            solver.parameters.num_workers = 1
            solver.parameters.max_deterministic_time = _SOLVE_S
            self.model.minimize(self.total[aim])
            status = solver.solve(self.model)
            if status not in (self.module.OPTIMAL, self.module.FEASIBLE):
                break
            proven = proven and status == self.module.OPTIMAL
            rows = [index for index, one in enumerate(self.taken) if solver.value(one)]
            self.model.add(self.total[aim] <= int(solver.objective_value + 0.5))
        return None if rows is None else (rows, proven)


def decide(
    choices: Sequence[Choice],
    limits: Limits,
    objective: Objective = "cost",
    order: Order = "side-by-side",
) -> Decision:
    """What to take of a table of choices. UsageError if it is empty.

    `order`: jobs one after another on one cluster (their days add up), or side by side on one
    each (their power adds up). Ties go to the faster, then the cheaper choice.
    """
    if not choices:
        raise UsageError("no job has a plan on any of the clusters: there is nothing to choose")
    table = _Table(choices, limits, objective)
    basis = Decision(limits=limits, objective=objective, order=order, best=None)
    missing = [job for job in table.jobs if not table.of_job(job)]
    if missing:
        return basis.model_copy(update={"reason": f"no priced cluster runs {', '.join(missing)}"})
    aims = [objective, *(name for name in ("time", "cost", "energy") if name != objective)]
    solution = _Model(table, order, _given(limits)).solve(aims)
    if solution is None:
        least = {name: _least(table, order, limits, name) for name in _given(limits)}
        free = Limits(certainty=limits.certainty)
        alone: dict[str, float | None] = {}
        if all(value is None for value in least.values()):
            alone = {name: _least(table, order, free, name) for name in least}
        reason = "nothing keeps all limits"
        return basis.model_copy(
            update={
                "reason": reason,
                "least": least,
                "alone": alone,
                "front": _front(table, order, free),
            }
        )
    best = _taken(table, order, limits, *solution)
    return basis.model_copy(update={"best": best, "front": _front(table, order, limits)})


def _given(limits: Limits) -> dict[str, float]:
    """The limits that were given, by the name of the sum they hold for."""
    values = {"time": limits.deadline_days, "cost": limits.budget, "power": limits.power_kw}
    return {name: value for name, value in values.items() if value is not None}


def _least(table: _Table, order: Order, limits: Limits, name: str) -> float | None:
    """The smallest value of one limit while the others hold."""
    others = {other: value for other, value in _given(limits).items() if other != name}
    solution = _Model(table, order, others).solve([name])
    if solution is None:
        return None
    taken = _taken(table, order, limits, *solution)
    values: dict[str, float | None] = {
        "time": taken.days, "cost": taken.cost, "power": taken.power_kw,
    }  # fmt: skip
    return values[name]


def _front(table: _Table, order: Order, limits: Limits) -> tuple[Taken, ...]:
    """Sets of choices of which none is both faster and cheaper, cheapest first."""
    found: list[Taken] = []
    at_most = _given(limits)
    if any(one.cost is None for one in table.choices):
        return ()
    while len(found) < _MOST_POINTS:
        solution = _Model(table, order, at_most).solve(["cost", "time"])
        if solution is None:
            break
        found.append(_taken(table, order, limits, *solution))
        at_most = at_most | {"time": found[-1].days - 2.0 * table.unit["time"] * len(table.jobs)}
        if at_most["time"] <= 0.0:
            break
    return tuple(found)


def _taken(table: _Table, order: Order, limits: Limits, rows: Sequence[int], proven: bool) -> Taken:
    chosen = tuple(table.choices[row] for row in rows)
    real = {name: [values[row] for row in rows] for name, values in table.real.items()}
    alone = order == "side-by-side"
    priced = all(one.cost is not None for one in chosen)
    return Taken(
        choices=chosen,
        days=max(real["time"]) if alone else sum(real["time"]),
        cost=sum(real["cost"]) if priced else None,
        mwh=sum(real["energy"]),
        power_kw=sum(real["power"]) if alone else max(real["power"]),
        chance_in_time=_chance_in_time(chosen, limits.deadline_days, alone),
        chance_in_budget=_chance_in_budget(chosen, limits.budget) if priced else None,
        proven=proven,
    )


def _chance_in_time(chosen: Sequence[Choice], days: float | None, alone: bool) -> float | None:
    if days is None:
        return None
    if alone:
        return min(chance(one.days, days) for one in chosen)
    return chance(_summed([one.days for one in chosen]), days)


def _chance_in_budget(chosen: Sequence[Choice], budget: float | None) -> float | None:
    costs = [one.cost for one in chosen if one.cost is not None]
    return None if budget is None else chance(_summed(costs), budget)


def _summed(figures: Sequence[Range]) -> Range:
    """A sum whose errors all go one way."""
    return Range(
        value=sum(one.value for one in figures),
        low=sum(one.low for one in figures),
        high=sum(one.high for one in figures),
    )
