"""Read training logs line by line, in bounded memory, into step times; then find the steady step
time without warm-up and disturbances.

The format is recognised from the lines, not from the file name. Figures are seconds of a step,
tokens per second and GPU, or samples per second, which the run's configuration turns into seconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from hardware.errors import HardwareError
from hardware.files import (
    LARGEST_INTEGER,
    demand_file,
    json_content,
    number_error,
    read_text,
    shipped_toml,
)
from planner.job.errors import UsageError
from planner.job.quantities import GIB, share

# Longer lines are cut: no framework prints its figures so far to the right.
LONGEST_LINE = 1 << 16
# Number of last steps of a log that are kept.
MOST_STEPS = 100_000
_KINDS = ("step_s", "tokens_per_s_per_gpu", "samples_per_s", "steps_per_s")
# Colours, and the tag that mpirun --tag-output puts before a line.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TAG = re.compile(r"\[\d+,\d+\]<\w+>:")
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES = {"mib": 2.0**20, "gib": GIB}
# Replaces the N in a pattern.
_NUMBER = r"(?:[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?|nan|inf)"


@dataclass
class LogFigures:
    """The figures in the lines of one format. `values`: one per step, in order; `kind`: their
    meaning, for example seconds of a step or tokens per second and GPU; `peak_bytes`: the largest
    memory peak, None if there is none, and `memory_kind`: how it was counted; `gbs`: the global
    batch in `gbs_unit`, None if unknown; `gbs_places`: its number of significant digits if it was
    rounded, else None."""

    values: list[float] = field(default_factory=list)
    kind: str = "step_s"
    peak_bytes: float | None = None
    memory_kind: str = ""
    gbs: int | None = None
    gbs_unit: str = "sequences"
    gbs_places: int | None = None
    averaged: bool = False

    def add(self, kind: str, value: float) -> None:
        """Add the figure of one step. `kind` tells how it was stated, for example as seconds or as
        throughput. The figures of only one kind are kept, the most direct one. Beyond `MOST_STEPS`
        figures, the older half is dropped."""
        if kind != self.kind:
            if self.values and _KINDS.index(kind) > _KINDS.index(self.kind):
                return
            self.kind, self.values = kind, []
        if len(self.values) >= MOST_STEPS:
            del self.values[: MOST_STEPS // 2]
        self.values.append(value)

    def peak(self, size_bytes: float, kind: str) -> None:
        """Keep the largest memory peak."""
        if math.isfinite(size_bytes) and size_bytes > (self.peak_bytes or 0.0):
            self.peak_bytes, self.memory_kind = size_bytes, kind


_TABLES = shipped_toml("planner.evidence.learn", "lines.toml")
_PATTERNS = {
    name: tuple(re.compile(line.replace("N", _NUMBER)) for line in lines)
    for name, lines in _TABLES["lines"].items()
}


def _take(match: re.Match[str], found: LogFigures) -> None:
    """Store the figures in the groups of a matched line."""
    parts_s: list[float] = []
    for name, text in match.groupdict().items():
        if text is None:
            continue
        what, _, unit = name.partition("_")
        value = float(text.rstrip("KMGBT").replace(",", "")) * _SCALES.get(text[-1], 1.0)
        if unit in _SECONDS:
            parts_s.append(value * _SECONDS[unit])
        elif unit in _BYTES:
            found.peak(value * _BYTES[unit], what)
        elif unit:
            found.averaged |= name == "steps_per_s"
            found.add(name, value)
        else:
            found.gbs, found.gbs_unit = round(_bounded(value, "the global batch")), what
            # `human_format` of src/nanotron/logging/base.py rounds to three places.
            found.gbs_places = 3 if text[-1] in _SCALES else None
    if parts_s:
        found.add("step_s", sum(parts_s))


def _bounded(value: float, name: str) -> float:
    """The figure, if a run can have it. Otherwise, and for nan, ValueError names it."""
    if not abs(value) <= LARGEST_INTEGER:
        shown = f"{value:g}" if isinstance(value, float) else "a number of many digits"
        raise ValueError(f"{name} is {shown}; no run has that")
    return float(value)


def mlperf(line: str, found: LogFigures) -> None:
    """Parse a `:::MLLOG` line of MLPerf Training: `train_step_time` or samples per second of
    `tracked_stats`; `global_batch_size`."""
    _, mark, text = line.partition(":::MLLOG")
    try:
        event = json.loads(text) if mark else None
    except json.JSONDecodeError:
        return
    except RecursionError:
        raise ValueError("an event is nested too deep") from None
    except ValueError as error:
        raise ValueError(number_error(error)) from None
    if not isinstance(event, dict):
        return
    key, value = event.get("key"), event.get("value")
    if key == "global_batch_size" and isinstance(value, int | float) and value > 0:
        found.gbs = round(_bounded(value, key))
    elif key == "tracked_stats" and isinstance(value, dict):
        for name, kind in (("train_step_time", "step_s"), ("throughput", "samples_per_s")):
            figure = value.get(name)
            if isinstance(figure, int | float) and not isinstance(figure, bool):
                found.add(kind, _bounded(figure, name))


READERS = (*_PATTERNS, "MLPerf")
# Python writes losses and gradient norms that are not numbers in this way, for which JSON has no
# word.
_NOT_A_NUMBER = re.compile(r"(:\s*)(?:NaN|-?Infinity)\b")
TRAINER_STATE = "Hugging Face trainer_state.json"
WRITERS: Mapping[str, Sequence[str]] = _TABLES["writers"]


@dataclass(frozen=True)
class TrainingLog:
    """A log: its format and the figures of its steps."""

    path: Path
    format: str
    figures: LogFigures


def read_log(path: Path) -> TrainingLog:
    """Parse a log in the format that most of its lines have. UsageError if no line gives a step
    time."""
    if path.suffix == ".json":
        return _trainer_state(path)
    found = {name: LogFigures() for name in READERS}
    lines = 0
    for line in text_lines(path):
        lines += 1
        try:
            take_line(line, found)
        except ValueError as error:
            raise UsageError(f"{path}, line {lines}: {error}") from None
    name = likeliest(found)
    if not found[name].values:
        raise UsageError(
            f"{path}: none of {lines:,} lines tells how long a step took; the formats read are "
            f"{', '.join(READERS)} and {TRAINER_STATE} (a Megatron-LM log needs --log-throughput "
            "or its usual `elapsed time per iteration`, DeepSpeed wall_clock_breakdown)"
        )
    return TrainingLog(path, name, found[name])


def likeliest(found: Mapping[str, LogFigures]) -> str:
    """The format that most lines have."""
    return max(found, key=lambda one: len(found[one].values))


def take_line(line: str, found: Mapping[str, LogFigures]) -> None:
    """Parse a line in every format. ValueError for a figure that no run has."""
    mlperf(line, found["MLPerf"])
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            if match := pattern.search(line):
                _take(match, found[name])


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file of any size, each cut at `LONGEST_LINE`, without colours and tags.
    UsageError or HardwareError for a missing file, a folder, or binary data."""
    try:
        demand_file(path, path.stat())
        with path.open("rb") as stream:
            yield from _decoded(stream, path)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None


