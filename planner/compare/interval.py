"""A figure with its 80 % interval: the bound that it stays under with some certainty, and the
probability that it keeps a limit."""

from __future__ import annotations

from math import log
from statistics import NormalDist

from hardware.frozen import Frozen

_NORMAL = NormalDist()
# Ends of an 80 % interval, in standard deviations.
DEVIATIONS_80 = _NORMAL.inv_cdf(0.9)


class Range(Frozen):
    """A figure with the ends of its 80 % interval; all three scale together."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        """The figure and its interval, multiplied by a factor."""
        return Range(value=self.value * factor, low=self.low * factor, high=self.high * factor)


def columns(name: str, figure: Range | None) -> dict[str, float]:
    """A figure and the ends of its interval as table columns; no columns if it is not known."""
    if figure is None:
        return {}
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def bound(figure: Range, certainty: float) -> float:
    """The value that a figure does not exceed with this probability; infinite if its interval is.
    The interval is log-normal, with sides of different widths."""
    deviations = _NORMAL.inv_cdf(certainty) / DEVIATIONS_80
    end = figure.high if deviations > 0.0 else figure.low
    return float(figure.value * (end / figure.value) ** abs(deviations))


def chance(figure: Range, limit: float) -> float:
    """Probability that a figure stays within a limit."""
    if limit <= 0.0:
        return 0.0
    distance = log(limit / figure.value)
    width = abs(log((figure.high if distance > 0.0 else figure.low) / figure.value))
    if width == 0.0:
        return float(distance >= 0.0)
    return _NORMAL.cdf(distance / width * DEVIATIONS_80)
