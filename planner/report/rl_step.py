"""A step of reinforcement learning on the terminal: phases on a clock, memory, the tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from planner.job.quantities import gib, seconds
from planner.predict.rl.plan import Phase, Side
from planner.predict.rl.step import RlStep
from planner.predict.rl.timeline import PHASE_WORDS, Bar, bars, side_words
from planner.report.said import described, said, table_of
from planner.report.tables import Block, Notes

# Width of the time bar in characters, the character for a phase, and a thin mark for a phase too
# short to see.
_CLOCK = 24
_FULL, _THIN = "█", "▏"
# The tail of generation is mentioned if it takes at least this share of the step.
_LEAST_TAIL = 0.05
_NAMED = 3
# The last answers, up to this share, are the tail.
_TAIL = 0.1


def step_blocks(step: RlStep) -> Iterator[Block]:
    """The phases of a step as bars, then notes on waiting and memory."""
    drawn = bars(step)
    span_s = max(bar.end_s for bar in drawn)
    yield table_of(
        "rl.table", drawn, step_s=step.step_s, low_s=step.low_s, high_s=step.high_s,
        axis=_axis(span_s), on=lambda bar: side_words(step, bar.phase.side),
        seconds=lambda bar: bar.phase.seconds, share=lambda bar: bar.phase.seconds / step.step_s,
        peak_bytes=lambda bar: bar.phase.peak_bytes, bar=lambda bar: drawn_bar(bar, span_s),
    )  # fmt: skip
    yield Notes(tuple(step_notes(step)))


def drawn_bar(bar: Bar, span_s: float, width: int = _CLOCK) -> str:
    """A bar of text from a phase's start to its end. The whole `width`, in characters, stands for
    `span_s` seconds. A very short phase gets a thin mark."""
    start = min(width - 1, round(bar.start_s / span_s * width))
    length = round(bar.end_s / span_s * width) - start
    return " " * start + (_FULL * length or _THIN)


def step_notes(step: RlStep) -> Iterator[str]:
    """Notes on how the sides wait for each other, on the tail, and on the fullest moments."""
    yield _waiting(step)
    last_s, whole_s = tail_seconds(step), step.generation.phase.seconds
    if last_s > _LEAST_TAIL * step.step_s:
        yield _words("rl.tail", None, last=last_s, part=last_s / whole_s)
    for side, phase in step.peaks.items():
        usable, words = step.usable_bytes[side], PHASE_WORDS[phase.name]
        where, largest = _filled(step, side), largest_held(phase)
        yield _words("rl.memory", phase, where=where, words=words, usable=usable, largest=largest)
    yield from dict.fromkeys(note for phase in step.phases for note in phase.notes)


def _filled(step: RlStep, side: Side) -> str:
    """The fullest GPUs of a side; if both sides share GPUs, also the part of the step in which they
    are fullest."""
    words = side_words(step, side)
    if step.layout.placement == "separate":
        return words
    return f"{words} {'in training' if side == 'trainer' else 'around generation'}"


def tail_seconds(step: RlStep) -> float:
    """Seconds at the end of generation in which at most a tenth of the answers are still running; 0
    if there is no such time."""
    profile = step.generation.profile
    ends = [at_s for at_s, running in profile if running <= _TAIL]
    return profile[-1][0] - ends[0] if ends else 0.0


def _waiting(step: RlStep) -> str:
    layout = step.layout
    if layout.placement == "colocated":
        return _words("rl.together", None)
    if layout.staleness == 0:
        return _words("rl.apart", None)
    side: Side = "trainer" if step.idle["trainer"] > step.idle["engine"] else "engine"
    idler = "GPUs that train" if side == "trainer" else "GPUs that sample"
    return _words("rl.overlapped", layout, idler=idler, idle=step.idle[side])


def largest_held(phase: Phase) -> str:
    """`KV cache 51.2, weights 15.3, CUDA graphs 1.0`, in GiB."""
    return _terms(phase.held, gib)


def largest_terms(phase: Phase) -> str:
    """`weights 31 s, KV cache 12 s`: the largest parts of a phase's time."""
    return _terms(phase.terms, seconds)


def _terms(terms: Mapping[str, float], written: Callable[[float], str]) -> str:
    largest = sorted(terms.items(), key=lambda term: -term[1])[:_NAMED]
    return ", ".join(f"{name} {written(size)}" for name, size in largest if size > 0.0)


def _words(key: str, about: object, **named: object) -> str:
    return said(described(key), about, **named) or ""


def _axis(span_s: float) -> str:
    """`0 s ........... 320 s`, as wide as the clock."""
    end = seconds(span_s)
    return f"0 s {'·' * (_CLOCK - 5 - len(end))} {end}"