def _decoded(stream: IO[bytes], path: Path) -> Iterator[str]:
    while line := stream.readline(LONGEST_LINE):
        if b"\0" in line:
            raise UsageError(f"{path} is not a text file: it contains a zero byte")
        yield plain_line(line)


def plain_line(line: bytes) -> str:
    """A line of a log as text, without colours and tags."""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    tag = _TAG.match(text)
    return text[tag.end() :] if tag else text


def _trainer_state(path: Path) -> TrainingLog:
    """Parse Transformers' `trainer_state.json`, whose last entry has the mean over all steps."""
    try:
        content = json_content(_NOT_A_NUMBER.sub(r"\1null", read_text(path)), str(path))
    except HardwareError as error:
        raise UsageError(str(error)) from None
    history = content.get("log_history") if isinstance(content, dict) else None
    if not isinstance(history, list):
        raise UsageError(f"{path}: no 'log_history': this is not a trainer_state.json")
    figures = LogFigures(averaged=True)
    for entry in history:
        # Trainer rounds its rate to three places; steps over seconds are exact.
        told = entry if isinstance(entry, dict) else {}
        steps, seconds, rate = (
            value if isinstance(value := told.get(name), int | float) and value is not True else 0.0
            for name in ("step", "train_runtime", "train_steps_per_second")
        )
        if rate > 0.0:
            figures.add("steps_per_s", steps / seconds if min(steps, seconds) > 0.0 else rate)
    if not figures.values:
        raise UsageError(
            f"{path}: no entry of 'log_history' has train_steps_per_second, which Trainer writes "
            "when training ends; let the run end, or give another log of it"
        )
    return TrainingLog(path, TRAINER_STATE, figures)


