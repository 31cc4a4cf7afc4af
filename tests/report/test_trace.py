"""A step as a trace: what Perfetto reads, with the seconds of the plan."""

from __future__ import annotations

import json
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

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


def _complaints(trace: dict[str, Any]) -> list[str]:
    """What keeps Perfetto or chrome://tracing from showing a trace as it is meant: fields that the
    Trace Event Format asks for, names of every process and thread, numbers in counters, flows with
    both ends, and events of a thread that neither follow nor contain each other in nanoseconds."""
    found: list[str] = []
    events = trace["traceEvents"]
    named = {(one["name"], one["pid"], one["tid"]) for one in events if one["ph"] == "M"}
    ends = {side: [one["id"] for one in events if one["ph"] == side] for side in "sf"}
    found += [] if sorted(ends["s"]) == sorted(ends["f"]) else ["a flow has one end"]
    for one in events:
        ids = (one["pid"], one["tid"])
        if one["ph"] not in "XMCsf" or not all(type(part) is int for part in ids):
            found.append(f"phase or ids: {one}")
        if ("process_name", one["pid"], 0) not in named:
            found.append(f"a process without a name: {one}")
        if one["ph"] == "X" and ("thread_name", *ids) not in named:
            found.append(f"a thread without a name: {one}")
        if one["ph"] != "M" and not (isfinite(one["ts"]) and one["ts"] >= 0.0):
            found.append(f"time: {one}")
        values = one["args"].values()
        if one["ph"] == "C" and not all(isinstance(value, int | float) for value in values):
            found.append(f"counter: {one}")
    return found + _misplaced(events)


def _misplaced(events: list[dict[str, Any]]) -> list[str]:
    """Events that begin within another of their thread and end after it."""
    found, open_until = [], dict[tuple[int, int], list[int]]()
    spans = [
        (one["pid"], one["tid"], round(one["ts"] * 1e3), -round(one["dur"] * 1e3))
        for one in events
        if one["ph"] == "X"
    ]
    for pid, tid, start, minus_length in sorted(spans):
        around = open_until.setdefault((pid, tid), [])
        while around and around[-1] <= start:
            around.pop()
        if around and start - minus_length > around[-1]:
            found.append(f"misplaced: {pid} {tid} {start}")
        around.append(start - minus_length)
    return found


@pytest.mark.parametrize("degrees", [DEGREES, Degrees(tp=1, pp=2, vpp=4, dp=4, mbs=1, grad_acc=6)])
def test_every_event_has_what_the_format_asks_for(degrees: Degrees) -> None:
    plan = evaluate(JOB.model_copy(update={"gbs": degrees.gbs}), degrees)
    trace = json.loads(json.dumps(step_trace(plan), allow_nan=False))
    assert _complaints(trace) == []
    events = trace["traceEvents"]
    assert all(one["dur"] > 0.0 for one in events if one["ph"] == "X")
    places = [one["args"] for one in events if one["name"] == "process_sort_index"]
    assert places == [{"sort_index": place} for place in range(2)]
    threads = [one for one in events if one["name"] == "thread_name" and one["pid"] == 0]
    assert [one["args"]["name"] for one in threads] == [
        f"stage {stage.stage}, {stage.layers} layers" for stage in plan.stages
    ]


def test_what_cannot_be_shown_is_noticed(plan: Plan) -> None:
    """The check above would see an event that reaches into the next one, and a nameless thread."""
    trace = step_trace(plan)
    long = next(one for one in trace["traceEvents"] if one["ph"] == "X")
    long["dur"] *= 1.5
    stray = {**long, "tid": 99}
    trace["traceEvents"].append(stray)
    words = " ".join(_complaints(trace))
    assert "misplaced" in words and "a thread without a name" in words


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
        # One chunk ends as the next begins: the peak lasts for all but the first and last of them.
        assert sum(one == max(sums) for one in sums) == DEGREES.grad_acc - len(plan.stages) + 1 + (
            stage.stage
        )
        assert sums[-1] == pytest.approx((stage.peak - stage.activations) / 2**30, abs=0.01)


def test_what_waits_for_links_is_there_as_the_account_has_it() -> None:
    request = Request(model="llama-3-8b", gpus="16xH100", gbs=64)
    plan = evaluate(request, Degrees(tp=8, dp=2, mbs=1, grad_acc=32))
    links = link_account(request.resolve(), plan)
    trace = step_trace(plan, links)
    events = trace["traceEvents"]
    assert _complaints(trace) == []
    waits = [event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 2]
    exchanged = [one.seconds for one in links if one.traffic]
    assert waits and sum(waits) == pytest.approx(sum(exchanged) * 1e6)
    assert sum(exchanged) < 0.5 * plan.step_time_s


def test_a_step_of_reinforcement_learning_has_both_sides() -> None:
    step = made("separate", 1)[2]
    trace = json.loads(json.dumps(rl_trace(step), allow_nan=False))
    assert _complaints(trace) == []
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
