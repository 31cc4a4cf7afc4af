"""Error bars of phases: a sum's bar, what own runs teach, what is open."""

import math

import pytest

from planner.job.request import Request
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.rl.errors import (
    KINDS,
    WIDTH,
    Ends,
    learnt,
    rl_errors,
    step_bar,
    with_bar,
)
from planner.predict.rl.plan import Phase


def phase(seconds: float, low: float = 0.7, high: float = 1.5) -> Phase:
    return Phase("generation", "engine", seconds, {"kv": seconds}, {}, low, high)


def small_job() -> RlJob:
    trainer = Request(
        model="qwen3-0.6b", gpus="1xH100", framework="hf-fsdp2", lengths="prompt=100,response=200"
    )
    return RlRequest(trainer=trainer, algorithm="grpo", prompts=4, samples_per_prompt=4).resolve()


def test_every_phase_has_a_kind_with_errors() -> None:
    assert set(KINDS.values()) <= set(rl_errors().kind)


def test_a_step_of_one_phase_has_its_bar_and_one_of_several_a_narrower() -> None:
    assert step_bar([phase(10.0)]) == pytest.approx((0.7, 1.5))
    low, high = step_bar([phase(10.0), phase(10.0)])
    assert 0.7 < low < 1.0 < high < 1.5


def test_open_lengths_widen_a_bar() -> None:
    job = small_job()
    narrow, wide = with_bar(phase(10.0), job), with_bar(phase(10.0), job, deviation=0.5)
    assert wide.low < narrow.low < 1.0 < narrow.high < wide.high
    assert Ends(0.3, 0.4).and_also(0.0) == (0.3, 0.4)


def test_own_runs_move_a_phase_and_narrow_its_bar() -> None:
    errors = rl_errors().kind["generation"]
    one, many = learnt("generation", [0.3]), learnt("generation", [0.3] * 20)
    assert 1.0 < one.value < many.value < math.exp(0.3) * 1.001
    assert many.spread < one.spread < (errors.low + errors.high) / 2.0 / WIDTH
