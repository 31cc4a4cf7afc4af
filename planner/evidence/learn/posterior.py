"""Bayesian least squares of a few runs on many parameters, in logarithms.

    y = A·θ + g + e,   θ ~ N(0, diag((u·spreads)²)),   e ~ Student t of `_TAIL` degrees, scale s
    g ~ N(0, L), alike for like runs (`planner.predict.likeness`)
    s² ~ scaled inverse χ² of `_NOISE_RUNS` degrees about `noise²`

y: ln(measured / predicted) of the runs; θ: logs of the factors; A: derivatives of ln(predicted);
g: what no factor takes up, the model's discrepancy (Kennedy & O'Hagan 2001, Bayesian calibration of
computer models, J. R. Statist. Soc. B 63(3), section 4).
Solved in the runs' space (Rasmussen & Williams 2006, eq. 2.11), for runs are fewer than parameters,
with weights for the tails (iteratively reweighted; Gelman et al., Bayesian Data Analysis, 3rd ed.,
section 17.2) and s² at its conditional mode in each round. Few runs leave s near its wide prior, so
that one odd run moves little. u is `_USUAL`, or 1 where the runs, each judged by the others, come
out clearly better so: on most clusters hardly any factor differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TAIL = 3.0
_NOISE_RUNS = 2.0
_ROUNDS = 15
# Noise of an unknown cluster's runs over what published ones scatter by about their fits, with many
# runs and with one. Chosen by `planner.evidence.learn.study`: with less, single runs mislead.
_DOUBT, _DOUBT_OF_ONE = 0.8, 2.5
# Share of the factors' prior spreads that is taken where runs do not ask for more, and how much
# better, each judged by the others, all of it must predict them. Chosen likewise: whole steps tell
# one factor from another so badly that the full spreads make single clusters worse by a half.
_USUAL, _CLEARLY = 0.2, 0.6


@dataclass(frozen=True)
class Prior:
    """Standard deviations of the logs of factors (parameters,), and of a run's noise."""

    spreads: Array
    noise: float

    def doubted(self, runs: int) -> float:
        """Noise to start from with so many runs."""
        return float(self.noise * np.sqrt(_DOUBT**2 + (_DOUBT_OF_ONE**2 - _DOUBT**2) / runs))


@dataclass(frozen=True)
class Posterior:
    """Mean (parameters,) and covariance (parameters, parameters) of the logs of factors; `noise`:
    standard deviation of a run beside them; `weights` (runs,): below 1 for odd runs; the `inverse`
    of the runs' covariance (runs, runs), and `pull` (runs,): that times their residuals."""

    mean: Array
    covariance: Array
    noise: float
    weights: Array
    inverse: Array
    pull: Array

    @property
    def left_out(self) -> Array:
        """ln(measured / predicted) of each run as all others correct it, (runs,), with the noise
        that all of them show (Rasmussen & Williams 2006, eq. 5.12)."""
        return np.asarray(self.pull / np.diag(self.inverse))

    def spread(self, runs: int) -> float:
        """Standard deviation of ln(measured / predicted) that a further run like the first `runs`
        will show: what each showed, as the others correct it, with what the model expects that to
        be counting as `_NOISE_RUNS` further ones; of a single run the expectation alone. Holds 80
        to 84 % of held-out runs in 80 % intervals after 3, 10 and 20."""
        expected = float(np.median(1.0 / np.diag(self.inverse)[:runs]))
        if len(self.pull) == 1:
            return math.sqrt(expected)
        shown = 0.5 * math.pi * error(self.left_out[:runs]) ** 2
        return math.sqrt((_NOISE_RUNS * expected + runs * shown) / (_NOISE_RUNS + runs))


def learn(slopes: Array, residuals: Array, prior: Prior, like: Array) -> Posterior:
    """The posterior of the module's docstring. Shapes: (runs, parameters), (runs,), (runs, runs):
    covariance of what is alike for like runs."""
    usual, wide = (
        _learn(slopes, residuals, Prior(share * prior.spreads, prior.noise), like)
        for share in (_USUAL, 1.0)
    )
    if len(residuals) > 1 and error(wide.left_out) < _CLEARLY * error(usual.left_out):
        return wide
    # The factors may still be where the full spreads put them.
    further = wide.mean - usual.mean
    return replace(usual, covariance=wide.covariance + np.outer(further, further))


def _learn(slopes: Array, residuals: Array, prior: Prior, like: Array) -> Posterior:
    """The posterior for factors of the prior's spreads."""
    variances = prior.spreads**2
    kernel = (slopes * variances) @ slopes.T + like
    start = prior.doubted(len(residuals)) ** 2
    noise, weights = start, np.ones(len(residuals))
    for _ in range(_ROUNDS):
        inverse = np.linalg.inv(kernel + np.diag(noise / weights))
        fitted = np.diag(kernel) - ((kernel @ inverse) * kernel).sum(axis=1)
        squares = (noise / weights * (inverse @ residuals)) ** 2 + np.maximum(fitted, 0.0)
        weights = (_TAIL + 1.0) / (_TAIL + squares / noise)
        noise = (_NOISE_RUNS * start + float(weights @ squares)) / (_NOISE_RUNS + len(residuals))
    known: Array = np.linalg.inv(kernel + np.diag(noise / weights)).astype(np.float64)
    pull, gain = known @ residuals, variances[:, None] * slopes.T
    covariance = np.diag(variances) - gain @ known @ gain.T
    return Posterior(gain @ pull, covariance, float(np.sqrt(noise)), weights, known, pull)


def is_no_better(before: Array, left_out: Array) -> bool:
    """Whether ln(measured / predicted) of runs, (runs,), is not smaller as each is corrected by the
    others: by at least one standard error of the gain (Breiman et al. 1984, section 3.4.3: the
    simpler of two models that differ by less). A single run cannot tell."""
    gain = np.abs(before) - np.abs(left_out)
    return len(gain) > 1 and bool(gain.mean() <= gain.std(ddof=1) / math.sqrt(len(gain)))


def error(logs: Array) -> float:
    """Mean |ln(measured / predicted)|."""
    return float(np.abs(logs).mean())
