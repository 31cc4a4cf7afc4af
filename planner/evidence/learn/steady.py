"""The steady step time of a run's figures: without warm-up, and without what disturbed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.job.errors import UsageError

# The first steps compile, allocate and fill caches: those beyond this times the later median.
_WARM = 1.15
# Of a run of at least so many steps, the first is dropped in any case.
_ENOUGH = 3
# Steps farther from the median than so many scaled absolute deviations, and by this share.
_DEVIATIONS, _LEAST_SHARE = 4.0, 0.05
# A normal distribution's standard deviation over its median absolute deviation.
_SCALE = 1.4826


@dataclass(frozen=True, slots=True)
class Steady:
    """`value`: median of the `kept` steps; how many were dropped as warm-up, as odd (checkpoints,
    evaluation, garbage collection), and as no positive number; `spread`: scaled median absolute
    deviation over the median."""

    value: float
    kept: int
    warm_up: int
    odd: int
    unusable: int
    spread: float

    @property
    def text(self) -> str:
        """`median of 94 steps ±1.2 %; dropped: 3 of warm-up, 2 odd ones`."""
        dropped = [
            f"{count:,} {what}"
            for count, what in (
                (self.warm_up, "of warm-up"),
                (self.odd, "odd ones"),
                (self.unusable, "without a positive number"),
            )
            if count
        ]
        noun = "step" if self.kept == 1 else "steps"
        rest = f"; dropped: {', '.join(dropped)}" if dropped else ""
        return f"median of {self.kept:,} {noun} ±{self.spread:.1%}{rest}"


def steady(values: Sequence[float], origin: str, *, higher_is_faster: bool = False) -> Steady:
    """The steady figure of steps in their order. UsageError where none is a positive number."""
    usable = np.array([value for value in values if math.isfinite(value) and value > 0.0])
    if not len(usable):
        raise UsageError(f"{origin}: none of {len(values):,} steps has a time above 0")
    seconds = 1.0 / usable if higher_is_faster else usable
    warm = _warm_up(seconds)
    rest = seconds[warm:]
    middle = float(np.median(rest))
    scale = _SCALE * float(np.median(np.abs(rest - middle)))
    kept = np.abs(rest - middle) <= max(_DEVIATIONS * scale, _LEAST_SHARE * middle)
    value = float(np.median(rest[kept]))
    spread = _SCALE * float(np.median(np.abs(rest[kept] - value))) / value
    return Steady(
        1.0 / value if higher_is_faster else value,
        int(kept.sum()),
        warm,
        int((~kept).sum()),
        len(values) - len(usable),
        spread,
    )


def _warm_up(seconds: np.ndarray) -> int:
    """How many first steps are slower than the later half; of enough, the first in any case."""
    limit = _WARM * float(np.median(seconds[len(seconds) // 2 :]))
    slow = seconds[: len(seconds) // 2] > limit
    calm = np.flatnonzero(~slow)
    return max(int(len(seconds) >= _ENOUGH), int(calm[0]) if len(calm) else len(slow))
