"""What a framework does where nobody says it: tensor parallelism of experts, further tokens."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from planner.predict.shapes import broken_rules
from planner.search.search import find_plans

MIXTURE = {"model": "qwen3-30b-a3b", "gpus": "4xH100", "seq": 4096, "gbs": 8}


def request(framework: str, **changes: object) -> Request:
    """A mixture of experts in a precision that the framework has."""
    precision = load_framework(framework).precisions[0]
    return Request(**MIXTURE | {"framework": framework, "precision": precision} | changes)


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_usual_etp_breaks_no_rule_of_the_framework(name: str, tp: int, ep: int) -> None:
    """As the framework takes it where it has these degrees at all."""
    profile, job = load_framework(name), request(name).resolve()
    etp = profile.usual_etp(experts=True, tp=tp, ep=ep)
    zero = profile.parallelism.zero_stages[0]
    degrees = Degrees(tp=tp, ep=ep, etp=etp, dp=4 // tp, zero=zero, grad_acc=2 * tp)
    assert "expert-tensor-supported" not in broken_rules(job, degrees)


def test_megatron_takes_tp_inside_experts() -> None:
    """parallel_state.py; and it refuses what that does not divide."""
    profile = load_framework("megatron-core")
    assert profile.usual_etp(experts=True, tp=4, ep=4) == 4
    assert profile.usual_etp(experts=False, tp=4, ep=1) == 1
    with pytest.raises(UsageError, match="takes etp = tp = 4; give --etp 1"):
        evaluate(request("megatron-core"), Degrees(tp=4, ep=4, etp=4, grad_acc=8))


@pytest.mark.parametrize("name", framework_names())
def test_multi_token_prediction_is_as_the_framework_has_it(name: str) -> None:
    """None unless asked, but for recipes that have it; refused where there is none."""
    profile, model = load_framework(name), "deepseek-v3"
    job = request(name, model=model, gpus="512xH100", gbs=512).resolve()
    assert job.model.mtp_layers == (profile.mtp == "model")
    assert job.published_mtp == 1
    asked = request(name, model=model, gpus="512xH100", gbs=512, mtp_layers=1)
    if profile.mtp == "never":
        with pytest.raises(UsageError, match="trains without multi-token prediction"):
            asked.resolve()
    else:
        assert asked.resolve().model.mtp_layers == 1


def test_what_multi_token_prediction_would_cost_stands_with_the_plans() -> None:
    """torchtitan trains none by default, and has it under no pipeline."""
    given = Request(
        model="deepseek-v3", gpus="512xH100", framework="torchtitan", seq=4096, gbs=4096,
        limits={"pp": (16,), "tp": (1,), "mbs": (1,), "ep": (32,)}, recompute=("full",),
        fit_probability=0.5,
    )  # fmt: skip
    found = find_plans(given, fastest_only=True)
    (note,) = [text for text in found.notes if "multi-token" in text]
    assert "torchtitan's default" in note
    assert "mtp-whole" in note