# The first steps compile, allocate and fill caches: drop those that take longer than this times the
# later median.
_WARM = 1.15
# In a run with at least this number of steps, the first is always dropped.
_ENOUGH = 3
# Odd steps are farther from the median than both limits: in scaled absolute deviations, and as a
# share.
_DEVIATIONS, _LEAST_SHARE = 4.0, 0.05
# A normal distribution's standard deviation over its median absolute deviation.
_SCALE = 1.4826


@dataclass(frozen=True, slots=True)
class Steady:
    """`value`: median of the `kept` steps. The dropped ones are `warm_up`, `odd` (checkpoints,
    evaluation, garbage collection) and `unusable` (not a positive number). `spread`: scaled median
    absolute deviation divided by the median."""

    value: float
    kept: int
    warm_up: int
    odd: int
    unusable: int
    spread: float

    @property
    def text(self) -> str:
        """The summary, as `median of 94 steps ±1.2 %; dropped: 3 of warm-up, 2 odd ones`."""
        counts = {
            "of warm-up": self.warm_up,
            "odd ones": self.odd,
            "without a positive number": self.unusable,
        }
        dropped = [f"{count:,} {what}" for what, count in counts.items() if count]
        noun = "step" if self.kept == 1 else "steps"
        rest = f"; dropped: {', '.join(dropped)}" if dropped else ""
        spread = f" ±{share(self.spread)}" if self.kept > 1 else ""
        return f"median of {self.kept:,} {noun}{spread}{rest}"


def steady(values: Sequence[float], origin: str, *, higher_is_faster: bool = False) -> Steady:
    """The steady figure of successive steps. UsageError if none is a positive number."""
    usable = np.array([value for value in values if math.isfinite(value) and value > 0.0])
    if not len(usable):
        raise UsageError(f"{origin}: none of {len(values):,} steps has a time above 0")
    seconds = 1.0 / usable if higher_is_faster else usable
    warm, kept = undisturbed(seconds)
    value = float(np.median(kept))
    spread = _SCALE * float(np.median(np.abs(kept - value))) / value
    return Steady(
        1.0 / value if higher_is_faster else value,
        len(kept),
        warm,
        len(seconds) - warm - len(kept),
        len(values) - len(usable),
        spread,
    )


def undisturbed(seconds: np.ndarray) -> tuple[int, np.ndarray]:
    """The number of warm-up steps at the start, and the seconds of the later steps without those
    far from their median. `seconds`: of each step, in order; at least one, all positive."""
    warm = _warm_up(seconds)
    rest = seconds[warm:]
    middle = float(np.median(rest))
    scale = _SCALE * float(np.median(np.abs(rest - middle)))
    return warm, rest[np.abs(rest - middle) <= max(_DEVIATIONS * scale, _LEAST_SHARE * middle)]


def _warm_up(seconds: np.ndarray) -> int:
    """The number of warm-up steps: the first steps that are slower than `_WARM` times the median of
    the later half. At least one if there are `_ENOUGH` steps."""
    limit = _WARM * float(np.median(seconds[len(seconds) // 2 :]))
    slow = seconds[: len(seconds) // 2] > limit
    calm = np.flatnonzero(~slow)
    return max(int(len(seconds) >= _ENOUGH), int(calm[0]) if len(calm) else len(slow))
