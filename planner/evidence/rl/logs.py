"""Logs of reinforcement-learning steps: seconds of each phase, and lengths of samples.

Frameworks print a step as names with numbers: on one line of the console, as a dictionary, as one
JSON object per line, or as a block of lines. `log_names.toml` gives the meaning of the names. The
first steps compile and warm up, and some are disturbed, so the median of the undisturbed steps is
taken for every figure (`planner.evidence.learn.logs.steady`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from hardware.files import shipped_toml
from planner.evidence.learn.logs import steady, text_lines
from planner.evidence.rl.rows import Figure, Timed
from planner.job.errors import UsageError
from planner.predict.rl.plan import PhaseName

# A name and its number, however they are written: `timing_s/gen:30.1`, `'perf/x': 3.0`,
# `"a/b": np.float64(2.5)`, `• generation: 45.32s (46.4%)`.
_PAIR = re.compile(
    r"""(?P<name>[A-Za-z_][\w./ :-]*?)['"]?\s*[:=]\s*(?:np\.float\d+\(|tensor\()?"""
    r"""(?P<value>[-+]?\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?)(?![\w.]*/)"""
)
# Separators, after which a name may start.
_BETWEEN = re.compile(r"""\s-\s|[,{}]\s*['"]?|•\s*|['"]\s*data['"]\s*:\s*\{""")
# Most steps that are read from a log; more say nothing new.
_MOST_STEPS = 100_000


@dataclass(frozen=True)
class Part:
    """A time that a framework logs: its figure, its names and the phases that it covers."""

    figure: Figure
    names: tuple[str, ...]
    phases: tuple[PhaseName, ...]


@dataclass(frozen=True)
class Names:
    """A framework's names; the fields of `log_names.toml`."""

    framework: str
    marks: tuple[str, ...]
    step: tuple[str, ...]
    lengths: Mapping[str, tuple[str, ...]]
    parts: tuple[Part, ...]


_LENGTHS = ("response_mean", "response_max", "prompt_mean", "prompt_max")


@cache
def known_names() -> tuple[Names, ...]:
    """The names of every framework."""
    tables = shipped_toml("planner.evidence.rl", "log_names.toml")
    return tuple(_names(framework, table) for framework, table in tables.items())


def _names(framework: str, table: Mapping[str, Any]) -> Names:
    return Names(
        framework,
        tuple(table["marks"]),
        tuple(table["step"]),
        {name: tuple(table[name]) for name in _LENGTHS if name in table},
        tuple(
            Part(part["figure"], tuple(part["names"]), tuple(part["phases"]))
            for part in table["part"]
        ),
    )


@dataclass(frozen=True)
class RlLog:
    """A parsed log. `framework`: the one that wrote it; `timed`: the steady times; `lengths`: mean
    and longest lengths of samples, as far as the log has them; `steps`: number of steps with a
    time; `told`: a sentence on the dropped steps."""

    path: Path
    framework: str
    timed: tuple[Timed, ...]
    lengths: Mapping[str, float]
    steps: int
    told: str


def read_rl_log(path: Path) -> RlLog | None:
    """Parse a log of reinforcement-learning steps; None for other files. UsageError if no step has
    a time."""
    values: dict[str, list[float]] = {}
    for line in text_lines(path):
        for name, value in pairs_of(line):
            some = values.setdefault(name, [])
            if len(some) < _MOST_STEPS:
                some.append(value)
    names = names_in(values)
    return None if names is None else _log(path, names, values)


def names_in(values: Mapping[str, Sequence[float]]) -> Names | None:
    """The framework whose names occur in a log; None if there is none."""
    return next((one for one in known_names() if any(mark in values for mark in one.marks)), None)


def pairs_of(line: str) -> Iterator[tuple[str, float]]:
    """The names with their numbers on a line, in order."""
    if ":" not in line and "=" not in line:
        return
    for piece in _BETWEEN.split(line):
        found = _PAIR.search(piece)
        if found is None:
            continue
        value = float(found["value"].replace("_", ""))
        if math.isfinite(value):
            yield found["name"].strip(), value


def _log(path: Path, names: Names, values: Mapping[str, Sequence[float]]) -> RlLog:
    timed = tuple(times_in(path, names, values))
    if not timed:
        raise UsageError(f"{path}: a log of {names.framework}, but no step of it has a time")
    step = next((values[name] for name in names.step if name in values), ())
    told = steady(step, str(path)).text if step else f"{len(timed)} kinds of times"
    lengths = {
        what: max(found) if what.endswith("max") else median(found)
        for what, some in names.lengths.items()
        if (found := next((values[name] for name in some if name in values), None))
    }
    return RlLog(path, names.framework, timed, lengths, len(step), told)


def times_in(path: Path, names: Names, values: Mapping[str, Sequence[float]]) -> Iterator[Timed]:
    """The steady time of a step, then of each phase that the log has. `names`: the framework's
    names; `values`: the numbers read so far, by name, one per step. A time that is always zero is
    left out."""
    if step := next((values[name] for name in names.step if name in values), None):
        yield Timed("step", steady(step, str(path)).value)
    seen: set[tuple[str, tuple[PhaseName, ...]]] = set()
    taken: set[PhaseName] = set()
    for part in names.parts:
        found = next((one for name in part.names if (one := _sum(values, name))), None)
        if found is None or (part.figure == "generation" and "generation" in taken):
            continue
        if (part.figure, part.phases) in seen:
            continue
        seen.add((part.figure, part.phases))
        taken |= set(part.phases)
        if any(value > 0.0 for value in found):
            yield Timed(part.figure, steady(found, str(path)).value, part.phases)


def _sum(values: Mapping[str, Sequence[float]], name: str) -> list[float] | None:
    """The values of a name, or the step-by-step sum for names joined with +; None if one of them is
    not logged."""
    each = [values.get(one.strip()) for one in name.split(" + ")]
    if any(one is None for one in each):
        return None
    return [math.fsum(some) for some in zip(*(one for one in each if one), strict=False)]
