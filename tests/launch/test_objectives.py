"""Launch files train by next-token prediction: plans of other objectives are refused by name."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.plans import job_launch_note, launch_of
from planner.launch.registry import target_named
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "hf-fsdp2"])
def test_plans_of_preferences_are_not_written_as_pretraining(framework: str) -> None:
    request = Request(
        model="qwen2.5-0.5b", gpus="2xH100", gbs=4, seq=512, framework=framework, objective="dpo"
    )
    zero = {"megatron-core": 1}.get(framework, 3)
    plan = evaluate(request, Degrees(dp=2, zero=zero, mbs=1, grad_acc=2))
    target = target_named(request.framework)
    with pytest.raises(UsageError, match="direct preference optimisation") as refused:
        launch_of(plan, request, target, "torchrun", 2)
    # No plan of the target runs, whatever its degrees.
    assert "plans that" not in str(refused.value)
    assert "direct preference optimisation" in (job_launch_note(request.resolve()) or "")
