"""Choose clusters: the cheapest, the fastest or the one that uses least energy within a deadline, a
budget, a power limit and a number of racks. CP-SAT proves the choice over a table of (job, cluster)
-> days, money, energy.

Step times, and with them days and cost, are uncertain, so every figure of a choice is its upper
bound at the requested `certainty`. The bounds of several jobs are added as if all errors had the
same sign, which is on the safe side. A choice with gap 0 is proven. Figures (except racks) are
rounded up to a millionth of the largest, so choices that differ by less count as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from planner.compare.interval import Range, chance
from planner.compare.results import (
    SUMS,
    Choice,
    ChoiceLimits,
    Decision,
    Objective,
    Order,
    Run,
    Taken,
)
from planner.compare.run import facility_kw
from planner.compare.runner_up import runner_up
from planner.compare.settings import CostBasis
from planner.job.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

Group = list[tuple[int, "IntVar"]]
# The largest sum of a table in the solver's whole numbers.
_STEPS = 10**6
_MOST_POINTS = 24
# Deterministic seconds of one solve; after that, the best solution so far is taken, with its gap.
_SOLVE_S = 3.0


def choice_of(job: str, cluster: str, num_gpus: int, run: Run, basis: CostBasis) -> Choice:
    """A run as a choice at one kind of price."""
    rental = None if basis == "owned" else run.rental(basis)
    priced = run.priced(basis)
    return Choice(
        job=job,
        cluster=cluster,
        num_gpus=num_gpus,
        days=run.days,
        cost=run.cost(basis),
        mwh=run.energy.mwh,
        power_kw=facility_kw(run.energy.drawn_w, num_gpus),
        racks=run.racks,
        basis=basis,
        provider="" if rental is None else rental.price.provider,
        price_age="" if priced is None else priced.age,
        beyond_measured=run.beyond_measured,
        run=run,
    )


def best_of(
    runs: Sequence[tuple[str, int, Run]],
    limits: ChoiceLimits,
    objective: Objective,
    basis: CostBasis,
) -> Decision | None:
    """The best of one job's runs, given as (cluster, GPUs, run); None without runs. If no run has a
    price and there is no budget, the fastest run is chosen instead of the cheapest."""
    choices = [choice_of("", name, gpus, run, basis) for name, gpus, run in runs]
    if not choices:
        return None
    unpriced = all(one.cost is None for one in choices) and limits.budget is None
    return decide(choices, limits, "time" if unpriced and objective == "cost" else objective)


class _Table:
    """The choices in whole numbers, as the solver needs them, and the rows of each job. Choices
    that may never end are left out, and so are those without a price if a price is needed."""

    def __init__(
        self, choices: Sequence[Choice], limits: ChoiceLimits, objective: Objective
    ) -> None:
        needs_price = objective == "cost" or limits.budget is not None
        bounds = [one.bounds(limits.certainty) for one in choices]
        known = [
            (one, found)
            for one, found in zip(choices, bounds, strict=True)
            if isfinite(found["time"]) and not (needs_price and one.cost is None)
        ]
        self.choices = [one for one, _ in known]
        self.jobs = list(dict.fromkeys(one.job for one in choices))
        self.real = {name: [found[name] for _, found in known] for name in bounds[0]}
        self.unit = {
            name: max(values, default=1.0) * len(self.jobs) / _STEPS or 1.0
            for name, values in self.real.items()
        } | {"racks": 1.0}
        self.whole = {
            name: [ceil(value / self.unit[name] - 1e-9) for value in values]
            for name, values in self.real.items()
        }

    def of_job(self, job: str) -> list[int]:
        return [index for index, one in enumerate(self.choices) if one.job == job]


class _Model:
    """One solve: exactly one choice for each job, within limits in the table's units.

    `groups`: rows that run one after another on the same cluster, each with the variable that says
    whether it does.
    """

    def __init__(self, table: _Table, order: Order, at_most: dict[str, float]) -> None:
        from ortools.sat.python import cp_model

        self.table, self.module = table, cp_model
        self.model: CpModel = cp_model.CpModel()
        self.taken = [self.model.new_bool_var(f"{one.job}|{one.cluster}") for one in table.choices]
        for job in table.jobs:
            self.model.add_exactly_one(self.taken[index] for index in table.of_job(job))
        self.groups = list(self._groups(order))
        self.total: dict[str, Any] = {
            "cost": self._sum("cost", enumerate(self.taken)),
            "energy": self._sum("energy", enumerate(self.taken)),
            "time": self.model.new_int_var(0, 2 * _STEPS, "time"),
            "power": sum(self._largest("power", group) for group in self.groups),
            "racks": sum(self._largest("racks", group) for group in self.groups),
        }
        for group in self.groups:
            self.model.add(self.total["time"] >= self._sum("time", group))
        for name, limit in at_most.items():
            self.model.add(self.total[name] <= int(limit / table.unit[name] + 1e-6))

    def _groups(self, order: Order) -> Iterator[Group]:
        """The groups for an order. Side by side: each row is a group. One after another: the rows
        of each cluster are a group, and exactly one cluster is taken. Mixed: each cluster has as
        many groups as jobs can run there, because it may be taken several times."""
        if order == "side-by-side":
            yield from ([pair] for pair in enumerate(self.taken))
            return
        chosen = []
        for cluster in dict.fromkeys(one.cluster for one in self.table.choices):
            rows = [row for row, one in enumerate(self.table.choices) if one.cluster == cluster]
            if order == "mixed":
                yield from self._copies(rows)
                continue
            chosen.append(self.model.new_bool_var(cluster))
            for row in rows:
                self.model.add_implication(self.taken[row], chosen[-1])
            yield [(row, self.taken[row]) for row in rows]
        if chosen:
            self.model.add_exactly_one(chosen)

    def _copies(self, rows: list[int]) -> list[Group]:
        """Copies of one cluster, as many as jobs can run there. Each job runs on one of them; the
        first job may only take the first copy, the second job the first two, and so on."""
        groups: list[Group] = [[] for _ in rows]
        for count, row in enumerate(rows, start=1):
            on = [self.model.new_bool_var(f"{row} on {copy}") for copy in range(count)]
            self.model.add(sum(on) == self.taken[row])
            for group, literal in zip(groups, on, strict=False):
                group.append((row, literal))
        return groups

    def _sum(self, name: str, group: Iterable[tuple[int, IntVar]]) -> Any:
        return sum(self.table.whole[name][row] * literal for row, literal in group)

    def _largest(self, name: str, group: Group) -> Any:
        if len(group) == 1:
            return self._sum(name, group)
        most = self.model.new_int_var(0, 2 * _STEPS, f"largest {name}")
        for pair in group:
            self.model.add(most >= self._sum(name, [pair]))
        return most

    def solve(self, aims: Sequence[str]) -> _Solution | None:
        """The rows taken and the gap; None if nothing keeps the limits. The first aim is minimised,
        then each next one among the solutions that are best by the aims before it. The gap belongs
        to the first aim: the share by which a better solution may exist, 0 if it is proven that
        none does. CannotTellError if the solver's time ends without any solution."""
        found: _Solution | None = None
        for aim in aims:
            solver = self.module.CpSolver()
            solver.parameters.num_workers = 1
            solver.parameters.max_deterministic_time = _SOLVE_S
            self.model.minimize(self.total[aim])
            status = solver.solve(self.model)
            if status == self.module.UNKNOWN and found is None:
                raise CannotTellError(
                    "whether any set of these clusters keeps the limits was not decided in the "
                    "solver's time: give fewer jobs or clusters, or another --order"
                )
            if status not in (self.module.OPTIMAL, self.module.FEASIBLE):
                break
            gap = 1.0 - solver.best_objective_bound / max(1.0, solver.objective_value)
            rows = {
                row: number
                for number, group in enumerate(self.groups)
                for row, literal in group
                if solver.value(literal)
            }
            found = rows, found[1] if found else max(0.0, gap)
            self.model.add(self.total[aim] <= int(solver.objective_value + 0.5))
        return found


