"""How surely a cluster is better than the next one."""

from __future__ import annotations

from math import log
from types import SimpleNamespace
from typing import Any

import pytest

from planner.compare import runner_up as module
from planner.compare.differences import days_ratio
from planner.compare.interval import Range
from planner.compare.results import Choice, ChoiceLimits
from planner.compare.runner_up import runner_up
from planner.predict.uncertainty.differences import Ratio
from tests.cli.made_up import plan

NO_LIMITS = ChoiceLimits()


def figure(value: float) -> Range:
    return Range(value=value, low=0.8 * value, high=1.3 * value)


def choice(cluster: str, cost: float | None, days: float = 10.0, job: str = "a") -> Choice:
    fields: dict[str, Any] = {
        "job": job, "cluster": cluster, "num_gpus": 64, "days": figure(days),
        "cost": None if cost is None else figure(cost), "mwh": figure(5.0), "power_kw": 90.0,
    }  # fmt: skip
    some_run: Any = SimpleNamespace()
    return Choice.model_construct(**fields, run=some_run)


BEST = choice("64xH100", 100.0)


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of any other cluster: as many, known to 5 %."""
    ratio = Ratio(value=1.0, low=0.95, high=1.05)
    monkeypatch.setattr(module, "days_ratio", lambda _first, _other: ratio)


def test_the_next_best_has_the_figure_that_counts_with_the_error_of_the_difference() -> None:
    others = [BEST, choice("dear", 150.0), choice("near", 104.0), choice("free", None)]
    found = runner_up(BEST, others, NO_LIMITS, "cost")
    assert found is not None and found.cluster == "near"
    ratio = found.ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.04, 0.988, 1.092))
    assert not ratio.is_sure
    sure = runner_up(BEST, [BEST, choice("dear", 150.0)], NO_LIMITS, "cost")
    assert sure is not None and sure.ratio.is_sure


def test_what_breaks_a_limit_or_is_for_another_job_is_not_next() -> None:
    others = [BEST, choice("slow", 101.0, days=40.0), choice("other", 101.0, job="b")]
    assert runner_up(BEST, others, ChoiceLimits(deadline_days=20.0), "cost") is None
    assert runner_up(BEST, others[:2], NO_LIMITS, "cost") is not None
    assert runner_up(BEST.model_copy(update={"run": None}), others, NO_LIMITS, "cost") is None


def run(days: float, low: float, **changes: Any) -> Any:
    """A run whose interruptions leave 0.9 of the time, `low` at worst."""
    job = SimpleNamespace(active_parameters=8, parameters=8, gpu=changes.pop("gpu", "H100"))
    goodput = SimpleNamespace(share=0.9, low=low, high=0.95)
    return SimpleNamespace(job=job, plan=plan(**changes), goodput=goodput, days=figure(days))


def test_days_of_equal_plans_differ_by_their_interruptions_alone() -> None:
    alike = days_ratio(run(10.0, 0.8), run(12.0, 0.8))
    assert (alike.value, alike.low, alike.high) == pytest.approx((1.2, 1.2, 1.2))
    differing = days_ratio(run(10.0, 0.8), run(12.0, 0.6))
    assert log(differing.high / differing.value) == pytest.approx(log(0.8 / 0.6))
    assert differing.low == pytest.approx(1.2)
    never = days_ratio(run(10.0, 0.8), run(12.0, 0.0))
    assert never.high > 1.2


def test_another_type_of_gpu_makes_a_ratio_less_sure() -> None:
    same, other = (days_ratio(run(10.0, 0.8), run(12.0, 0.8, gpu=gpu)) for gpu in ("H100", "A100"))
    assert other.low < same.low <= same.high < other.high
