"""Objectives other than next-token prediction: what their steps read, train, take and hold."""

from __future__ import annotations

from functools import cache

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.predict.plan_text import batch_sentence
from planner.report.passes import passes_blocks
from planner.report.tables import TableData
from planner.search.search import find_plans

GIB = 2**30


@cache
def plan_of(
    objective: str, framework: str = "deepspeed", train: str = "full", **degrees: int
) -> Plan:
    """A small model on eight GPUs."""
    request = Request(
        model="qwen2.5-0.5b", gpus="8xH100", gbs=16, seq=512, framework=framework,
        objective=objective, train=train,
    )  # fmt: skip
    given = {"dp": 8, "zero": 3, "mbs": 2} | degrees
    grad_acc = 16 // (given["dp"] * given["mbs"])
    return evaluate(request, Degrees(**given, grad_acc=grad_acc), "full")


def test_next_token_prediction_is_one_pass() -> None:
    plan = plan_of("lm")
    assert plan.passes == ()
    assert plan.objective == ""


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        ("dpo", ["reference", "model", "model"]),
        ("kto", ["policy", "reference", "model", "model"]),
        ("orpo", ["model", "model"]),
        ("dpo:reference=precomputed", ["model", "model"]),
        ("reward", ["model", "model"]),
        ("distill:teacher=qwen2.5-0.5b", ["teacher", "model", "model"]),
    ],
)
def test_a_step_is_the_sum_of_its_passes(objective: str, names: list[str]) -> None:
    plan = plan_of(objective)
    assert [one.name for one in plan.passes] == names
    assert sum(one.seconds for one in plan.passes) == pytest.approx(plan.step_time_s, rel=1e-9)
    for field, total in plan.time.model_dump().items():
        parts = sum(getattr(one.time, field) for one in plan.passes)
        assert parts == pytest.approx(total, rel=1e-9, abs=1e-12), field


@pytest.mark.parametrize("objective", ["dpo", "kto", "simpo", "distill:teacher=qwen2.5-0.5b"])
@pytest.mark.parametrize("framework", ["deepspeed", "hf", "fsdp2"])
def test_the_peak_is_what_the_fullest_pass_holds(objective: str, framework: str) -> None:
    plan = plan_of(objective, framework)
    most = max(one.live_bytes for one in plan.passes)
    assert most == pytest.approx(plan.allocated_bytes, rel=1e-6)


def test_a_pair_is_two_rows() -> None:
    alone, pairs = plan_of("lm"), plan_of("simpo", mbs=1)
    assert pairs.gbs_tokens == 2 * alone.gbs_tokens / alone.gbs * pairs.gbs
    assert plan_of("kto").gbs_tokens == alone.gbs_tokens


def test_lengths_are_those_of_each_row_of_a_pair() -> None:
    request = Request(
        model="qwen2.5-0.5b", gpus="1xH100", gbs=8, seq=1024, framework="hf", objective="dpo",
        lengths="mean=450",
    )  # fmt: skip
    plan = evaluate(request, Degrees(dp=1, zero=0, mbs=2, grad_acc=4), "full")
    assert plan.samples is not None
    assert plan.rows == 2
    assert plan.gbs_tokens == pytest.approx(2 * 8 * plan.samples.mean_tokens, rel=1e-3)
    assert batch_sentence(plan, 8).startswith("8 samples of 2 × 402")


def test_a_copied_reference_holds_its_weights_as_zero_has_them() -> None:
    for stage, shards in ((3, 8), (2, 1)):
        copied, without = (
            plan_of(f"dpo:reference={place}", zero=stage).stages[0].weights
            for place in ("copied", "precomputed")
        )
        assert copied - without == pytest.approx(2 * 494.03e6 / shards, rel=1e-3)


def test_adapters_off_hold_no_second_model() -> None:
    off, none = plan_of("dpo", "hf", "lora"), plan_of("orpo", "hf", "lora")
    assert off.passes[0].name == "reference"
    assert off.stages[0].weights == none.stages[0].weights
    assert off.step_time_s > none.step_time_s


def test_reading_counts_as_model_flop() -> None:
    """A forward pass of a reference is a third of the FLOP of training as many rows."""
    read, alone = plan_of("dpo"), plan_of("dpo:reference=precomputed")
    flop = (plan.mfu * plan.step_time_s for plan in (read, alone))
    assert next(flop) / next(flop) == pytest.approx(4 / 3)


