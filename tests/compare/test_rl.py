"""Clusters for reinforcement learning: samples for the money, with limits, with other GPUs that
sample."""

from __future__ import annotations

import pytest

from planner.compare.offers import Offer
from planner.compare.results import ChoiceLimits
from planner.compare.rl import RlRow, compare_rl
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.rl.request import RlRequest
from tests.search.rl.conftest import small

QUOTED = (
    Offer(gpus="2xH100", on_demand=2.0),
    Offer(gpus="4xH100", on_demand=2.0),
)  # fmt: skip


def blank(**given: object) -> RlRequest:
    request = small(**given)
    return request.model_copy(update={"trainer": request.trainer.model_copy(update={"gpus": None})})


def of(rows: tuple[RlRow, ...], name: str) -> RlRow:
    return next(row for row in rows if row.name == name)


def test_samples_for_the_money_follow_from_step_and_price() -> None:
    found = compare_rl(blank(), QUOTED, samples=100_000)
    assert found.best == found.rows[0].name
    for row in found.rows:
        assert row.plan and row.samples_per_s and row.samples_per_unit and row.cost and row.days
        assert row.price_per_hour == pytest.approx(2.0 * row.gpus)
        # Interruptions take a small part of the time.
        assert row.samples_per_s.value == pytest.approx(
            row.plan.samples / row.plan.step_s, rel=0.02
        )
        worth = 3600.0 * row.samples_per_s.value / row.price_per_hour
        assert row.samples_per_unit.value == pytest.approx(worth)
        assert row.cost.value == pytest.approx(100_000 / worth)
        assert row.cost.low < row.cost.value < row.cost.high
    values = [row.samples_per_unit.value for row in found.rows if row.samples_per_unit]
    assert values == sorted(values, reverse=True)


def test_what_is_minimised_decides_what_to_take() -> None:
    fastest = compare_rl(blank(), QUOTED, minimise="time")
    rates = {row.name: row.samples_per_s.value for row in fastest.rows if row.samples_per_s}
    assert fastest.best == max(rates, key=lambda name: rates[name])


def test_other_gpus_may_sample_and_are_paid_for() -> None:
    found = compare_rl(blank(staleness="1"), (Offer(gpus="2xH100"),), ("2xL40S",))
    pair = of(found.rows, "2xH100 + 2xL40S")
    alone = of(found.rows, "2xH100")
    assert pair.plan and pair.plan.placement == "separate" and pair.gpus == 4
    assert (pair.plan.trainer_gpu, pair.plan.engine_gpu) == ("H100-SXM5-80GB", "L40S")
    assert pair.price_per_hour and alone.price_per_hour
    assert pair.price_per_hour > alone.price_per_hour
    assert pair.power_kw > alone.power_kw


def test_limits_leave_clusters_out() -> None:
    power = compare_rl(blank(), QUOTED, limits=ChoiceLimits(power_kw=4.0))
    assert power.best == "2xH100"
    assert of(power.rows, "4xH100").beyond == "power"
    budget = compare_rl(blank(), QUOTED, samples=10_000_000, limits=ChoiceLimits(budget=1.0))
    assert budget.best is None
    assert {row.beyond for row in budget.rows} == {"budget"}


def test_a_cluster_without_a_plan_says_why() -> None:
    request = blank()
    huge = request.model_copy(
        update={"trainer": request.trainer.model_copy(update={"model": "qwen3-32b"})}
    )
    row = compare_rl(huge, (Offer(gpus="2xH100"),)).rows[0]
    assert row.plan is None and "nothing fits" in row.reason


def test_wrong_input() -> None:
    with pytest.raises(UsageError, match="--samples 10M"):
        compare_rl(blank(), QUOTED, limits=ChoiceLimits(deadline_days=3.0))
    with pytest.raises(UsageError, match="no cluster"):
        compare_rl(blank(), ())
    with pytest.raises(UsageError, match="--rate EUR"):
        compare_rl(blank(), QUOTED, settings=Settings(currency="EUR"))
