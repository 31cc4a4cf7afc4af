"""Distributions over open facts: medians, products, error bars and what is said of them."""

from __future__ import annotations

from math import exp, log

import pytest

from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.intervals import log_bounds
from planner.predict.uncertainty.open_mixture import (
    NO_DOUBT,
    Doubt,
    OpenFact,
    OpenValue,
    combined,
    doubt_of,
    narrowing,
    open_sentence,
)
from planner.predict.uncertainty.residuals import Spread

SPREAD = Spread(-0.1, 0.2, Family(), 9, 9)


def fact(name: str, silence: float, **effects: float) -> OpenFact:
    """Values of equal weight, by their effect on the time."""
    values = tuple(
        OpenValue(words, words, 1.0 / len(effects), {"time": effect})
        for words, effect in effects.items()
    )
    return OpenFact(name, silence, values)


def test_the_default_has_the_weight_of_silence_and_the_values_share_the_rest() -> None:
    doubt = fact("recompute", 0.6, without=0.0, full=0.3).doubt("time")
    assert doubt.points == pytest.approx((0.0, 0.3))
    assert doubt.weights == pytest.approx((0.8, 0.2))
    assert doubt.median == 0.0
    assert doubt.variance == pytest.approx(0.8 * 0.2 * 0.3**2)


def test_the_headline_is_the_median_of_the_mixture() -> None:
    doubt = fact("recompute", 0.1, without=-0.2, full=0.3).doubt("time")
    assert doubt.weights == pytest.approx((0.45, 0.1, 0.45))
    assert doubt.median == 0.0
    assert fact("recompute", 0.0, without=-0.2, full=0.3).doubt("time").median == -0.2
    assert Doubt((-0.2, 0.3), (0.4, 0.6)).median == 0.3


def test_facts_are_independent_factors() -> None:
    one, other = doubt_of([(0.0, 3.0), (0.3, 1.0)]), doubt_of([(0.0, 1.0), (1.0, 1.0)])
    both = combined([one, NO_DOUBT, other])
    assert both.points == pytest.approx((0.0, 0.3, 1.0, 1.3))
    assert both.weights == pytest.approx((0.375, 0.125, 0.375, 0.125))
    assert both.variance == pytest.approx(one.variance + other.variance)


def test_without_doubt_the_bar_is_that_of_the_residuals() -> None:
    assert log_bounds(SPREAD) == log_bounds(SPREAD, NO_DOUBT) == (-0.1, 0.2)
    one_point = doubt_of([(0.5, 1.0)])
    assert log_bounds(SPREAD, one_point) == pytest.approx((-0.1, 0.2), abs=1e-4)


def test_the_bar_is_that_of_the_mixture_and_not_merely_wider() -> None:
    """A tenth far above moves the upper end far, the lower end hardly."""
    doubt = doubt_of([(0.0, 0.8), (1.0, 0.2)])
    low, high = log_bounds(SPREAD, doubt)
    assert -0.1 < low < -0.08
    # 0.9 = 0.8 + 0.2 F(high - 1), nearly: the upper value's median.
    assert high == pytest.approx(1.0, abs=0.01)
    mostly = log_bounds(SPREAD, doubt_of([(0, 0.95), (1, 0.05)]))[1]
    below = 0.95 * SPREAD.below(mostly) + 0.05 * SPREAD.below(mostly - 1.0)
    assert below == pytest.approx(0.9, abs=2e-3)


def test_the_bar_is_about_the_median() -> None:
    doubt = doubt_of([(0.0, 0.2), (1.0, 0.8)])
    low, high = log_bounds(SPREAD, doubt)
    assert doubt.median == 1.0
    assert low == pytest.approx(-1.0, abs=0.01)
    assert 0.15 < high < 0.2


def test_what_would_narrow_the_bar_most_is_what_adds_most_variance() -> None:
    small, large = fact("compile", 0.9, y=-0.1, n=0.0), fact("flash", 0.9, y=0.0, n=0.4)
    rare = fact("loss", 0.999, y=0.0, n=1.0)
    still = fact("overlap", 0.5, y=0.0, n=0.001)
    assert narrowing([small, large, rare, still], "time") is large
    sure = [fact(name, 1.0, y=0.0, n=effect) for name, effect in (("a", 0.2), ("b", 0.4))]
    assert narrowing(sure, "time") is sure[1]
    assert narrowing([*sure, small], "time") is small
    assert narrowing([still], "time") is narrowing([large], "memory") is None
    assert still.doubt("time") == NO_DOUBT


def test_the_sentence_names_each_likely_value_once() -> None:
    one = fact("recompute", 0.9, full=log(10.6 / 8.1), without=0.0, attention=0.0001)
    said = open_sentence(one, "time", 8.1, "{:.1f} s".format)
    assert said == "recompute not stated: 8.1 s without or attention, 10.6 s full"
    assert one.factor("time") == pytest.approx(10.6 / 8.1)
    rare = OpenValue("rare", "r", 0.001, {"time": 2.0})
    assert "rare" not in open_sentence(OpenFact("f", 0.9, (*one.values, rare)), "time", 1.0, str)


def test_neighbouring_outcomes_are_joined_but_the_default_stays_itself() -> None:
    many = doubt_of([(0.0, 0.5), (0.001, 0.2), (0.3, 0.2), (0.302, 0.1)])
    assert many.points == pytest.approx((0.0, 0.001, (0.06 + 0.0302) / 0.3))
    assert sum(many.weights) == pytest.approx(1.0)
    assert exp(many.median) == 1.0
