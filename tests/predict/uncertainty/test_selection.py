"""What is expected of the fastest of many plans."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest

from planner.predict.uncertainty.differences import shipped_scales, standing_of
from planner.predict.uncertainty.selection import NEAREST, crowding, expected_ratio
from tests.cli.made_up import plan


def test_crowding_is_the_rate_of_an_exponential_density() -> None:
    """Times at the middles of equal steps of a density exp(rate x), from the fastest on."""
    for rate in (5.0, 20.0, 60.0):
        span = 3.0 / rate
        steps = (np.arange(NEAREST) + 0.5) / NEAREST
        excess = np.log1p(steps * np.expm1(rate * span)) / rate
        times = 7.0 * np.exp([0.0, *excess])
        assert crowding(times) == pytest.approx(rate, rel=0.25)


def test_few_plans_and_an_even_crowd_show_no_growth() -> None:
    assert crowding([1.0, 1.1, 1.2, 1.3]) == 0.0
    assert crowding([]) == 0.0
    assert crowding([3.0] * 40) == 0.0
    assert crowding([1.0, 1.001, 1.002, 1.003, 1.004, 1.005, 2.0, inf]) == 0.0


def test_a_winners_lead_shrinks_with_the_crowd_and_with_what_is_not_shared() -> None:
    winner = standing_of(plan(), "", mixture=False)
    other = winner._replace(degrees=(8 * winner.degrees[0], *winner.degrees[1:]))
    near = winner._replace(degrees=(2 * winner.degrees[0], *winner.degrees[1:]))
    alone, some, many = (expected_ratio(winner, other, 1.2, rate) for rate in (0.0, 10.0, 20.0))
    assert alone.value == pytest.approx(1.2)
    assert alone.value > some.value > many.value
    variance = shipped_scales().deviation(winner, other) ** 2
    assert log(alone.value / many.value) == pytest.approx(10.0 * variance)
    assert expected_ratio(winner, near, 1.2, 20.0).value > many.value
    assert many.low < many.value < many.high


def test_simulated_searches_lose_what_the_formula_takes_off() -> None:
    """True ln(times) of exponentially growing density, predicted with independent errors."""
    draws, deviation = np.random.default_rng(7), 0.06
    lost, taken_off = [], []
    for _ in range(150):
        true = np.log1p(draws.random(2000) * np.expm1(9.0)) / 15.0
        error = draws.normal(0.0, deviation, len(true))
        predicted = true - error
        lost.append(error[predicted.argmin()])
        taken_off.append(crowding(np.exp(predicted)) * deviation**2)
    assert np.mean(taken_off) == pytest.approx(np.mean(lost), rel=0.3)