def test_zero_3_gathers_what_it_reads() -> None:
    """Policy twice; a reference once more, in KTO two, and once the policy for mismatched rows."""
    alone, dpo, kto = (
        plan_of(name, mbs=2).time.fsdp_s for name in ("dpo:reference=precomputed", "dpo", "kto")
    )
    assert alone < dpo < kto
    assert dpo / alone == pytest.approx(1.5, rel=0.2)


def test_a_reward_model_has_no_vocabulary_at_its_head() -> None:
    reward, logits = plan_of("reward", "hf"), plan_of("simpo", "hf")
    assert reward.stages[0].logits == 0.0
    assert reward.peak_bytes < logits.peak_bytes
    assert reward.step_time_s < logits.step_time_s


def test_chunked_losses_make_no_logits() -> None:
    full, chunked = plan_of("dpo", "hf"), plan_of("dpo:logits=chunked", "hf")
    assert chunked.allocated_bytes < 0.8 * full.allocated_bytes


def test_a_pipeline_reads_the_reference_stage_by_stage() -> None:
    degrees = {"dp": 2, "pp": 2, "tp": 2, "zero": 1, "mbs": 1}
    plan = plan_of("dpo", "megatron-core", **degrees)
    assert sum(one.seconds for one in plan.passes) == pytest.approx(plan.step_time_s)
    # Half as many transfers more: the reference's activations go forward alone.
    alone = plan_of("dpo:reference=precomputed", "megatron-core", **degrees)
    assert 1.1 * alone.time.pp_s < plan.time.pp_s < 1.5 * alone.time.pp_s
    names = [f"weights of the {name}" for name in ("model", "reference")]
    own, other = (plan.passes[0].held[name] for name in names)
    assert other <= own


@pytest.mark.parametrize(
    ("objective", "framework", "says"),
    [
        ("simpo", "megatron-core", "frameworks that have it: deepspeed"),
        ("distill:teacher=llama-3-8b", "hf", "give a teacher of the same family"),
        ("dpo:reference=adapters-off", "hf", "--train lora"),
        ("kto", "hf", "mbs > 1"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(objective: str, framework: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(objective, framework, mbs=1)


def test_unmeasured_objectives_widen_the_bars() -> None:
    plan, alone = plan_of("simpo", mbs=1), plan_of("lm")
    width = (one.step_time.high / one.step_time_s for one in (plan, alone))
    assert next(width) > next(width)
    assert any("few runs measure" in text for text in plan.step_time.beyond)


def test_plans_are_read_back_with_their_passes() -> None:
    plan = plan_of("kto")
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_the_passes_are_shown() -> None:
    table, _ = passes_blocks(plan_of("dpo").passes)
    assert isinstance(table, TableData)
    assert [row[0] for row in table.rows] == [
        "reference: forward", "model: forward and backward", "model: update",
    ]  # fmt: skip
    assert not list(passes_blocks(plan_of("lm").passes))


def test_a_search_finds_what_evaluating_every_shape_finds() -> None:
    """The proof of the front holds over what a step reads: the fastest of all legal plans."""
    request = Request(
        model="qwen2.5-0.5b", gpus="4xRTX4090", gbs=8, seq=1024, framework="deepspeed",
        objective="dpo", limits={"tp": (1,)}, recompute=("full",), fit_probability=0.5,
    )  # fmt: skip
    result = find_plans(request)
    every = [
        evaluate(request, Degrees(dp=4, zero=zero, mbs=mbs, grad_acc=2 // mbs), "full")
        for zero in (0, 1, 2, 3)
        for mbs in (1, 2)
    ]
    fitting = [plan for plan in every if plan.fit_probability >= 0.5]
    best = min(fitting, key=lambda plan: plan.step_time_s)
    fastest = min(result.plans, key=lambda plan: plan.step_time_s)
    assert fastest.step_time_s == pytest.approx(best.step_time_s, rel=1e-3)
    assert [one.name for one in fastest.passes] == ["reference", "model", "model"]
    assert fastest.time == evaluate(request, fastest.degrees, "full").time
