"""A search decides how context parallelism exchanges, and what it decides stays with the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import Degrees, Request, evaluate, find_plans
from planner.job.errors import UsageError
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate as cost_plan
from planner.search.plan_file import read_plan_file, to_json
from planner.search.result import SearchResult
from tests.cli.conftest import run_cli

JOB = Request(
    model="llama-3-8b",
    gpus="16xH100",
    gbs=16,
    seq=65_536,
    recompute=("full",),
    limits={"tp": (1,), "pp": (1,), "cp": (4, 16), "mbs": (1,)},
)


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return find_plans(JOB)


def test_the_search_takes_the_fastest_exchange(found: SearchResult) -> None:
    best = found.plans[0]
    kinds = ("p2p", "all_gather", "a2a", "a2a+p2p")
    times = {}
    for kind in kinds:
        fixed = JOB.model_copy(update={"cp_comm_type": kind, "gbs": best.gbs})
        try:
            times[kind] = cost_plan(fixed, best.degrees, best.recompute).step_time_s
        except UsageError:
            assert "+" in kind or best.degrees.cp > 8
    assert best.cp_comm_type in times
    # Ties of a thousandth go to the earlier kind.
    assert times[best.cp_comm_type] <= min(times.values()) * 1.002


def test_the_plan_resolves_to_its_own_exchange(found: SearchResult) -> None:
    plan = found.plans[0]
    request = decided_request(JOB, plan)
    assert (request.cp_comm_type, request.cp_sizes) == (plan.cp_comm_type, plan.cp_sizes)
    layout = plan.layout
    again = cost_plan(
        request, plan.degrees, plan.recompute, layout.block_layers, recomputed=layout.recomputed
    )
    assert again.cp_comm_type == plan.cp_comm_type
    assert again.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)


def test_the_plan_file_and_explain_say_how(found: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(to_json(found))
    assert read_plan_file(path).plans[0].cp_comm_type == found.plans[0].cp_comm_type
    result = run_cli("explain", str(path), "1", "--no-neighbours")
    assert result.exit_code == 0, result.output
    plan = found.plans[0]
    levels = f" over {plan.cp_sizes[0]} and {plan.cp_sizes[1]}" if plan.cp_sizes else ""
    assert f"{plan.cp_comm_type}{levels} exchange" in result.stdout


def test_a_given_configuration_exchanges_as_a_search_would() -> None:
    degrees = Degrees(cp=4, dp=4, zero=1, grad_acc=4)
    titan = JOB.model_copy(update={"framework": "torchtitan", "limits": {}, "recompute": None})
    kinds = {
        kind: evaluate(JOB.model_copy(update={"cp_comm_type": kind}), degrees, "full").step_time_s
        for kind in JOB.resolve().context_kinds
    }
    assert evaluate(JOB, degrees, "full").cp_comm_type == min(kinds, key=lambda kind: kinds[kind])
    result = Degrees(cp=4, dp=4, zero=3, grad_acc=4)
    assert evaluate(titan, result, "full").cp_comm_type == "all_gather"
    free = JOB.model_copy(update={"limits": {}})
    assert evaluate(free, Degrees(dp=16, zero=1), "full").cp_comm_type == ""


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cp_comm_type": "a2a", "framework": "torchtitan"}, "torchtitan has all_gather"),
        ({"cp_comm_type": "a2a", "cp_sizes": (2, 2)}, "only with the exchange a2a+p2p"),
        ({"cp_comm_type": "a2a+p2p", "cp_sizes": (4,)}, "two numbers"),
    ],
)
def test_wrong_requests(fields: dict[str, object], text: str) -> None:
    request = JOB.model_copy(update=fields | {"recompute": None})
    with pytest.raises(UsageError, match=text.replace("+", r"\+")):
        request.resolve()


def test_an_exchange_of_heads_that_are_too_few() -> None:
    request = JOB.model_copy(update={"cp_comm_type": "a2a"})
    with pytest.raises(UsageError, match=r"must divide 32 heads and 8 key/value heads"):
        evaluate(request, Degrees(cp=16, zero=1, grad_acc=16), "full")


def test_sliding_windows_take_no_ring() -> None:
    request = Request(model="gemma-3-27b", gpus="16xH100", gbs=16, seq=32_768)
    degrees = Degrees(tp=2, cp=4, dp=2, zero=1, grad_acc=8)
    assert evaluate(request, degrees, "full").cp_comm_type in ("all_gather", "a2a")
