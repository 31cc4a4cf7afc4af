"""Memory of candidates: the probability that each fits, updated by trials that fitted or ran out of
memory.

ln(true / predicted peak) of the configurations is taken as normal, with the half widths of their
error bars (`planner.predict.uncertainty`). The whole cluster shares one part of it, similar
configurations another. A run that fits shows that its error is below the margin to the limit; one
that ran out of memory shows that it is above. The truncated normal's mean and variance replace the
old ones (assumed-density filtering: Minka 2001, A family of algorithms for approximate Bayesian
inference, section 3.2), and the shared parts move those of the other configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from planner.evidence.runs.predict import Prediction
from planner.predict.uncertainty.intervals import log_bounds, spread_of
from planner.predict.uncertainty.residuals import HIGH
from planner.tune.errors import Array

_NORMAL = NormalDist()
_WIDTH = _NORMAL.inv_cdf(HIGH)
# Shares of the variance of peak errors: common to all configurations of a cluster, and common to
# similar ones. Only nearly equal configurations share the rest.
_SHARED, _LIKE = 0.5, 0.25
# Noise of a measured peak, in addition to the tool's rounding.
_PEAK_NOISE = 0.02
_NEVER, _SURE_MARGIN = 1e-9, 9.0


@dataclass(frozen=True)
class Memory:
    """`margin`: ln(limit / predicted peak), (n,); `mean` and `covariance` of ln(true / predicted
    peak); `known`: by index, whether a configuration fits, if a run has shown it."""

    margin: Array
    mean: Array
    covariance: Array
    known: Mapping[int, bool]

    @classmethod
    def of(cls, predictions: Sequence[Prediction], likeness: Array) -> Memory:
        """The belief before any run; `likeness` (n, n): 1 for equal configurations, falling to 0
        for distant ones."""
        return cls.of_margins([*map(_width_and_margin, predictions)], likeness)

    @classmethod
    def of_margins(cls, found: Sequence[tuple[float, float]], likeness: Array) -> Memory:
        """The belief before any run. `found`: for each configuration, the standard deviation of
        ln(true / predicted peak) and the margin, ln(limit / predicted peak). `likeness` (n, n): as
        for `of`."""
        widths, margins = zip(*found, strict=True)
        deviations = np.array(widths)
        shares = _SHARED + _LIKE * likeness + (1.0 - _SHARED - _LIKE) * likeness**2
        covariance = np.outer(deviations, deviations) * shares
        return cls(np.array(margins), np.zeros(len(margins)), covariance, {})

    @property
    def probabilities(self) -> Array:
        """Probability of fitting, (n,)."""
        deviations = np.sqrt(np.maximum(np.diag(self.covariance), _NEVER))
        found = np.array([_NORMAL.cdf(at) for at in (self.margin - self.mean) / deviations])
        for place, fits in self.known.items():
            found[place] = float(fits)
        return found

    def seen(self, place: int, *, fits: bool) -> Memory:
        """The belief once a run has shown whether a configuration fits."""
        mean, variance = float(self.mean[place]), float(self.covariance[place, place])
        deviation = math.sqrt(max(variance, _NEVER))
        sign = 1.0 if fits else -1.0
        at = sign * (float(self.margin[place]) - mean) / deviation
        ratio = _NORMAL.pdf(at) / max(_NORMAL.cdf(at), _NEVER)
        moved = mean - sign * deviation * ratio
        left = max(variance * (1.0 - at * ratio - ratio**2), _NEVER)
        return replace(self._updated(place, moved - mean, left), known={**self.known, place: fits})

    def measured(self, place: int, log_ratio: float) -> Memory:
        """The belief once a peak was measured, as ln(measured / predicted)."""
        variance = float(self.covariance[place, place])
        gain = variance / (variance + _PEAK_NOISE**2)
        change = gain * (log_ratio - float(self.mean[place]))
        return self._updated(place, change, (1.0 - gain) * variance)

    def _updated(self, place: int, change: float, left: float) -> Memory:
        """The belief after the mean of one configuration (`place`) and its variance have changed.
        The other configurations change with it, as far as they are correlated."""
        column = self.covariance[:, place]
        variance = max(float(column[place]), _NEVER)
        lost = np.outer(column, column) * (variance - left) / variance**2
        mean = self.mean + column * change / variance
        return replace(self, mean=mean, covariance=self.covariance - lost)


def _width_and_margin(one: Prediction) -> tuple[float, float]:
    """Standard deviation of ln(true / predicted peak) of a prediction, and the margin, ln(limit /
    predicted peak), that agrees with its probability of fitting. A large margin if that probability
    is unknown."""
    spread, _ = spread_of(one.job, "memory", one.row.source)
    low, high = log_bounds(spread, one.doubt_of("memory"))
    deviation = 0.5 * (high - low) / _WIDTH
    chance = one.fit_probability
    return deviation, _SURE_MARGIN if chance is None else margin_of(deviation, chance)


def margin_of(deviation: float, chance: float) -> float:
    """The margin, ln(limit / predicted peak), at which a configuration fits with the probability
    `chance`. `deviation`: standard deviation of ln(true / predicted peak)."""
    return deviation * _NORMAL.inv_cdf(min(max(chance, 1e-6), 1.0 - 1e-6))
