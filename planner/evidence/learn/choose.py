"""Which runs tell most of configurations at hand: a Gaussian's next measurements.

Configurations' ln(measured / predicted) have a covariance K: of the factors and of what like ones
share, by the prior or by what earlier runs left (`posterior.expectation`). Running one, i, leaves
K - K_i·K_iᵀ / (K_ii + s²) (Kalman's update; s: a run's noise). Runs are chosen one after the other
(active learning after Cohn 1996, Neural Networks 9(6)): what they measure does not change what
they leave, so that all can be named before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.evidence.learn.posterior import Array

Indices = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Unknown:
    """What is not known of configurations: `covariance` (n, n) of their ln(measured / predicted),
    and the variance of a run's `noise`."""

    covariance: Array
    noise: float

    def deviation(self, judged: Indices) -> float:
        """Mean standard deviation of the judged ones."""
        return float(np.sqrt(np.maximum(np.diag(self.covariance)[judged], 0.0)).mean())

    def deviations_after(self, judged: Indices) -> Array:
        """The same, (n,), once each configuration has run."""
        variances = np.diag(self.covariance)
        gains = self.covariance[judged] ** 2 / (variances + self.noise)
        return np.asarray(np.sqrt(np.maximum(variances[judged, None] - gains, 0.0)).mean(0))

    def after(self, run: int) -> Unknown:
        """What is left once a configuration has run."""
        column = self.covariance[:, run]
        gain = np.outer(column, column) / (column[run] + self.noise)
        return Unknown(self.covariance - gain, self.noise)


def most_telling(unknown: Unknown, candidates: Indices, judged: Indices, count: int) -> list[int]:
    """The `count` candidates that tell most of the judged configurations, each once."""
    left = [int(index) for index in candidates]
    chosen: list[int] = []
    for _ in range(count):
        after = unknown.deviations_after(judged)
        chosen.append(min(left, key=lambda index: float(after[index])))
        left.remove(chosen[-1])
        unknown = unknown.after(chosen[-1])
    return chosen
