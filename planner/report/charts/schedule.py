"""A pipeline schedule as bars on a time axis, one for each pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.job.schedules import SCHEDULES
from planner.predict import pipeline_simulator as simulator
from planner.predict.pipeline_simulator import ChunkTimes, Schedule, SimulatedPass
from planner.predict.plan import Plan
from planner.report.charts.drawing import BAR_HEIGHT, Specification, colours, table
from planner.report.charts.templates import filled

# Most passes that are drawn; the number above which small parts of a pass are left out; and the
# share below which a part is small.
MOST_PASSES = 2400
_MOST_DETAILED = 800
_SMALL_PART = 0.03
KINDS = (
    "forward", "backward", "weight gradients", "recompute", "communication", "optimizer", "bubble",
)  # fmt: skip
_KIND_OF = {"F": "forward", "B": "backward", "W": "weight gradients", "D": "backward"}


@dataclass(frozen=True, slots=True)
class PassBar:
    """A bar: the work of a stage from `start_s` to `end_s`."""

    stage: int
    kind: str
    start_s: float
    end_s: float
    chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Gantt:
    """The bars, first the bubbles, which the others cover. `microbatches`: how many are drawn;
    `of`: how many the step has."""

    bars: tuple[PassBar, ...]
    microbatches: int
    of: int


@dataclass(frozen=True, slots=True)
class _Shares:
    """How the bar of a pass is divided, in shares of the pass. `recompute`: for each stage, the
    share of a backward pass that repeats forward work. `communication`: the share of every pass
    that is communication. `least`: parts below this share are not drawn."""

    recompute: tuple[float, ...]
    communication: float
    least: float


def schedule_gantt(plan: Plan) -> Gantt | None:
    """The schedule of a plan, with as many micro-batches as the eye can tell apart. None without a
    pipeline, or if there is too much to draw."""
    count = _microbatches(plan)
    if plan.degrees.pp == 1 or count == 0:
        return None
    return played(plan, count)


def played(plan: Plan, count: int) -> Gantt:
    """The simulated schedule of a plan with `count` micro-batches, as bars for each stage. If there
    are many passes, small parts of them are not drawn."""
    schedule = _schedule(plan, count)
    outcome = simulator.simulate(schedule, _chunk_times(plan, schedule))
    detailed = sum(len(steps) for steps in schedule.steps) <= _MOST_DETAILED
    shares = _shares(plan, 0.0 if detailed else _SMALL_PART)
    span_s = max(outcome.end_s)
    bars = []
    for stage, passes in enumerate(outcome.played):
        bars.append(PassBar(stage, "bubble", 0.0, span_s, -1, -1))
        for run, start_s, end_s in passes:
            bars += _pass_bars(stage, run, start_s, end_s, shares)
        bars += _end_bars(plan, stage, span_s)
    return Gantt(tuple(bars), count, plan.degrees.grad_acc)


def passes_of(plan: Plan, count: int) -> int:
    """Number of passes (forward or backward) of all stages together, with `count` micro-batches."""
    pp = plan.degrees.pp
    chunks = max(len(plan.layout.block_layers) // pp, plan.degrees.vpp)
    return 2 * count * pp * chunks


def _microbatches(plan: Plan) -> int:
    """Number of micro-batches to draw: all, or enough to show the pattern; 0 if even these are too
    many."""
    degrees = plan.degrees
    pp, acc = degrees.pp, degrees.grad_acc
    folded = SCHEDULES[plan.schedule].placement != "straight"
    for rounds in (4, 3, 2, 1):
        count = min(acc, max(rounds * pp, 8 if rounds == 4 and pp < 4 else 1))
        if folded and count < min(acc, 2 * pp):
            return 0
        if plan.schedule == "interleaved":
            count -= count % pp
        if count and passes_of(plan, count) <= MOST_PASSES:
            return count
    return 0


def _schedule(plan: Plan, count: int) -> Schedule:
    pp, vpp = plan.degrees.pp, plan.degrees.vpp
    orders = {
        "1f1b": lambda: simulator.one_forward_one_backward(pp, count),
        "interleaved": lambda: simulator.interleaved(pp, vpp, count),
        "gpipe": lambda: simulator.gpipe(pp, count),
        "zb-h1": lambda: simulator.zero_bubble(pp, count, vpp),
        "zb-h2": lambda: simulator.zero_bubble(pp, count, rounds=2),
        "zb-v": lambda: simulator.zb_v(pp, count),
        "dualpipe": lambda: simulator.dualpipe(pp, count),
        "dualpipev": lambda: simulator.dualpipe_v(pp, count),
    }
    return orders[plan.schedule]()


def _chunk_times(plan: Plan, schedule: Schedule) -> list[ChunkTimes]:
    """Seconds of the passes of every chunk: the time of its stage, shared equally among the stage's
    chunks. If the backward pass is split, both halves are assumed to take equally long."""
    mirrored = SCHEDULES[plan.schedule].placement == "mirrored"
    each = 1 if mirrored else len(schedule.device) // plan.degrees.pp
    split = 0.5 if SCHEDULES[plan.schedule].splits_backward else 0.0
    return [
        ChunkTimes(
            plan.stages[device].forward_s / each,
            plan.stages[device].backward_s / each * (1.0 - split),
            plan.stages[device].backward_s / each * split,
        )
        for device in schedule.device
    ]


def _shares(plan: Plan, least: float) -> _Shares:
    """The shares of recomputation and communication in the passes, from the terms of the plan's
    step time and the passes of the slowest stage. The other stages' share of recomputation is
    scaled by the part of their layers that recomputes."""
    time, count = plan.time, plan.degrees.grad_acc
    slowest = max(plan.stages, key=lambda stage: stage.forward_s + stage.backward_s)
    busy_s = count * (slowest.forward_s + slowest.backward_s)
    again_s = min(time.recompute_s / (count * slowest.backward_s), 0.9)
    again = plan.layout.stage_recomputed
    layers = [again[stage.stage] / max(1, stage.layers) for stage in plan.stages]
    most = layers[slowest.stage] or 1.0
    recompute = tuple(again_s * share / most for share in layers)
    communication = time.tp_s + time.cp_s + time.ep_s + time.fsdp_s + time.pp_s
    return _Shares(recompute, min(communication / busy_s, 0.9), least)


def _pass_bars(
    stage: int, run: SimulatedPass, start_s: float, end_s: float, shares: _Shares
) -> Iterator[PassBar]:
    """The bars of one pass: recomputation first, communication last."""
    again = shares.recompute[stage] if run.kind in ("B", "D") else 0.0
    talk = (1.0 - again) * shares.communication
    again, talk = (share if share > shares.least else 0.0 for share in (again, talk))
    length_s = end_s - start_s
    for kind, share in (
        ("recompute", again),
        (_KIND_OF[run.kind], 1.0 - again - talk),
        ("communication", talk),
    ):
        if share > 0.0:
            stop_s = start_s + share * length_s
            yield PassBar(stage, kind, start_s, stop_s, run.chunk, run.microbatch)
            start_s = stop_s


def _end_bars(plan: Plan, stage: int, span_s: float) -> Iterator[PassBar]:
    for kind, length_s in (("communication", plan.time.dp_s), ("optimizer", plan.time.optimizer_s)):
        if length_s > 0.0:
            yield PassBar(stage, kind, span_s, span_s + length_s, -1, -1)
            span_s += length_s


_KIND_COLOURS = dict(
    zip(
        KINDS,
        ("#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#bbbbbb"),
        strict=True,
    )
)


def schedule_chart(gantt: Gantt) -> Specification:
    """The work of every stage on a time axis; bubbles are grey."""
    kinds = [kind for kind in KINDS if any(bar.kind == kind for bar in gantt.bars)]
    stages = 1 + max(bar.stage for bar in gantt.bars)
    passes = (
        {
            "s": bar.stage, "k": kinds.index(bar.kind), "a": round(bar.start_s, 4),
            "b": round(bar.end_s, 4),
            "c": bar.chunk, "m": bar.microbatch,
        }
        for bar in gantt.bars
    )  # fmt: skip
    return filled(
        "schedule",
        height=max(120, min(BAR_HEIGHT, 900 // stages) * stages),
        passes=table(passes),
        kinds=kinds,
        colours=colours(kinds, [_KIND_COLOURS[kind] for kind in kinds]),
        # Borders would hide narrow passes.
        bordered_from=4 * len(gantt.bars) // stages,
    )
