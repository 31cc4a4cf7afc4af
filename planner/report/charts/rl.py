"""Charts of a step of reinforcement learning: its phases on the GPUs, memory in each phase, and the
tail of generation."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import GIB, gib, seconds, share
from planner.predict.rl.step import RlStep
from planner.predict.rl.timeline import PHASE_WORDS, Bar, bars, side_words
from planner.report.charts.drawing import (
    BAR_HEIGHT,
    Drawing,
    Specification,
    colours,
    limit_line,
    table,
)
from planner.report.charts.templates import GREY, PALETTE, filled

# Colours of phases: dark for training, bright for reading or sampling, grey for moving data.
_COLOURS = {
    "generation": PALETTE[1], "reward": PALETTE[4], "old_logprobs": PALETTE[3],
    "reference": PALETTE[9], "values": PALETTE[6], "critic_update": PALETTE[8],
    "update": PALETTE[2], "transfer": PALETTE[5], "wake": "#bbbbbb", "sleep": "#888888",
    "leave": "#aaaaaa", "return": "#666666",
}  # fmt: skip
# Most parts of a GPU's memory that are drawn separately; smaller ones are merged into one.
_MOST_PARTS = 10
_OTHER = "others"
_BRIGHT = [colour for colour in PALETTE if colour != GREY] + [GREY]


def step_drawings(step: RlStep) -> Iterator[Drawing]:
    """The charts of a step in reading order: how the time is spent, what fills the GPUs, and how
    long the last answers run."""
    yield Drawing("rl-phases", "Where the time goes", phases_chart(step))
    for side in dict.fromkeys(phase.side for phase in step.phases):
        title = f"Memory of a GPU over the step: {side_words(step, side)}"
        if step.layout.placement == "colocated":
            yield Drawing("rl-memory", title, memory_chart(step, bars(step)))
            break
        own = tuple(bar for bar in bars(step) if bar.phase.side == side)
        yield Drawing(f"rl-memory-{side}", title, memory_chart(step, own))
    if step.generation.profile:
        ends_s = step.generation.profile[-1][0]
        late = "The longest answers run on into the next step." if ends_s > step.step_s else ""
        yield Drawing("rl-tail", "Where the tail waits", running_chart(step), late)


def phases_chart(step: RlStep) -> Specification:
    """The phases of each side on a time axis."""
    drawn = bars(step)
    names = list(dict.fromkeys(bar.phase.name for bar in drawn))
    sides = list(dict.fromkeys(side_words(step, bar.phase.side) for bar in drawn))
    rows = (
        {
            "s": side_words(step, bar.phase.side), "k": PHASE_WORDS[bar.phase.name],
            "a": bar.start_s, "b": bar.end_s,
            "text": f"{bar.words}: {seconds(bar.phase.seconds)} "
            f"({share(bar.phase.seconds / step.step_s, 0)} of the step)",
        }
        for bar in drawn
    )  # fmt: skip
    kinds = [PHASE_WORDS[name] for name in names]
    return filled(
        "rl_phases",
        height=3 * BAR_HEIGHT * len(sides),
        phases=table(rows),
        sides=sides,
        kinds=kinds,
        end=max(bar.end_s for bar in drawn),
        colours=colours(kinds, [_COLOURS[name] for name in names]),
    )


def memory_chart(step: RlStep, drawn: tuple[Bar, ...]) -> Specification:
    """Memory of a GPU in each phase, stacked by part, with a line at the limit."""
    side = drawn[0].phase.side
    parts = _parts(drawn)
    rows = []
    for bar in drawn:
        top = 0.0
        for part in parts:
            size = _size(bar, part, parts)
            text = f"{bar.words}: {part} {gib(size)} GiB of {gib(bar.phase.peak_bytes)}"
            rows.append(
                {"label": bar.words, "part": part, "start": top / GIB, "end": (top + size) / GIB}
                | {"text": text}
            )
            top += size
    return filled(
        "rl_memory",
        bars=table(rows),
        colours=colours(
            parts, [GREY if part == _OTHER else _BRIGHT[i] for i, part in enumerate(parts)]
        ),
        groups=parts,
        limit=limit_line(step.usable_bytes[side], "y"),
    )


def _parts(drawn: tuple[Bar, ...]) -> list[str]:
    """The names of the largest parts over all phases, and one name for all others."""
    most: dict[str, float] = {}
    for bar in drawn:
        for name, size in _held(bar).items():
            most[name] = max(size, most.get(name, 0.0))
    named = [name for name, size in sorted(most.items(), key=lambda part: -part[1]) if size > 0.0]
    if len(named) <= _MOST_PARTS:
        return named
    return [*named[: _MOST_PARTS - 1], _OTHER]


def _size(bar: Bar, part: str, parts: list[str]) -> float:
    held = _held(bar)
    if part != _OTHER:
        return held.get(part, 0.0)
    return sum(size for name, size in held.items() if name not in parts)


def _held(bar: Bar) -> dict[str, float]:
    """The parts of a GPU's memory by name, with their sizes in bytes. Each name begins with the
    side (trainer or engine) that holds the part."""
    return {
        name if ": " in name else f"{bar.phase.side}: {name}": size
        for name, size in bar.phase.held.items()
    }


def running_chart(step: RlStep) -> Specification:
    """The share of the answers that are still being generated, until the longest ends."""
    points = (
        {"x": at_s, "y": running, "text": f"{share(running, 0)} run after {seconds(at_s)}"}
        for at_s, running in step.generation.profile
    )
    return filled("rl_running", points=table(points))
