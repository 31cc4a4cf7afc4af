"""Bayesian least squares of a few runs on many parameters, in logarithms.

    y = A·θ + e,   θ ~ N(0, diag(spreads²)),   e ~ Student t of `_TAIL` degrees, scale s
    s² ~ scaled inverse χ² of `_NOISE_RUNS` degrees about `noise²`

y: ln(measured / predicted) of the runs; θ: logs of the factors; A: derivatives of ln(predicted).
Solved in the runs' space (Rasmussen & Williams 2006, eq. 2.11), for runs are fewer than parameters,
with weights for the tails (iteratively reweighted; Gelman et al., Bayesian Data Analysis, 3rd ed.,
section 17.2) and s² at its conditional mode in each round. Few runs leave s near its wide prior, so
that one odd run moves little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TAIL = 3.0
_NOISE_RUNS = 2.0
_ROUNDS = 15
# Noise of an unknown cluster's runs over what published ones scatter by about their fits: errors
# of the model that no parameter can take up differ from cluster to cluster. Chosen by
# `planner.evidence.learn.study`: smaller ones let single runs mislead.
NOISE_DOUBT = 2.5


@dataclass(frozen=True)
class Prior:
    """Standard deviations of the logs of factors (parameters,), and of a run's noise."""

    spreads: Array
    noise: float


@dataclass(frozen=True)
class Posterior:
    """Mean (parameters,) and covariance (parameters, parameters) of the logs of factors; `noise`:
    standard deviation of a run beside them; `weights` (runs,): below 1 for odd runs."""

    mean: Array
    covariance: Array
    noise: float
    weights: Array

    def deviations(self, slopes: Array) -> Array:
        """Standard deviations of ln(measured / predicted) of further runs, (runs,)."""
        spread = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return np.asarray(np.sqrt(spread + self.noise**2))


def learn(slopes: Array, residuals: Array, prior: Prior) -> Posterior:
    """The posterior of the module's docstring. Shapes: (runs, parameters), (runs,)."""
    variances = prior.spreads**2
    kernel = (slopes * variances) @ slopes.T
    start = (NOISE_DOUBT * prior.noise) ** 2
    noise, weights = start, np.ones(len(residuals))
    for _ in range(_ROUNDS):
        inverse = np.linalg.inv(kernel + np.diag(noise / weights))
        mean = variances * (slopes.T @ (inverse @ residuals))
        fitted = np.diag(kernel) - np.einsum("ij,jk,ki->i", kernel, inverse, kernel)
        squares = (residuals - slopes @ mean) ** 2 + np.maximum(fitted, 0.0)
        weights = (_TAIL + 1.0) / (_TAIL + squares / noise)
        noise = (_NOISE_RUNS * start + float(weights @ squares)) / (_NOISE_RUNS + len(residuals))
    inverse = np.linalg.inv(kernel + np.diag(noise / weights))
    gain = variances[:, None] * slopes.T
    covariance = np.diag(variances) - gain @ inverse @ gain.T
    return Posterior(mean, covariance, float(np.sqrt(noise)), weights)


def left_out(slopes: Array, residuals: Array, prior: Prior, count: int | None = None) -> Array:
    """ln(measured / predicted) of each of the first `count` runs (all) as all others correct it,
    (count,); two equations or more."""
    every = np.arange(len(residuals))
    judged = every[:count]
    rest = np.empty(len(judged))
    for run in judged:
        others = every != run
        mean = learn(slopes[others], residuals[others], prior).mean
        rest[run] = residuals[run] - slopes[run] @ mean
    return rest
