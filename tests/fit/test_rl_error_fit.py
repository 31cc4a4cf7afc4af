"""Bars that are fitted: by the interval score, with open facts apart, with sources as witnesses."""

import random

import pytest

from planner.predict.rl.errors import Ends
from tests.fit.rl_error_fit import Miss, fitted, repeat_of, shared_of, weighted


def drawn(deviation: float, opened: float = 0.0, count: int = 400, source: str = "a") -> list[Miss]:
    rng = random.Random(5)
    parts = (("generation", 1.0),)
    return [
        Miss(source, rng.gauss(0.0, (deviation**2 + opened**2) ** 0.5), opened, parts)
        for _ in range(count)
    ]


def test_a_bar_ends_where_80_percent_of_the_errors_do() -> None:
    assert fitted(drawn(0.3)) == pytest.approx((1.28 * 0.3, 1.28 * 0.3), rel=0.15)


def test_what_is_open_is_no_error_of_the_model() -> None:
    assert fitted(drawn(0.3, opened=0.8)) == pytest.approx((1.28 * 0.3, 1.28 * 0.3), rel=0.4)
    assert max(fitted(drawn(0.0, opened=0.8))) < 0.4


def test_a_source_of_many_rows_weighs_as_the_root_of_them() -> None:
    some = [*drawn(0.2, count=100), *drawn(0.2, count=4, source="b")]
    weights = {name: sum(w for one, w in weighted(some) if one.source == name) for name in "ab"}
    assert weights["a"] / weights["b"] == pytest.approx(5.0)


def test_repeats_are_told_by_rows_of_one_source_about_their_mean() -> None:
    logs = (0.5, 0.6, 0.7)
    parts = (("generation", 1.0),)
    assert repeat_of([Miss("a", log, 0.0, parts) for log in logs]) == pytest.approx(0.1)


def test_errors_of_phases_that_cancel_are_not_shared() -> None:
    parts = (("generation", 1.0), ("training", 1.0))
    ends = {"generation": Ends(0.4, 0.4), "training": Ends(0.4, 0.4)}
    small = [Miss("a", sign * 0.15, 0.0, parts) for sign in (-1, 1) for _ in range(10)]
    large = [Miss("a", sign * 0.39, 0.0, parts) for sign in (-1, 1) for _ in range(10)]
    assert shared_of(small, ends) == 0.0
    assert shared_of(large, ends) == 1.0