# Rows taken, each with the number of its cluster; and the gap of the first aim.
_Solution = tuple[dict[int, int], float]


def decide(
    choices: Sequence[Choice],
    limits: ChoiceLimits,
    objective: Objective = "cost",
    order: Order = "side-by-side",
) -> Decision:
    """The best choice from a table. UsageError if it is empty.

    `order`: jobs one after another on one cluster (their days add up), side by side on one cluster
    each (their power and racks add up), or mixed: side by side or in turn on any number of
    clusters. Ties go to the faster, then the cheaper choice.
    """
    if not choices:
        raise UsageError("no job has a plan on any of the clusters: there is nothing to choose")
    table = _Table(choices, limits, objective)
    basis = Decision(limits=limits, objective=objective, order=order, best=None)
    missing = [job for job in table.jobs if not table.of_job(job)]
    if missing:
        return basis.model_copy(update={"reason": f"no priced cluster runs {', '.join(missing)}"})
    aims = [objective, *(name for name in ("time", "cost", "energy") if name != objective)]
    solution = _Model(table, order, limits.given).solve(aims)
    if solution is None:
        least = {name: _least(table, order, limits, name) for name in limits.given}
        free = ChoiceLimits(certainty=limits.certainty)
        alone: dict[str, Taken | None] = {}
        if not any(least.values()):
            alone = {name: _least(table, order, free, name) for name in least}
        unsure = any(taken.gap for taken in (*least.values(), *alone.values()) if taken)
        reason = "nothing keeps all limits" + ("; smaller values may be enough" if unsure else "")
        return basis.model_copy(
            update={
                "reason": reason,
                "least": {name: _value(taken, name) for name, taken in least.items()},
                "alone": {name: _value(taken, name) for name, taken in alone.items()},
                "front": _front(table, order, free),
            }
        )
    best = _taken(table, limits, solution)
    (first, *further), found = best.choices, table.choices
    return basis.model_copy(
        update={
            "best": best,
            "front": _front(table, order, limits),
            "runner_up": None if further else runner_up(first, found, limits, objective),
        }
    )


