"""A ramp's plans: each batch costed as an evaluation of it would be, and every one legal."""

from __future__ import annotations

import pytest

from planner.compare.run import ideal_days
from planner.compare.searches import Task, search_one
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from planner.search.search import find_plans

BASE = Request(model="llama-3.2-1b", gpus="8xH100", seq=4096, recompute=("none",))
RAMP = BASE.model_copy(update={"batch_ramp": "16:1B,40:3B,64"})


def test_step_times_and_days_along_a_ramp() -> None:
    degrees = Degrees(tp=2, dp=4, zero=1, mbs=2, grad_acc=8)
    plan = evaluate(RAMP, degrees)
    assert [(batch.gbs, batch.grad_acc) for batch in plan.ramp] == [(16, 2), (40, 5)]
    for batch in plan.ramp:
        alone = BASE.model_copy(update={"gbs": batch.gbs})
        at = degrees.model_copy(update={"grad_acc": batch.grad_acc})
        assert batch.step_time_s == pytest.approx(evaluate(alone, at).step_time_s, rel=1e-9)
    steps = [1e9 / 16 / 4096, 2e9 / 40 / 4096, 7e9 / 64 / 4096]
    times = [*(batch.step_time_s for batch in plan.ramp), plan.step_time_s]
    by_hand = sum(count * time for count, time in zip(steps, times, strict=True))
    assert plan.training_s(1e10) == pytest.approx(by_hand)
    days = ideal_days(plan, 10**10)
    assert days.value == pytest.approx(by_hand / 86400)
    assert days.high / days.value == pytest.approx(plan.step_time.high / plan.step_time_s)
    # A training that ends within the ramp, and one without a ramp.
    assert plan.training_s(5e8) == pytest.approx(0.5 * steps[0] * times[0])
    assert evaluate(BASE.model_copy(update={"gbs": 64}), degrees).ramp == ()


def test_every_plan_of_a_search_can_run_the_whole_ramp() -> None:
    """16, 40 and 64 sequences have 8 as their common divisor."""
    plans = find_plans(RAMP).plans
    assert plans and all(8 % (plan.degrees.dp * plan.degrees.mbs) == 0 for plan in plans)
    assert all(plan.ramp_text == "16:1000000000,40:3000000000,64" for plan in plans)
    free = find_plans(BASE.model_copy(update={"gbs": 64})).plans
    assert any(8 % (plan.degrees.dp * plan.degrees.mbs) for plan in free)


def test_degrees_that_a_batch_of_it_cannot_have_are_refused_with_what_can() -> None:
    with pytest.raises(UsageError, match=r"batch of 40 sequences.*must divide 8.*\[batch-ramp\]"):
        evaluate(RAMP, Degrees(tp=1, dp=8, zero=1, mbs=2, grad_acc=4))


def test_tokens_take_the_nearest_batch_within_the_tolerance() -> None:
    ramp = BASE.model_copy(update={"batch_ramp": "250K:1B,1M"})
    plan = find_plans(ramp, fastest_only=True).plans[0]
    assert abs(plan.ramp[0].gbs * 4096 / 250e3 - 1) <= 0.05


def test_plans_of_a_known_training_are_ranked_by_the_whole_ramp() -> None:
    """The many micro-batches of the last batch hide a pipeline's bubble; beside the sum of the
    fastest steps at each batch, which no plan beats, little is lost."""
    request = Request(
        model="qwen2.5-32b",
        gpus="32xH100",
        seq=4096,
        batch_ramp="32:1.8T,2048",
        recompute=("none",),
    )
    plans = search_one(Task(request, only_plans=True, tokens=2 * 10**12)).result
    by_last = find_plans(request, fastest_only=True).plans[0]
    assert plans is not None and plans.recommended == 1
    seconds = [plan.training_s(2e12) for plan in plans.plans]
    assert seconds == sorted(seconds) and seconds[0] < 0.995 * by_last.training_s(2e12)
    first = find_plans(
        request.model_copy(update={"batch_ramp": None, "gbs": 32}), top=1, fastest_only=True
    ).plans[0]
    least = 1.8e12 / first.tokens_per_s + 0.2e12 / by_last.tokens_per_s
    assert seconds[0] < 1.005 * least
