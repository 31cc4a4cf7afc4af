"""The choice of clusters against all sets of choices, on tables made up at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.compare.decision import decide
from planner.compare.interval import Range, bound, chance
from planner.compare.results import Choice, ChoiceLimits, Order
from planner.job.errors import UsageError

ORDERS: tuple[Order, ...] = ("side-by-side", "one-after-another", "mixed")
SURE = 0.9
FIGURE = Range(value=100.0, low=80.0, high=150.0)


def choice(job: str, cluster: str, days: float, cost: float | None, kw: float = 1.0) -> Choice:
    return Choice(
        job=job,
        cluster=cluster,
        num_gpus=8,
        days=_range(days),
        cost=None if cost is None else _range(cost),
        mwh=_range(days * kw),
        power_kw=kw,
    )


def _range(value: float) -> Range:
    return Range(value=value, low=value / 1.2, high=value * 1.3)


NUMBERS = st.integers(1, 60).map(float)
TABLES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("uvwxy"), NUMBERS, NUMBERS, NUMBERS),
    min_size=2,
    max_size=8,
    unique_by=lambda row: row[:2],
).map(lambda rows: [choice(*row) for row in rows])


def every_set(choices: list[Choice], order: Order) -> Iterator[tuple[float, float, float]]:
    """(days, cost, kW) of each set of choices, one a job, at the bounds."""
    jobs = dict.fromkeys(one.job for one in choices)
    for taken in product(*([one for one in choices if one.job == job] for job in jobs)):
        same = len({one.cluster for one in taken}) == 1
        days = [bound(one.days, SURE) for one in taken]
        cost = sum(bound(one.cost, SURE) for one in taken if one.cost)
        power = [one.power_kw for one in taken]
        if order != "one-after-another":
            yield max(days), cost, sum(power)
        if order != "side-by-side" and same:
            yield sum(days), cost, max(power)


@given(TABLES, st.sampled_from(ORDERS), NUMBERS, NUMBERS, NUMBERS)
def test_the_choice_is_the_best_of_all(
    choices: list[Choice], order: Order, days: float, budget: float, power: float
) -> None:
    limits = ChoiceLimits(
        deadline_days=2 * days, budget=2 * budget, power_kw=2 * power, certainty=SURE
    )
    close = 1 + 1e-4
    found = decide(choices, limits, "cost", order)
    sets = list(every_set(choices, order))
    kept = [s for s in sets if s[0] <= 2 * days and s[1] <= 2 * budget and s[2] <= 2 * power]
    surely = [s for s in kept if s[0] * close <= 2 * days and s[1] * close <= 2 * budget]
    if found.best is None:
        assert not surely
        return
    assert found.best.gap == 0.0
    assert found.best.cost is not None
    assert found.best.cost <= min((s[1] for s in surely), default=math.inf) * close
    assert found.best.days <= 2 * days * close and found.best.power_kw <= 2 * power
    for one in found.front:
        assert one.cost is not None
        beaten = [s for s in kept if s[0] < one.days / close and s[1] < one.cost / close]
        assert not beaten


@given(TABLES, st.sampled_from(ORDERS))
def test_the_smallest_limit_that_works_works(choices: list[Choice], order: Order) -> None:
    short = decide(choices, ChoiceLimits(deadline_days=0.01, certainty=SURE), "cost", order)
    assert short.best is None
    sets = list(every_set(choices, order))
    if not sets:
        assert short.least == {"time": None}
        return
    least = short.least["time"]
    assert least == pytest.approx(min(s[0] for s in sets), rel=1e-4)
    again = decide(
        choices, ChoiceLimits(deadline_days=least * 1.001, certainty=SURE), "cost", order
    )
    assert again.best is not None


def test_mixed_orders_share_what_power_and_racks_cannot_have_twice() -> None:
    """Three jobs of 10 days on one cluster of 4 racks: two of it end in 20 days."""
    table = [choice(name, "u", 10, 10).model_copy(update={"racks": 4}) for name in "abc"]
    limits = ChoiceLimits(racks=8, certainty=0.5)
    assert decide(table, limits, "time", "side-by-side").least == {"racks": 12.0}
    best = decide(table, limits, "time", "mixed").best
    assert best is not None and (best.days, best.racks) == (pytest.approx(20.0), 8)
    assert sorted(best.together.count(number) for number in (0, 1)) == [1, 2]


def test_bound_and_chance_are_inverse() -> None:
    for certainty in (0.5, 0.8, 0.9, 0.99):
        assert chance(FIGURE, bound(FIGURE, certainty)) == pytest.approx(certainty)
    assert bound(FIGURE, 0.9) == pytest.approx(FIGURE.high)
    assert chance(FIGURE, FIGURE.low) == pytest.approx(0.1)
    assert chance(FIGURE, 0.0) == 0.0


def test_a_choice_without_a_price_is_not_the_cheapest() -> None:
    table = [choice("", "u", 5, None), choice("", "v", 9, 12)]
    best = decide(table, ChoiceLimits()).best
    assert best is not None and best.choices[0].cluster == "v"
    fastest = decide(table, ChoiceLimits(), "time").best
    assert fastest is not None and fastest.choices[0].cluster == "u" and fastest.cost is None
    nothing = decide(table[:1], ChoiceLimits(budget=10.0))
    assert nothing.best is None and "priced" in nothing.reason


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to choose"):
        decide([], ChoiceLimits())
