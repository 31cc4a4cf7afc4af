"""A step as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

Format: "Trace Event Format", Google, object form: complete events (`ph` X, `ts` and `dur` in
microseconds), counters (`ph` C) and metadata events (`ph` M) that name and order processes and
threads. Perfetto rounds to whole nanoseconds and drops an event that begins before the previous
event on its thread has ended. Starts and ends are therefore rounded to nanoseconds before they are
subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from planner.job.errors import UsageError
from planner.job.quantities import GIB
from planner.predict.link_account import LinkShare
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text
from planner.predict.rl.step import RlStep
from planner.predict.rl.timeline import Bar, bars, side_words
from planner.report.charts.plan import waterfall
from planner.report.charts.schedule import Gantt, PassBar, passes_of, played
from planner.report.passes import pass_label

# Most passes of all stages; a larger trace would be slow to open.
MOST_TRACED = 60_000
_MICROSECONDS, _NANOSECONDS, _DIGITS = 1e6, 1e9, 9
# Processes of a trace, in the order in which Perfetto lists them.
_STAGES, _TERMS, _LINKS, _PASSES = range(4)
_NOTE = (
    "Predicted, not recorded. Passes of a chunk last equally long; what recomputes and "
    "communicates inside a pass is at its start and its end, by its share of the step. Memory: "
    "activations of the micro-batches in flight above what stays."
)

Event = dict[str, Any]


def step_trace(plan: Plan, links: Sequence[LinkShare] = ()) -> dict[str, Any]:
    """The trace of one step: a thread for each pipeline stage with its passes and bubbles, and its
    memory as a counter; the terms of the step time; the exposed communication on each of `links`;
    and the passes of a step that reads other models. Raises UsageError if the step has more than
    MOST_TRACED passes."""
    count = plan.degrees.grad_acc
    if passes_of(plan, count) > MOST_TRACED:
        raise UsageError(
            f"--trace: a step of this plan has {passes_of(plan, count):,} passes of "
            f"{count:,} micro-batches, and a trace holds {MOST_TRACED:,}; planner report draws "
            "the beginning of its schedule"
        )
    gantt = played(plan, count)
    terms = [(one.label, one.end - one.start) for one in waterfall(plan)[:-1]]
    read = [(pass_label(one), one.seconds) for one in plan.passes]
    exchanges = [(f"{one.resource} for {one.traffic}", one.seconds) for one in links if one.traffic]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "plan": configuration_text(plan),
            "schedule": plan.schedule,
            "step_time_s": plan.step_time_s,
            "note": _NOTE,
        },
        "traceEvents": [
            *_names(plan, bool(exchanges), bool(read)),
            *_played(gantt),
            *_bubbles(gantt),
            *_memory(plan, gantt),
            *_in_a_row(terms, _TERMS),
            *_in_a_row(exchanges, _LINKS),
            *_in_a_row(read, _PASSES),
        ],
    }


def rl_trace(step: RlStep) -> dict[str, Any]:
    """The trace of a step of reinforcement learning: a thread for each side with its phases, and
    the memory of its fullest GPU as a counter."""
    drawn = bars(step)
    sides = list(dict.fromkeys(side_words(step, bar.phase.side) for bar in drawn))
    events = [_name("process_name", 0, 0, f"one step, {step.layout.placement}")]
    events += [_name("thread_name", 0, at, words) for at, words in enumerate(sides)]
    for bar in drawn:
        thread = sides.index(side_words(step, bar.phase.side))
        terms = {name: round(seconds, 6) for name, seconds in bar.phase.terms.items()}
        events.append(_event(bar.words, bar.start_s, bar.end_s, 0, thread, terms))
        events.append(_held(sides[thread], bar))
    other = {"step_time_s": step.step_s, "note": "Predicted, not recorded."}
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}


def _held(words: str, bar: Bar) -> Event:
    """A counter event that sets the memory of a side, in GiB by part, at the start of a phase. It
    holds until the next one."""
    held = {name: round(size / GIB, 3) for name, size in bar.phase.held.items() if size}
    return _counter(f"GiB, {words}", bar.start_s, 0, held)


def _names(plan: Plan, links: bool, read: bool) -> Iterator[Event]:
    yield from _process(_STAGES, f"pipeline stages, {plan.schedule}")
    for stage in plan.stages:
        words = f"stage {stage.stage}, {stage.layers} layers"
        yield _name("thread_name", _STAGES, stage.stage, words)
    yield from _process(_TERMS, "step time by term, on the slowest stage", "terms")
    if links:
        yield from _process(_LINKS, "exchanges that are not hidden, by link", "links")
    if read:
        yield from _process(_PASSES, "passes of a step, one after the other", "passes")


def _process(process: int, words: str, thread: str = "") -> Iterator[Event]:
    """The name of a process, its place in the list, and the name of its only thread, if given."""
    yield _name("process_name", process, 0, words)
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0,
           "args": {"sort_index": process}}  # fmt: skip
    if thread:
        yield _name("thread_name", process, 0, thread)


def _in_a_row(lengths: Sequence[tuple[str, float]], process: int) -> Iterator[Event]:
    """Events that follow one another without gaps, from their lengths in seconds."""
    start_s = 0.0
    for words, seconds in lengths:
        if seconds > 0.0:
            yield _event(words, start_s, start_s + seconds, process, 0, {})
            start_s += seconds


def _played(gantt: Gantt) -> Iterator[Event]:
    for bar in gantt.bars:
        if bar.kind != "bubble" and bar.end_s > bar.start_s:
            place = {"micro_batch": bar.microbatch, "chunk": bar.chunk}
            args = place if bar.microbatch >= 0 else {}
            yield _event(bar.kind, bar.start_s, bar.end_s, _STAGES, bar.stage, args)


def _by_stage(gantt: Gantt) -> dict[int, list[PassBar]]:
    """The bars of each stage in order of time, without the bubbles, which span the whole step."""
    found: dict[int, list[PassBar]] = {}
    for bar in gantt.bars:
        if bar.kind != "bubble" and bar.end_s > bar.start_s:
            found.setdefault(bar.stage, []).append(bar)
    return {stage: sorted(mine, key=lambda bar: bar.start_s) for stage, mine in found.items()}


# Gaps between passes below this share of the step are rounding.
_LEAST_GAP = 1e-6


def _bubbles(gantt: Gantt) -> Iterator[Event]:
    """The gaps in which a stage waits for another."""
    whole_s = max((bar.end_s for bar in gantt.bars), default=0.0)
    for stage, mine in _by_stage(gantt).items():
        free_s = 0.0
        for bar in mine:
            if bar.start_s - free_s > _LEAST_GAP * whole_s:
                yield _event("bubble", free_s, bar.start_s, _STAGES, stage, {})
            free_s = max(free_s, bar.end_s)


def _memory(plan: Plan, gantt: Gantt) -> Iterator[Event]:
    """Memory of a GPU of each stage over time, as counters in GiB: a constant part, and the
    activations, which grow with the number of chunks in flight. They are scaled so that they equal
    the plan's activations when the most chunks are in flight."""
    for stage, mine in _by_stage(gantt).items():
        changes = sorted(_changes(mine))
        most, live = 0, 0
        for _, change in changes:
            live += change
            most = max(most, live)
        held = plan.stages[stage]
        each = held.activations / most if most else 0.0
        stays, live = held.peak - held.activations, 0
        yield _counter(f"GiB, stage {stage}", 0.0, _STAGES, _gib(stays, 0.0))
        for at_s, change in changes:
            live += change
            yield _counter(f"GiB, stage {stage}", at_s, _STAGES, _gib(stays, live * each))


