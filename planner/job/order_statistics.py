"""The sum and the largest of independent draws from a distribution, computed without sampling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Number of points of the distribution of a sum.
_POINTS = 2048
# Deviations of a sum that its points cover; less than one in a billion is beyond.
_REACH = 8.0


class Distribution(NamedTuple):
    """Equally spaced values, relative to their mean (value / mean - 1), and their probabilities."""

    values: Array
    shares: Array

    @property
    def mean(self) -> float:
        """Expected value."""
        return float(self.values @ self.shares)

    def quantile(self, share: float) -> float:
        """The value that a draw does not exceed with this probability."""
        return float(self.values[int(np.searchsorted(np.cumsum(self.shares), share))])

    def largest_of(self, count: float) -> Distribution:
        """Distribution of the largest of `count` independent draws: P(max <= x) = F(x)^n."""
        reached = np.minimum(np.cumsum(self.shares), 1.0)
        reached[-1] = 1.0
        return Distribution(self.values, np.diff(np.maximum(reached, 0.0) ** count, prepend=0.0))


def sum_of(values: Array, shares: Array, count: int) -> Distribution:
    """Distribution of the sum of `count` independent draws, relative to its mean.

    Shares are put on a grid that covers `_REACH` deviations of the sum on each side of its mean,
    each split between its two nearest points in proportion. The grid is convolved by discrete
    Fourier transform, whose wrap-around is then negligible.
    """
    mean = float(values @ shares)
    around = values - mean
    deviation = float(np.sqrt((around**2) @ shares * count))
    below = max(-around.min(), min(-around.min() * count, _REACH * deviation))
    above = max(around.max(), min(around.max() * count, _REACH * deviation + around.max()))
    if deviation <= 1e-12 * mean:
        return Distribution(np.zeros(1), np.ones(1))
    # Splitting shares between two points widens the sum of a few draws by one point each.
    margin = 2 + min(count, 64)
    step = (below + above) / (_POINTS - 2 * margin)
    place = around / step
    low = np.floor(place).astype(np.int64)
    upper = place - low
    grid = np.bincount(low % _POINTS, weights=shares * (1.0 - upper), minlength=_POINTS)
    grid += np.bincount((low + 1) % _POINTS, weights=shares * upper, minlength=_POINTS)
    summed = np.fft.irfft(np.fft.rfft(grid) ** count, _POINTS)
    first = -int(np.floor(below / step)) - margin
    order = np.arange(first, first + _POINTS)
    found = np.maximum(summed[order % _POINTS], 0.0)
    return Distribution(order * step / (mean * count), found / found.sum())
