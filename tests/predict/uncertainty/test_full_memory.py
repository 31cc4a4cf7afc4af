"""The risk of full memory: closed forms, published runs, and what the reports say of it."""

from __future__ import annotations

import re
from functools import cache
from math import log

import pytest
from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.ranking import first_of
from planner.evidence.runs.rows import MeasuredRow
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Interval, Plan, expected_step_time_s
from planner.predict.uncertainty.full_memory import (
    full_memory,
    full_step_time_s,
    with_full_memory,
)
from planner.predict.uncertainty.tails import share_below
from planner.report.plan_table import CURE, full_memory_facts, full_memory_note
from tests.cost.jobs import make_job

EXCHANGE_S = 0.29


def degrees(pp: int, grad_acc: int = 128) -> Degrees:
    return Degrees(tp=4, pp=pp, dp=64 // (4 * pp), zero=1, mbs=1, grad_acc=grad_acc)


@cache
def near_full(framework: str, tp: int, pp: int, dp: int) -> Plan:
    """70B on 64 H100 at the edge of memory."""
    request = Request(model="70b", gpus="64xH100", gbs=256, seq=4608, framework=framework)
    return evaluate(
        request, Degrees(tp=tp, pp=pp, dp=dp, zero=1, mbs=1, grad_acc=256 // dp), recompute="none"
    )


def test_every_exchange_of_every_micro_batch_takes_more() -> None:
    job = make_job("llama-3-70b", "64xH100", framework="nanotron-efa-2025")
    assert full_step_time_s(job, degrees(8), 20.0) == pytest.approx(20 + 4 * 128 * EXCHANGE_S)
    assert full_step_time_s(job, degrees(2, 64), 20.0) == pytest.approx(20 + 2 * 64 * EXCHANGE_S)
    assert full_step_time_s(job, degrees(1), 20.0) is None


def test_only_frameworks_that_were_seen_to_slow_down_do() -> None:
    assert full_step_time_s(make_job("llama-3-70b", "64xH100"), degrees(8), 20.0) is None


@pytest.mark.parametrize("fits", [0.95, 0.05])
def test_no_risk_where_it_surely_fits_nor_where_it_surely_does_not(fits: float) -> None:
    job = make_job("llama-3-70b", "64xH100", framework="nanotron-efa-2025")
    assert full_memory(job, degrees(8), 20.0, fits) is None
    interval = Interval(low=18.0, high=23.0, family="")
    assert with_full_memory(interval, 20.0, 160.0, 1.0 - fits) == interval


def test_allocators_other_than_torch_do_not_ask_again() -> None:
    job = make_job("llama-3-70b", "64xH100", framework="jax-xla")
    assert full_memory(job, degrees(1), 20.0, 0.6) is None


def test_expected_throughput_lies_between_both_outcomes() -> None:
    assert expected_step_time_s(20.0, None, 0.5) == 20.0
    assert expected_step_time_s(20.0, 160.0, 0.0) == pytest.approx(20.0)
    assert expected_step_time_s(20.0, 160.0, 1.0) == pytest.approx(160.0)
    # Half the steps at 1/20, half at 1/160 of a step a second.
    assert expected_step_time_s(20.0, 160.0, 0.5) == pytest.approx(2 / (1 / 20 + 1 / 160))


@pytest.mark.parametrize("chance", [0.12, 0.3, 0.6])
def test_the_upper_end_leaves_a_tenth_of_both_outcomes_above(chance: float) -> None:
    interval = Interval(low=18.0, high=22.0, family="x")
    wide = with_full_memory(interval, 20.0, 160.0, chance)
    assert (wide.low, wide.family) == (interval.low, interval.family)
    # Eight times slower is far beyond ±10 %: what lies above belongs to slow runs alone, of which
    # the ratio to 160 s has the 90 % quantile at 1.1.
    above = 1.0 - share_below(log(wide.high / 160.0) / log(1.1))
    assert chance * above == pytest.approx(0.1, abs=1e-3)


def test_a_small_slowdown_moves_the_upper_end_little() -> None:
    interval = Interval(low=18.0, high=22.0, family="")
    wide = with_full_memory(interval, 20.0, 20.2, 0.3)
    assert 22.0 < wide.high < 22.0 * 1.02


def test_an_evaluated_plan_carries_its_risk() -> None:
    plan = near_full("nanotron-efa-2025", 4, 8, 2)
    risk = plan.full_memory
    assert risk is not None
    assert risk.probability == pytest.approx(1.0 - plan.fit_probability)
    assert risk.step_time_s == pytest.approx(plan.step_time_s + 4 * 128 * EXCHANGE_S)
    assert plan.step_time.high > 3.0 * plan.step_time_s
    assert any("assumes spare memory" in text for text in plan.assumptions)
    ((name, text),) = full_memory_facts(plan)
    assert name == "memory full"
    assert "times as long" in text
    assert text.endswith(CURE)


def test_a_plan_with_memory_to_spare_has_none() -> None:
    plan = near_full("nanotron-efa-2025", 8, 4, 2)
    assert plan.fit_probability > 0.9
    assert plan.full_memory is None
    assert full_memory_facts(plan) == ()


def test_the_note_names_the_plan_that_promises_most() -> None:
    full, spare = near_full("nanotron-efa-2025", 4, 8, 2), near_full("nanotron-efa-2025", 8, 4, 2)
    assert full.step_time_s < spare.step_time_s
    assert full.full_memory is not None
    risky = full.full_memory.model_copy(update={"probability": 0.8})
    doubtful = full.model_copy(update={"full_memory": risky})
    assert "plan 1: " in full_memory_note([(1, doubtful), (2, spare)])
    assert full_memory_note([(1, spare)]) == ""


def test_other_frameworks_get_the_cure_and_no_seconds() -> None:
    plan = near_full("megatron-core", 4, 8, 2)
    seconds_unknown = full_memory(
        make_job("llama-3-70b", "64xH100"), plan.degrees, plan.step_time_s, 0.7
    )
    assert seconds_unknown is not None
    assert seconds_unknown.step_time_s is None
    assert "kept their speed" in seconds_unknown.note
    assert full_memory_note([(1, plan.model_copy(update={"full_memory": seconds_unknown}))]) == CURE


# Ultra-Scale Playbook sweep, 80B on 64 H100, batch 256 of 4,096: tp, pp, dp, ZeRO, micro-batch,
# layers per stage, stage of the head, seconds of a step, GiB reserved on rank 0. The constant was
# fitted on the 8B runs.
SWEEP_80B = [
    (4, 16, 1, "none", 1, "6/5x13/6/3", 15, 24.64, 63.1),
    (8, 2, 4, "zero1", 1, "41/39", 1, 55.01, 65.6),
    (8, 8, 1, "none", 1, "11/10x6/9", 7, 59.70, 41.7),
    (8, 4, 2, "zero1", 1, "21/20x2/19", 3, 66.57, 61.8),
    (8, 4, 2, "zero1", 2, "21/20x2/19", 3, 97.10, 64.2),
    (4, 8, 2, "zero1", 1, "11/10x6/9", 7, 166.97, 74.3),
]


def sweep() -> list[MeasuredRow]:
    shape = {
        "source": "hf-ultrascale-playbook", "model": "Llama-arch-80B", "layers": "80",
        "hidden": "8192", "ffn": "28672", "heads": "64", "kv_heads": "64", "vocab": "131072",
        "act": "swiglu", "seq": "4096", "gpu": "H100-80GB", "num_gpus": "64",
        "gpus_per_node": "8", "vpp": "1", "cp": "1", "ep": "1", "seq_parallel": "y",
        "gbs": "256", "precision": "bf16", "recompute": "none", "flash": "y",
        "framework": "nanotron-efa-2025", "oom": "0", "mem_kind": "reserved",
        "mem_scope": "first_stage",
    }  # fmt: skip
    names = (
        "tp", "pp", "dp", "zero", "mbs", "layers_per_stage", "head_stage", "step_time_s",
        "peak_mem_gib",
    )  # fmt: skip
    return [
        MeasuredRow("sweep.csv", line, shape | dict(zip(names, map(str, item), strict=True)))
        for line, item in enumerate(SWEEP_80B, start=2)
    ]


def test_the_full_run_took_what_the_risk_says_and_is_hardly_picked() -> None:
    """Predicted at 24 s it took 167 s: its expected step is half as long again as its prediction,
    no shorter than that of the best run by more than 1 %."""
    predictions = predict_rows(sweep())
    full, others = predictions[-1], predictions[:-1]
    assert full.step_time_s is not None
    assert full.step_time_s < 24.0
    assert full.full_step_time_s == pytest.approx(166.97, rel=0.1)
    expected = full.expected_step_time_s
    assert expected is not None
    assert expected > 1.4 * full.step_time_s
    (best,) = first_of(others)
    assert best.expected_step_time_s is not None
    assert expected > 0.99 * best.expected_step_time_s


def test_evaluate_shows_the_risk() -> None:
    given = "--model 70b --gpus 64xH100 --gbs 256 --seq 4608 --framework nanotron-efa-2025"
    plan = "--tp 4 --pp 8 --dp 2 --zero 1 --mbs 1 --recompute none"
    result = CliRunner().invoke(planner_command, ["evaluate", *given.split(), *plan.split()])
    assert result.exit_code == 0, result.output
    assert re.search(r"memory full  \d+ % chance", result.output)
    assert "expandable_segments:True" in result.output
