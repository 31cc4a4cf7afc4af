"""The ranges that measured runs cover, and how far a job is outside them, in doublings.

An axis counts as measured between values that at least two sources reach, so that one unusual run
does not make a region count as measured; if there is only one source, its range counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log2
from typing import NamedTuple, get_args

from hardware.calibration import Axis
from planner.job.quantities import share

Range = tuple[float, float]
# Lowest and highest measured value of each axis.
MeasuredRanges = Mapping[str, Range]


class Conditions(NamedTuple):
    """A run's values on each axis; an unknown value is 0 and is ignored.

    `tokens`: of a micro-batch on one GPU (mbs·seq/cp); `overhead`: step time over the step time
    without exposed communication; `bits`: of the operands of linear layers; `guessed`: the GPU, if
    its kernels' rates are an assumption; `waiting`: share of the step in which the GPU waits for
    the CPU to issue kernels (not an axis: it has a separate error); `unstated`: whether a measured
    run does not state its precision, so that the GPU's usual one is assumed; `states`: whether it
    has state-space layers; `objective`: what it minimises, if not next-token prediction; `least`:
    the least time of the model's FLOP on such GPUs as a share of the predicted step (not an axis
    either: no interval extends below it; 0 if unknown); `fewest`: the least plausible amount of
    work as a share of the predicted one, if the amount is open.
    """

    gpus: float = 0.0
    seq: float = 0.0
    hidden: float = 0.0
    tokens: float = 0.0
    overhead: float = 0.0
    bits: int = 0
    guessed: str = ""
    waiting: float = 0.0
    unstated: bool = False
    states: bool = False
    objective: str = ""
    least: float = 0.0
    fewest: float = 1.0

    @property
    def exposed(self) -> float:
        """Share of the step that is exposed communication; 0 if unknown."""
        return 1.0 - 1.0 / self.overhead if self.overhead > 1.0 else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the step, which add up to one: the least time of the model's FLOP, exposed
        communication, waiting for the CPU, and the rest. Empty if the step time is unknown."""
        if self.least <= 0.0:
            return {}
        waiting = min(self.waiting, 1.0 - self.exposed)
        work = min(self.least, 1.0 - self.exposed - waiting)
        rest = 1.0 - self.exposed - waiting - work
        return {"work": work, "exposed": self.exposed, "waiting": waiting, "rest": rest}


UNKNOWN = Conditions()
AXES: tuple[str, ...] = get_args(Axis)
_NAMES = {
    "gpus": "{} GPUs",
    "seq": "sequences of {} tokens",
    "hidden": "hidden size {}",
    "tokens": "micro-batches of {} tokens",
    "overhead": "exposed communication {} of the step",
}


def ranges(runs: Iterable[Conditions]) -> dict[str, Range]:
    """For each axis, the lowest and the highest value among runs that know it; an axis that is
    unknown in all runs is left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for axis in AXES:
            value = getattr(run, axis)
            if value > 0.0:
                found[axis].append(value)
    return {axis: (min(values), max(values)) for axis, values in found.items()}


def common_ranges(by_source: Iterable[MeasuredRanges]) -> dict[str, Range]:
    """On each axis the range from the second lowest lower end to the second highest upper end, so
    that two sources go as low and two as high; or the range of the only source. The ends are the
    wrong way round if sources lie apart."""
    lows: dict[str, list[float]] = defaultdict(list)
    highs: dict[str, list[float]] = defaultdict(list)
    for measured in by_source:
        for axis, (low, high) in measured.items():
            lows[axis].append(low)
            highs[axis].append(high)
    return {axis: (_second(lows[axis]), -_second(-end for end in highs[axis])) for axis in lows}


def _second(values: Iterable[float]) -> float:
    """The second smallest value; if there is only one, that one."""
    ordered = sorted(values)
    return ordered[min(1, len(ordered) - 1)]


def doublings(measured: MeasuredRanges, at: Conditions) -> dict[str, float]:
    """For each axis on which the job is outside the measured range, its distance from the nearer
    end in doublings (log2). Axes within the range, or with an unknown value, are left out."""
    found = {}
    for axis, (low, high) in measured.items():
        value = getattr(at, axis)
        if value > 0.0:
            beyond = max(log2(low / value), log2(value / high))
            if beyond > 0.0:
                found[axis] = beyond
    return found


def beyond_text(axis: str, measured: MeasuredRanges, at: Conditions) -> str:
    """A value outside the measured range in words: `65,536 GPUs (measured: up to 12,288)`."""
    value = getattr(at, axis)
    low, high = measured[axis]
    apart, above = low > high, value > high
    if axis == "overhead":
        value, low, high = (1.0 - 1.0 / ratio for ratio in (value, low, high))
    text, shortest, longest = (
        share(number, 0) if axis == "overhead" else f"{number:,.0f}"
        for number in (value, low, high)
    )
    named = _NAMES[axis].format(text)
    named = named.removesuffix("s") if axis == "gpus" and value == 1 else named
    if apart:
        # The two sources have no value in common.
        return f"{named} (measured by one source each: up to {longest}, from {shortest})"
    return f"{named} (measured: {f'up to {longest}' if above else f'{shortest} or more'})"
