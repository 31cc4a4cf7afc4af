"""Plans of preferences are written for TRL, or refused by name."""

from __future__ import annotations

from string import Formatter

import pytest

from hardware.files import shipped_toml
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.plans import job_launch_note, launch_of, usual_target
from planner.launch.registry import target_named
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan


def planned(framework: str) -> tuple[Plan, Request]:
    request = Request(
        model="qwen2.5-0.5b", gpus="2xH100", gbs=4, seq=512, framework=framework, objective="dpo"
    )
    zero = {"megatron-core": 1}.get(framework, 3)
    return evaluate(request, Degrees(dp=2, zero=zero, mbs=1, grad_acc=2)), request


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "hf-fsdp2"])
def test_plans_of_preferences_are_not_written_as_pretraining(framework: str) -> None:
    plan, request = planned(framework)
    target = target_named(request.framework)
    with pytest.raises(UsageError, match="direct preference optimisation") as refused:
        launch_of(plan, request, target, "torchrun", 2)
    # No plan of the target runs, whatever its degrees; another's does.
    assert "plans that" not in str(refused.value)
    assert "--framework trl" in str(refused.value)


def test_no_search_is_named_that_would_be_refused() -> None:
    """NeMo AutoModel has no preferences, so that a search under it is none of the next steps."""
    plan, request = planned("hf-fsdp2")
    with pytest.raises(UsageError, match="automodel does not support direct preference") as refused:
        launch_of(plan, request, target_named("automodel"), "torchrun", 2)
    assert "planner search" not in str(refused.value)


def test_the_search_that_is_named_has_the_adapters_that_the_target_takes() -> None:
    """axolotl makes them 16 bits under FSDP2, for preferences."""
    plan, request = planned("hf-fsdp2")
    request = request.model_copy(update={"train": "lora"})
    plan = evaluate(request, plan.degrees)
    with pytest.raises(UsageError, match="casts adapters") as refused:
        launch_of(plan, request, target_named("axolotl"), "torchrun", 2)
    assert "--train lora:adapter=bf16 --objective dpo" in str(refused.value)


@pytest.mark.parametrize("framework", ["deepspeed", "hf-fsdp2"])
def test_trl_writes_them_under_the_same_framework(framework: str) -> None:
    """Unless a target is named."""
    plan, request = planned(framework)
    assert job_launch_note(request.resolve()) is None
    launch = launch_of(plan, request, usual_target(plan, request), "torchrun", 2)
    assert (launch.target, launch.job.framework.name) == ("trl", framework)
    # TRL makes a chunk of logits at a time.
    assert launch.job.objective.logits == "chunked"
    assert launch.plan.peak_bytes < plan.peak_bytes


def test_of_other_frameworks_the_note_names_who_writes_them() -> None:
    _, request = planned("megatron-core")
    note = job_launch_note(request.resolve()) or ""
    assert "direct preference optimisation" in note
    assert "--framework trl" in note


def test_reasons_of_refused_ways_of_training_can_be_filled_in() -> None:
    """Expressions in braces have no `!=`, because a format string reads `!` as a conversion."""
    for row in shipped_toml("planner.launch", "refusals.toml")["training"]:
        assert list(Formatter().parse(row["reason"]))
