"""A plan's step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", Google, object form: complete events (`ph` X, `ts` and `dur` in
microseconds) and metadata events (`ph` M) that name processes and threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.job.errors import UsageError
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text
from planner.report.figures.plan import waterfall
from planner.report.figures.schedule import Gantt, passes_of, played

# Passes of all stages beyond which a trace would be too large to open with ease.
MOST_TRACED = 60_000
_MICROSECONDS = 1e6
_STAGES, _TERMS = 0, 1
_NOTE = (
    "Predicted, not recorded. Passes of a chunk last equally long; what recomputes and "
    "communicates inside a pass is at its start and its end, by its share of the step."
)

Event = dict[str, Any]


def step_trace(plan: Plan) -> dict[str, Any]:
    """The trace of one step: a thread for each pipeline stage, and one with the terms of the step
    time. UsageError if the step has more than MOST_TRACED passes."""
    count = plan.degrees.grad_acc
    if passes_of(plan, count) > MOST_TRACED:
        raise UsageError(
            f"--trace: a step of this plan has {passes_of(plan, count):,} passes of "
            f"{count:,} micro-batches, and a trace holds {MOST_TRACED:,}; planner report draws "
            "the beginning of its schedule"
        )
    gantt = played(plan, count)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "plan": configuration_text(plan),
            "schedule": plan.schedule,
            "step_time_s": plan.step_time_s,
            "note": _NOTE,
        },
        "traceEvents": [*_names(plan), *_passes(gantt), *_terms(plan)],
    }


def _names(plan: Plan) -> Iterator[Event]:
    yield _name("process_name", _STAGES, 0, f"pipeline stages, {plan.schedule}")
    for stage in plan.stages:
        words = f"stage {stage.stage}, {stage.layers} layers"
        yield _name("thread_name", _STAGES, stage.stage, words)
    yield _name("process_name", _TERMS, 0, "step time by term, on the slowest stage")
    yield _name("thread_name", _TERMS, 0, "terms")


def _name(what: str, process: int, thread: int, words: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": words}}


def _passes(gantt: Gantt) -> Iterator[Event]:
    """What each stage does; the bubble is the space between."""
    for bar in gantt.bars:
        if bar.kind != "bubble" and bar.end_s > bar.start_s:
            place = {"micro_batch": bar.microbatch, "chunk": bar.chunk}
            args = place if bar.microbatch >= 0 else {}
            yield _event(bar.kind, bar.start_s, bar.end_s, _STAGES, bar.stage, args)


def _terms(plan: Plan) -> Iterator[Event]:
    for term in waterfall(plan)[:-1]:
        yield _event(term.label, term.start, term.end, _TERMS, 0, {})


def _event(
    name: str, start_s: float, end_s: float, process: int, thread: int, args: dict[str, int]
) -> Event:
    return {
        "ph": "X", "name": name, "cat": name, "pid": process, "tid": thread,
        "ts": start_s * _MICROSECONDS, "dur": (end_s - start_s) * _MICROSECONDS, "args": args,
    }  # fmt: skip