def _least(table: _Table, order: Order, limits: ChoiceLimits, name: str) -> Taken | None:
    """The set of choices with the smallest value of one sum, which has no limit itself, within the
    limits on the other sums. None if those cannot be kept."""
    others = {other: value for other, value in limits.given.items() if other != name}
    solution = _Model(table, order, others).solve([name])
    return None if solution is None else _taken(table, limits, solution)


def _value(taken: Taken | None, name: str) -> float | None:
    value = None if taken is None else getattr(taken, SUMS[name][1])
    return None if value is None else float(value)


def _front(table: _Table, order: Order, limits: ChoiceLimits) -> tuple[Taken, ...]:
    """Sets of choices within the limits, cheapest first, each faster than the one before; at most
    `_MOST_POINTS`. Empty if any choice has no price, or if nothing keeps the limits."""
    found: list[Taken] = []
    at_most = limits.given
    if any(one.cost is None for one in table.choices):
        return ()
    while len(found) < _MOST_POINTS:
        solution = _Model(table, order, at_most).solve(["cost", "time"])
        if solution is None:
            break
        found.append(_taken(table, limits, solution))
        at_most = at_most | {"time": found[-1].days - 2.0 * table.unit["time"] * len(table.jobs)}
        if at_most["time"] <= 0.0:
            break
    return tuple(found)


def _taken(table: _Table, limits: ChoiceLimits, solution: _Solution) -> Taken:
    taken, gap = solution
    rows = sorted(taken)
    numbers = list(dict.fromkeys(taken[row] for row in rows))
    groups = [[row for row in rows if taken[row] == number] for number in numbers]
    chosen = tuple(table.choices[row] for row in rows)
    priced = all(one.cost is not None for one in chosen)

    in_time = in_budget = None
    if limits.deadline_days is not None:
        days = ([table.choices[row].days for row in group] for group in groups)
        in_time = min(chance(_summed(some), limits.deadline_days) for some in days)
    if limits.budget is not None and priced:
        costs = [one.cost for one in chosen if one.cost is not None]
        in_budget = chance(_summed(costs), limits.budget)

    def largest(name: str) -> float:
        return sum(max(table.real[name][row] for row in group) for group in groups)

    return Taken(
        choices=chosen,
        together=tuple(numbers.index(taken[row]) for row in rows),
        days=max(sum(table.real["time"][row] for row in group) for group in groups),
        cost=sum(table.real["cost"][row] for row in rows) if priced else None,
        mwh=sum(table.real["energy"][row] for row in rows),
        power_kw=largest("power"),
        racks=round(largest("racks")),
        chance_in_time=in_time,
        chance_in_budget=in_budget,
        gap=gap,
    )


def _summed(figures: Sequence[Range]) -> Range:
    """The sum of figures, as if all their errors had the same sign."""
    names = ("value", "low", "high")
    return Range(**{name: sum(getattr(one, name) for one in figures) for name in names})
