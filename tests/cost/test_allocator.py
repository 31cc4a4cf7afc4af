"""Fragmentation follows what a step allocates and frees; DeepSpeed's live parameters."""

from __future__ import annotations

import pytest

from planner import Request, evaluate
from planner.predict.plan import Degrees, Plan


def plan(framework: str, zero: int, recompute: str = "none", model: str = "llama-3-8b") -> Plan:
    seq = None if model == "gpt2-small" else 4096
    request = Request(model=model, gpus="8xH200", gbs=8, seq=seq, framework=framework)
    degrees = Degrees(dp=8, zero=zero, mbs=1, grad_acc=1)
    return evaluate(request, degrees, recompute=recompute)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_is_held_leaves_no_gaps(recompute: str) -> None:
    """Megatron's weights, states and gradient buffers are made once."""
    (stage,) = plan("megatron-core", 1, recompute).stages
    moving = stage.allocated - stage.weights - stage.optimizer - stage.gradients
    ids = 8.0 * 4096
    assert stage.fragmentation == pytest.approx(0.06 * (moving + ids), rel=1e-6)


def test_a_plan_that_recomputes_has_fewer_gaps() -> None:
    plain, again = (plan("megatron-core", 1, mode).stages[0] for mode in ("none", "full"))
    shares = [stage.fragmentation / stage.allocated for stage in (plain, again)]
    assert shares[0] > 2.0 * shares[1]


def test_gradients_that_backward_makes_leave_gaps() -> None:
    (stage,) = plan("torchtitan", 3, "full").stages
    held = stage.weights + stage.optimizer
    assert stage.fragmentation == pytest.approx(0.06 * (stage.allocated - held), rel=1e-3)


@pytest.mark.parametrize(("model", "live"), [("llama-3-8b", 1e9), ("gpt2-small", None)])
def test_deepspeed_keeps_so_many_parameters_gathered(model: str, live: float | None) -> None:
    """stage3_max_live_parameters, or all that the model has, of two bytes each."""
    (stage,) = plan("deepspeed", 3, "full", model).stages
    count = live or 124_439_808
    reduced = stage.gather_buffers - 2.0 * count
    assert reduced >= 0.0
    assert reduced < 0.6 * 2.0 * count