def _changes(mine: Sequence[PassBar]) -> Iterator[tuple[float, int]]:
    """Changes in the number of chunks in flight, as (time in seconds, +1 or -1). A chunk of a
    micro-batch is in flight from the start of its forward pass to the end of its last backward
    pass. Times are rounded to nanoseconds, so that an end sorts before a start at the same time."""
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], float] = {}
    for bar in mine:
        if bar.microbatch >= 0:
            key = (bar.microbatch, bar.chunk)
            first[key] = min(first.get(key, bar.start_s), bar.start_s)
            last[key] = max(last.get(key, bar.end_s), bar.end_s)
    yield from ((round(at_s, _DIGITS), 1) for at_s in first.values())
    yield from ((round(at_s, _DIGITS), -1) for at_s in last.values())


def _gib(stays: float, activations: float) -> dict[str, float]:
    return {"stays": round(stays / GIB, 3), "activations": round(activations / GIB, 3)}


def _name(what: str, process: int, thread: int, words: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": words}}


def _counter(name: str, at_s: float, process: int, values: dict[str, float]) -> Event:
    at = round(at_s * _NANOSECONDS) * _MICROSECONDS / _NANOSECONDS
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at, "args": values}


def _event(
    name: str, start_s: float, end_s: float, process: int, thread: int, args: dict[str, Any]
) -> Event:
    start, end = (round(at_s * _NANOSECONDS) for at_s in (start_s, end_s))
    in_microseconds = _MICROSECONDS / _NANOSECONDS
    return {
        "ph": "X", "name": name, "cat": name, "pid": process, "tid": thread,
        "ts": start * in_microseconds, "dur": (end - start) * in_microseconds, "args": args,
    }  # fmt: skip
