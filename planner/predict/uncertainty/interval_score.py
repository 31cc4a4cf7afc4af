"""Quality of error bars: their width, how often they contain the measured value, and their score.

Coverage by itself says little: bars that cover 95 % of the runs if 80 % is promised are as wrong as
those that cover 67 %. The interval score combines both: it is larger for a wider bar, and for each
missed run in proportion to the distance. The expected score is smallest if the ends of the bar are
the 10 % and the 90 % quantile of the measured values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.predict.uncertainty.residuals import COVERAGE

Array = NDArray[np.float64]
# Share of the measured values that should be outside a bar.
ALPHA = 1.0 - COVERAGE


def interval_scores(low: Array, high: Array, value: Array) -> Array:
    """The interval score of each bar; all arguments are natural logarithms.

    score = (high - low) + 2 / alpha * distance of the value from the bar (Gneiting and Raftery
    2007, Strictly Proper Scoring Rules, JASA 102, eq. 43), alpha = 0.2 for bars of 80 %.
    """
    outside = np.maximum(0.0, np.maximum(low - value, value - high))
    scores: Array = high - low + 2.0 / ALPHA * outside
    return scores


@dataclass(frozen=True, slots=True)
class MeanQuality:
    """Means over some bars: width, ln(upper end / lower end); share of bars that contain the
    measured value; interval score, in ln."""

    width: float
    coverage: float
    score: float


@dataclass(frozen=True, slots=True)
class BarQuality:
    """Quality of the bars of some runs: the mean over runs, and the mean over sources of each
    source's mean."""

    runs: int
    sources: int
    of_runs: MeanQuality
    of_sources: MeanQuality


def bar_quality(
    low: Array, high: Array, value: Array, sources: Sequence[str] | NDArray[np.str_]
) -> BarQuality:
    """The quality of bars, one element per run; ends and values are natural logarithms. There must
    be at least one run."""
    inside = (low <= value) & (value <= high)
    figures = np.stack([high - low, inside, interval_scores(low, high, value)])
    _, place, counts = np.unique(np.asarray(sources), return_inverse=True, return_counts=True)
    weights = 1.0 / counts[place] / len(counts)
    return BarQuality(
        runs=len(value),
        sources=len(counts),
        of_runs=MeanQuality(*map(float, figures.mean(axis=1))),
        of_sources=MeanQuality(*map(float, figures @ weights)),
    )
