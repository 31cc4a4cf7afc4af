"""Follow a growing log: the figures of its steps as they arrive, the accuracy of the step time, and
signs of errors.

The step time is the median of the undisturbed steps after warm-up. Successive steps are correlated
(clocks, the queue of the data loader), so n of them are worth n / tau independent ones, with the
integrated autocorrelation time tau = 1 + 2·sum(rho_k), summed over pairs of lags while they are
positive (Geyer 1992, Statistical Science 7(4), initial positive sequence). A median's error is
sqrt(pi/2) times a mean's (for normal errors); for few steps the spread of Student's t applies. If
the two halves of the steps differ by more, that is the error: the time of a run that still changes
is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hardware.files import shipped_toml
from planner.evidence.learn.logs import (
    LONGEST_LINE,
    READERS,
    WRITERS,
    LogFigures,
    likeliest,
    plain_line,
    take_line,
    undisturbed,
)
from planner.predict.plan import Degrees

Sign = Literal["out-of-memory", "not-a-number", "too-few-gpus", "not-installed", "failed"]
_SIGNS: Mapping[Any, re.Pattern[str]] = {
    name: re.compile("|".join(f"(?:{line})" for line in lines))
    for name, lines in shipped_toml("planner.tune", "signs.toml")["lines"].items()
}
_BLOCK = 1 << 20
# Fewer steps give no error estimate.
FEWEST_STEPS = 5
# For a run that has ended, fewer steps are enough, with their larger error.
FEWEST_OF_AN_END = 3
# Error assumed if there are too few steps.
_UNSURE = 0.1


@dataclass(frozen=True, slots=True)
class StepTime:
    """`seconds` of a step, its standard error as a share, and the numbers of steps kept and of
    first steps dropped."""

    seconds: float
    relative_sd: float
    kept: int
    warm_up: int


@dataclass
class FollowedLog:
    """A log file that another process writes, read on from where the last look ended."""

    path: Path
    figures: dict[str, LogFigures] = field(
        default_factory=lambda: {name: LogFigures() for name in READERS}
    )
    signs: dict[str, str] = field(default_factory=dict)
    lines: int = 0
    last: str = ""
    _offset: int = 0
    _rest: bytes = b""

    def look(self) -> bool:
        """Read the new part and return whether there was any. A file that became shorter is read
        from the start."""
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, 2)
                if size < self._offset:
                    self.__init__(self.path)  # type: ignore[misc]
                stream.seek(self._offset)
                new = False
                while block := stream.read(_BLOCK):
                    new = True
                    self._offset += len(block)
                    self._take(block)
                return new
        except FileNotFoundError:
            return False

    def end(self) -> None:
        """Take the last line even without a line break, because the run has ended."""
        self._take(b"\n")

    def _take(self, block: bytes) -> None:
        *whole, self._rest = (self._rest + block.replace(b"\r", b"\n")).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole, self._rest = [*whole, self._rest[:LONGEST_LINE]], b""
        for line in whole:
            self._line(plain_line(line[:LONGEST_LINE]))

    def _line(self, text: str) -> None:
        if not text.strip():
            return
        self.lines += 1
        self.last = text.strip()[:300]
        try:
            take_line(text, self.figures)
        except ValueError as error:
            self.signs.setdefault("not-a-number", f"{error}: {text.strip()[:200]}")
        for name, pattern in _SIGNS.items():
            if name not in self.signs and pattern.search(text):
                self.signs[name] = text.strip()[:300]

    @property
    def format(self) -> str:
        """The format of most lines; empty if no line gave a step."""
        name = likeliest(self.figures)
        return name if self.figures[name].values else ""

    def parts(self) -> Mapping[str, float]:
        """Seconds of the parts of a step, if the format gives them."""
        return {}

    @property
    def said(self) -> LogFigures:
        """The figures from the lines of that format."""
        return self.figures[likeliest(self.figures)]


def is_foreign(log_format: str, framework: str) -> bool:
    """Whether a format is one that the framework does not write."""
    writers = WRITERS.get(log_format)
    return bool(log_format) and writers is not None and not framework.startswith(tuple(writers))


def step_time(
    said: LogFigures, degrees: Degrees, seq: int, *, ended: bool = False
) -> StepTime | None:
    """The step time from the steps of a log; None if there are too few. `ended`: no further steps
    will come."""
    seconds = _seconds(said, degrees, seq)
    if not len(seconds):
        return None
    if said.averaged:
        return StepTime(float(seconds[-1]), _UNSURE, len(seconds), 0)
    warm, kept = undisturbed(seconds)
    if len(kept) < (FEWEST_OF_AN_END if ended else FEWEST_STEPS):
        return None
    error = max(relative_error(kept), printed_error(said.values))
    return StepTime(float(np.median(kept)), error, len(kept), warm)


def _seconds(said: LogFigures, degrees: Degrees, seq: int) -> np.ndarray:
    """Seconds of each step with a positive figure."""
    values = np.array([one for one in said.values if math.isfinite(one) and one > 0.0])
    match said.kind:
        case "step_s":
            return values
        case "steps_per_s":
            return 1.0 / values
        case "tokens_per_s_per_gpu":
            return degrees.gbs * seq / (degrees.gpus * values)
    return degrees.gbs / values


def relative_error(kept: np.ndarray) -> float:
    """Standard error of the median of successive steps, divided by the median; at least half the
    difference between the medians of the two halves. A fixed large value for fewer than
    `FEWEST_STEPS` steps."""
    count, middle = len(kept), float(np.median(kept))
    if count < FEWEST_STEPS:
        return _UNSURE
    deviation = float(np.std(kept, ddof=1))
    independent = max(FEWEST_STEPS - 1.0, count / autocorrelation_time(kept))
    student = math.sqrt((independent - 1.0) / (independent - 3.0)) if independent > 3.0 else 2.0
    error = math.sqrt(math.pi / 2) * deviation / math.sqrt(independent) * student
    first, second = np.array_split(kept, 2)
    drift = abs(float(np.median(first)) - float(np.median(second))) / 2
    return max(error, drift) / middle


def printed_error(values: Sequence[float]) -> float:
    """The rounding error of printed figures, as a share: its variance is a twelfth of the squared
    last place. Averaging over more steps shrinks it only if their figures differ."""
    places = max(len(f"{value:.9g}".partition(".")[2].partition("e")[0]) for value in values)
    averaged = len(values) if len(set(values)) > 2 else 1
    return float(10.0**-places / math.sqrt(12.0 * averaged) / abs(float(np.median(values))))


def autocorrelation_time(values: np.ndarray) -> float:
    """The number of steps that are worth one independent step, at least 1."""
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance <= 0.0:
        return 1.0
    lags = np.correlate(centred, centred, "full")[len(values) - 1 :] / variance
    pairs = lags[: len(lags) // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0.0)
    positive = pairs[: negative[0]] if len(negative) else pairs
    return max(1.0, float(2.0 * positive.sum() - 1.0))
