"""What is expected of the fastest of many plans."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest

from planner.predict.uncertainty import selection
from planner.predict.uncertainty.differences import (
    DifferenceScales,
    Standing,
    shipped_scales,
    standing_of,
)
from planner.predict.uncertainty.selection import REACH, expected_ratio, luck_of
from tests.cli.made_up import plan

WINNER = standing_of(plan(), "", mixture=False)


def standings(paces: list[float]) -> list[Standing]:
    """Plans of as many switches, none of which shares the error of its own with another."""
    return [
        WINNER._replace(
            switches=(f"choice {index}", *WINNER.switches[1:]),
            pace=pace,
            tokens=float(2**12 + index),
        )
        for index, pace in enumerate(paces)
    ]


def test_one_plan_among_far_slower_ones_owes_nothing_to_luck() -> None:
    winner, *others = standings([1.0, 1.6, 1.7, 2.0])
    found = luck_of(winner, others)
    assert (found.rivals, found.longer) == (0, 0.0)
    assert expected_ratio(winner, others[0], others).value == pytest.approx(1.6, rel=0.02)


def test_more_near_plans_flatter_the_winner_more() -> None:
    lucks = []
    for count in (2, 8, 40):
        winner, *others = standings([1.0 + 0.001 * index for index in range(count)])
        lucks.append(luck_of(winner, others))
    assert [one.rivals for one in lucks] == [1, 7, 39]
    assert all(less.longer < more.longer for less, more in pairwise(lucks))


def test_errors_differ_as_much_as_the_scales_say() -> None:
    """In 200 draws a deviation is known to a fifth."""
    first = WINNER._replace(exposed=0.1)
    others = [
        first._replace(degrees=(first.degrees[0] * 8, *first.degrees[1:])),
        first._replace(tokens=first.tokens / 4, exposed=0.3),
        first._replace(switches=("other", *first.switches[1:]), pace=first.pace * 1.3),
        first._replace(techniques=frozenset({"tp-overlap", "cuda-graphs"}), mixture=True),
    ]
    errors = selection._errors([first, *others[:3]])
    scales = shipped_scales()
    for index, other in enumerate(others[:3], start=1):
        drawn = float((errors[:, index] - errors[:, 0]).std())
        assert drawn == pytest.approx(scales.deviation(first, other), rel=0.2)
    mixed = selection._errors([first, others[3]])
    drawn = float((mixed[:, 1] - mixed[:, 0]).std())
    assert drawn == pytest.approx(scales.deviation(first, others[3]), rel=0.2)


def test_a_lead_shrinks_less_over_a_plan_that_shares_the_winners_error() -> None:
    paces = [1.0 + 0.002 * index for index in range(30)]
    winner, *others = standings(paces)
    twin = winner._replace(pace=1.1)
    stranger = WINNER._replace(degrees=tuple(8 * one for one in winner.degrees), pace=1.1)
    near, far = (expected_ratio(winner, one, others) for one in (twin, stranger))
    assert 1.1 >= near.value > far.value
    assert log(near.high / near.low) < log(far.high / far.low)


def test_a_plan_that_was_tuned_is_lucky_too() -> None:
    winner, *others = standings([1.0 + 0.002 * index for index in range(30)])
    other = others[-1]._replace(pace=1.2)
    found, tuned = (
        expected_ratio(winner, other, others, tuned=tuned).value for tuned in (False, True)
    )
    assert 1.2 > found > tuned


def test_plans_beyond_reach_are_no_rivals_and_equal_degrees_count_once() -> None:
    winner, near, far = standings([1.0, 0.99 * exp(REACH), 1.01 * exp(REACH)])
    again = near._replace(switches=("again",))
    assert luck_of(winner, [near, again, far]).rivals == 1


def test_simulated_searches_lose_what_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """True ln(times) of exponentially growing density, predicted with independent errors."""
    deviation = 0.05
    nothing = dict.fromkeys(shipped_scales().scales, 0.0)
    scales = DifferenceScales(nothing | {"configuration": deviation * 2**0.5})
    monkeypatch.setattr(selection, "shipped_scales", lambda: scales)
    draws = np.random.default_rng(7)
    lost, taken_off = [], []
    for _ in range(60):
        true = np.log1p(draws.random(400) * np.expm1(9.0)) / 15.0
        error = draws.normal(0.0, deviation, len(true))
        times = np.exp(true - error)
        winner, *others = standings(sorted(times.tolist()))
        lost.append(error[(true - error).argmin()])
        taken_off.append(log(1.0 + luck_of(winner, others).longer))
    assert np.mean(taken_off) == pytest.approx(np.mean(lost), rel=0.35)
