"""A step as a trace: what Perfetto reads, with the seconds of the plan."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.link_account import link_account
from planner.predict.plan import Degrees, Plan
from planner.report.charts.step_trace import rl_trace, step_trace
from tests.predict.rl.test_step import made

DEGREES = Degrees(tp=2, pp=4, dp=1, mbs=1, grad_acc=8)
JOB = Request(model="llama-3-8b", gpus="8xH100", gbs=8)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Four stages, eight micro-batches."""
    return evaluate(JOB, DEGREES)


def test_every_event_has_what_the_format_asks_for(plan: Plan) -> None:
    trace = json.loads(json.dumps(step_trace(plan), allow_nan=False))
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M", "C") and isinstance(event["pid"], int)
        assert isinstance(event["tid"], int) and event["name"]
        if event["ph"] == "X":
            assert event["ts"] >= 0.0 and event["dur"] > 0.0
    named = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == 0
    }
    assert named == {stage: f"stage {stage}, 8 layers" for stage in range(4)}


def test_stages_run_every_pass_once_and_one_after_the_other(plan: Plan) -> None:
    events = step_trace(plan)["traceEvents"]
    for stage in plan.stages:
        mine = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
        mine = sorted(
            (event for event in mine if event["tid"] == stage.stage), key=lambda event: event["ts"]
        )
        forward = [event["args"]["micro_batch"] for event in mine if event["name"] == "forward"]
        assert forward == list(range(8))
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(mine))


def test_the_terms_add_up_to_the_step(plan: Plan) -> None:
    events = step_trace(plan)["traceEvents"]
    terms = [event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert sum(terms) == pytest.approx(plan.step_time_s * 1e6)


def test_bubbles_fill_what_passes_leave(plan: Plan) -> None:
    """Passes and bubbles of a stage cover its time from the first to the last of them."""
    events = [event for event in step_trace(plan)["traceEvents"] if event["ph"] == "X"]
    for stage in plan.stages:
        mine = [event for event in events if (event["pid"], event["tid"]) == (0, stage.stage)]
        end = max(event["ts"] + event["dur"] for event in mine)
        assert sum(event["dur"] for event in mine) == pytest.approx(end, rel=1e-4)
        waits = [event for event in mine if event["name"] == "bubble"]
        assert bool(waits) == (stage.stage > 0 or len(mine) > 0)


def test_memory_rises_to_the_peak_of_the_plan(plan: Plan) -> None:
    events = step_trace(plan)["traceEvents"]
    for stage in plan.stages:
        name = f"GiB, stage {stage.stage}"
        sums = [sum(event["args"].values()) for event in events if event["name"] == name]
        assert max(sums) == pytest.approx(stage.peak / 2**30, abs=0.01)
        assert sums[-1] == pytest.approx((stage.peak - stage.activations) / 2**30, abs=0.01)


def test_what_waits_for_links_is_there_as_the_account_has_it() -> None:
    request = Request(model="llama-3-8b", gpus="16xH100", gbs=64)
    plan = evaluate(request, Degrees(tp=8, dp=2, mbs=1, grad_acc=32))
    links = link_account(request.resolve(), plan)
    events = step_trace(plan, links)["traceEvents"]
    waits = [event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert waits and sum(waits) == pytest.approx(sum(one.seconds for one in links) * 1e6)


def test_a_step_of_reinforcement_learning_has_both_sides() -> None:
    step = made("separate", 1)[2]
    trace = json.loads(json.dumps(rl_trace(step), allow_nan=False))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in events} == {0, 1}
    end = max(event["ts"] + event["dur"] for event in events)
    assert end == pytest.approx(step.step_s * 1e6)
    assert any(event["ph"] == "C" for event in trace["traceEvents"])


def test_a_step_that_is_too_long_is_refused() -> None:
    degrees = DEGREES.model_copy(update={"grad_acc": 20_000})
    long = evaluate(JOB.model_copy(update={"gbs": degrees.gbs}), degrees)
    with pytest.raises(UsageError, match=r"160,000 passes of 20,000 micro-batches"):
        step_trace(long)


def test_explain_writes_it_and_does_not_overwrite(tmp_path: Path) -> None:
    plans, trace = tmp_path / "plans.json", tmp_path / "out.json"
    words = ["--model", "llama-3-8b", "--gpus", "8xH100", "--gbs", "8", "--tp", "2", "--pp", "4"]
    assert (
        CliRunner().invoke(planner_command, ["evaluate", *words, "-o", str(plans)]).exit_code == 0
    )
    explain = ["explain", str(plans), "--no-neighbours", "--trace", str(trace)]
    assert CliRunner().invoke(planner_command, explain).exit_code == 0
    assert json.loads(trace.read_text())["otherData"]["schedule"] == "1f1b"
    again = CliRunner().invoke(planner_command, explain)
    assert again.exit_code == 2 and "give another name to --trace" in again.output
