"""Ratios of two predicted step times are surer than either, and no surer than their evidence."""

from __future__ import annotations

from math import exp, hypot, log

import pytest

from planner.predict.plan import Degrees, Interval, Plan
from planner.predict.uncertainty.differences import (
    TERMS,
    Ratio,
    plan_ratio,
    shipped_scales,
    squares,
    standing_of,
)
from tests.cli.made_up import plan

OTHER = plan(degrees=Degrees(tp=2, pp=4, dp=4, zero=1, grad_acc=16), recompute="full")


def widths(ratio: Ratio) -> tuple[float, float]:
    return log(ratio.value / ratio.low), log(ratio.high / ratio.value)


def barred(one: Plan, below: float, above: float) -> Plan:
    bar = Interval(low=one.step_time_s / below, high=one.step_time_s * above, family="its cluster")
    return one.model_copy(update={"step_time": bar})


def test_scales_of_every_kind_ship() -> None:
    scales = shipped_scales()
    assert set(scales.scales) == set(TERMS)
    assert all(0.0 <= scale < 1.0 for scale in scales.scales.values()) and scales.mixture >= 1.0


def test_a_plan_is_surely_as_fast_as_itself() -> None:
    assert plan_ratio(plan(), plan(), mixture=False) == Ratio(value=1.0, low=1.0, high=1.0)
    assert not Ratio(value=1.0, low=1.0, high=1.0).is_sure


def test_squares_count_doublings_switches_and_shares() -> None:
    one = standing_of(plan(), "H100", mixture=False)
    other = one._replace(
        gpu="A100", gpus=4 * one.gpus, degrees=(2 * one.degrees[0], *one.degrees[1:]),
        tokens=one.tokens / 2, switches=("other", *one.switches[1:]), exposed=one.exposed + 0.1,
        techniques=frozenset({"tp-overlap", "cuda-graphs"}),
        pace=one.pace * exp(0.5),
    )  # fmt: skip
    found = dict(zip(TERMS, squares(one, other), strict=True))
    assert found == pytest.approx(
        {
            "configuration": 1, "degrees": 1, "micro_batch": 1, "switches": 3, "exposed": 0.01,
            "pace": 0.25, "gpus": 2, "gpu": 1,
        }
    )  # fmt: skip
    assert squares(other, one) == pytest.approx(squares(one, other))


def test_what_differs_more_is_less_sure_and_mixtures_less_than_dense_models() -> None:
    def width(factor: int, *, mixture: bool = False) -> float:
        degrees = plan().degrees
        other = plan(degrees=degrees.model_copy(update={"tp": degrees.tp * factor}))
        first, other = (barred(one, 2.0, 2.0) for one in (plan(), other))
        return widths(plan_ratio(first, other, mixture=mixture))[0]

    assert 0.0 < width(2) < width(8)
    assert width(8, mixture=True) == pytest.approx(width(8) * shipped_scales().mixture)


def test_a_ratio_turned_round_has_its_ends_turned_round() -> None:
    there, back = plan_ratio(plan(), OTHER, False), plan_ratio(OTHER, plan(), False)
    turned = Ratio(value=1 / there.value, low=1 / there.high, high=1 / there.low)
    assert back.model_dump() == pytest.approx(turned.model_dump())


def test_a_difference_is_never_less_sure_than_two_independent_errors() -> None:
    first, other = barred(plan(), 1.001, 1.002), barred(OTHER, 1.003, 1.004)
    below, above = widths(plan_ratio(first, other, mixture=False))
    assert below == pytest.approx(hypot(log(1.003), log(1.002)))
    assert above == pytest.approx(hypot(log(1.004), log(1.001)))
