"""A fraction of the activations on the host: evaluated and launched, never searched."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from planner.cli import planner_command
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from planner.search.explanation import job_evaluator
from planner.search.search import find_plans
from planner.search.what_if import what_if

HALF = Request(
    model="gpt2-medium", gpus="2xA100", gbs=32, seq=1024, recompute=("none",),
    limits={"pp": (2,), "vpp": (1,), "mbs": (8,)},
    activation_offload="core_attn,attn_proj", activation_offload_fraction=0.5,
)  # fmt: skip
WHOLE = HALF.model_copy(update={"activation_offload_fraction": 1.0})
DEGREES = Degrees(pp=2, mbs=8, grad_acc=4)
REFUSED = r"0\.5: a search offloads all activations of a module or none; .*evaluate or memory"


def test_a_search_refuses_a_fraction_and_says_what_takes_it() -> None:
    with pytest.raises(UsageError, match=REFUSED):
        find_plans(HALF)
    assert find_plans(WHOLE, top=1).plans[0].activation_offload_fraction == 1.0


def test_what_if_refuses_a_plan_with_a_fraction() -> None:
    plan = evaluate(HALF, DEGREES)
    with pytest.raises(UsageError, match=REFUSED):
        what_if(HALF, HALF.resolve(), plan)


def test_the_command_line_refuses_it_too() -> None:
    words = [
        "--model",
        "8b",
        "--gpus",
        "8xH100",
        "--gbs",
        "64",
        "--activation-offload",
        "core_attn",
    ]
    fraction = "--activation-offload-fraction"
    searched = CliRunner().invoke(planner_command, ["search", *words, fraction, "0.5"])
    assert searched.exit_code == 2
    assert "planner evaluate or memory" in " ".join(searched.output.split())
    open_ = CliRunner().invoke(planner_command, ["evaluate", *words, fraction, "search"])
    assert open_.exit_code == 2
    assert "no search chooses it" in " ".join(open_.output.split())


def test_evaluate_costs_a_fraction_between_none_and_all() -> None:
    none = WHOLE.model_copy(update={"activation_offload": "off"})
    plans = [evaluate(request, DEGREES) for request in (none, HALF, WHOLE)]
    assert plans[1].activation_offload_fraction == 0.5
    assert plans[0].step_time_s < plans[1].step_time_s < plans[2].step_time_s
    assert plans[0].stages[0].offloaded < plans[1].stages[0].offloaded
    assert plans[1].stages[0].offloaded < plans[2].stages[0].offloaded


def test_a_neighbour_of_a_plan_keeps_its_fraction() -> None:
    plan = evaluate(HALF, DEGREES)
    near = job_evaluator(HALF.resolve(), plan)(plan.degrees, plan.recompute)
    assert near.activation_offload_fraction == 0.5
    assert near.step_time_s == plan.step_time_s


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation_offload": "off"}, "nothing is offloaded"),
        ({"activation_offload_fraction": 0.0}, "give --activation-offload off"),
        ({"activation_offload_fraction": 1.5}, "a number above 0 and up to 1"),
        (
            {"framework": "torchtune", "activation_offload": "checkpoints", "recompute": ("full",)},
            "torchtune offloads all layers or none; frameworks that accept a fraction:",
        ),
    ],
)
def test_what_cannot_be_shared(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        HALF.model_copy(update=changes).resolve()
