"""The view of a plan's layers adds up to the step that the core costs."""

from __future__ import annotations

import pytest

from planner.job.request import Request
from planner.predict.layer_profile import StepProfile, step_profile
from planner.predict.plan import Degrees, Plan
from tests.configurations import evaluate_job

CASES = {
    "dense": (Request(model="8b", gpus="8xH100", gbs=64), Degrees(tp=2, dp=4, mbs=1, grad_acc=16)),
    "experts": (
        Request(model="mixtral-8x7b", gpus="16xH100", gbs=64, seq=8192),
        Degrees(tp=2, ep=8, etp=1, dp=8, mbs=1, grad_acc=8, zero=1),
    ),
    "context": (
        Request(model="8b", gpus="8xH100", gbs=8, seq=32768, cp_comm_type="a2a"),
        Degrees(cp=4, dp=2, mbs=1, grad_acc=4),
    ),
    "pipeline": (
        Request(model="13b", gpus="8xA100", gbs=64),
        Degrees(pp=4, tp=2, dp=1, mbs=1, grad_acc=64),
    ),
    "states": (
        Request(model="nemotron-h-8b", gpus="8xH100", gbs=64),
        Degrees(tp=2, dp=4, mbs=1, grad_acc=16),
    ),
    "launches": (
        Request(model="gpt2", gpus="1xH100", gbs=8, framework="hf-transformers"),
        Degrees(mbs=1, grad_acc=8, zero=0),
    ),
    "sharded": (
        Request(model="8b", gpus="8xH100", gbs=64, framework="torchtitan"),
        Degrees(dp=8, zero=3, mbs=1, grad_acc=8),
    ),
}  # fmt: skip


def profiled(name: str) -> tuple[Plan, StepProfile]:
    request, degrees = CASES[name]
    job = request.resolve()
    plan = evaluate_job(job, degrees)
    profile = step_profile(job, plan)
    assert profile is not None
    return plan, profile


@pytest.mark.parametrize("name", CASES)
def test_parts_of_compute_add_up_to_the_term(name: str) -> None:
    plan, profile = profiled(name)
    parts = profile.compute_parts
    assert sum(parts.values()) == pytest.approx(plan.time.compute_s, rel=1e-9)
    assert ("state-space scan" in parts) == (name == "states")


def test_a_small_model_waits_for_launches() -> None:
    _, small = profiled("launches")
    _, large = profiled("pipeline")
    waiting = "waiting for the CPU to launch kernels"
    assert small.compute_parts[waiting] > 0.2 * sum(small.compute_parts.values())
    assert large.compute_parts.get(waiting, 0.0) < 0.05 * sum(large.compute_parts.values())


def test_volumes_of_a_layers_collectives_are_those_of_the_formula() -> None:
    """Sequence parallelism gathers s·b·h 16-bit activations before each of a layer's two column
    products and scatters them behind each row product (Korthikanti et al. 2022, section 4.2)."""
    _, profile = profiled("dense")
    layer = profile.layers[0]
    tensor = 2.0 * 8192 * 4096
    forward = [one for one in layer.collectives if one.forward]
    assert [one.kind for one in forward] == ["all-gather", "reduce-scatter"] * 2
    assert {(one.group, one.size, one.tensor_bytes) for one in forward} == {("tp", 2, tensor)}


def test_one_rank_sends_nothing() -> None:
    _, profile = profiled("launches")
    assert not any(layer.collectives for layer in profile.layers)


def test_a_fused_dispatcher_changes_nothing_where_nothing_is_exchanged() -> None:
    """With one rank for all experts its plans are those without it, to the last digit."""
    plans = {}
    for without in ((), ("fused-dispatch",)):
        for ep in (1, 8):
            request = Request(
                model="mixtral-8x7b", gpus="16xH100", gbs=64, seq=4096, without=without
            )
            degrees = Degrees(ep=ep, etp=1, dp=16, mbs=1, grad_acc=4, zero=1)
            plan = evaluate_job(request.resolve(), degrees)
            plans[bool(without), ep] = (plan.step_time_s, plan.peak_bytes)
    assert plans[False, 1] == plans[True, 1]
    assert plans[False, 8] != plans[True, 8]
