"""Bayesian least squares of a few runs on many parameters, in logarithms.

    y = A·θ + g + e,   θ ~ N(0, diag((u·spreads)²)),   e ~ Student t of `_TAIL` degrees, scale s
    g ~ N(0, (v·L)²), alike for like runs (L²: `planner.predict.calibrated`)
    s² ~ scaled inverse χ² of `_NOISE_RUNS` degrees about `noise²`

y: ln(measured / predicted) of the runs; θ: logs of the factors; A: derivatives of ln(predicted); g:
the part that no factor explains, the model's discrepancy (Kennedy & O'Hagan 2001, Bayesian
calibration of computer models, J. R. Statist. Soc. B 63(3), section 4). It is solved in the space
of the runs (Rasmussen & Williams 2006, eq. 2.11), because there are fewer runs than parameters,
with weights for the tails (iteratively reweighted; Gelman et al., Bayesian Data Analysis, 3rd ed.,
section 17.2) and s² at its conditional mode in each round. Few runs leave s near its wide prior, so
one odd run moves little. u and v are unknown too: several pairs are solved, and each is weighted by
its prior odds and by how well it predicts each run from the others (pseudo-Bayes factors: Geisser &
Eddy 1979, J. Am. Stat. Assoc. 74; averaged as by Yao et al. 2018, Bayesian Analysis 13(3), section
3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.predict.uncertainty.residuals import COVERAGE
from planner.predict.uncertainty.tails import DEGREES, at_90

# Ends of an 80 % interval, in standard deviations.
WIDTH = NormalDist().inv_cdf(0.5 + COVERAGE / 2)
Array = NDArray[np.float64]

_TAIL = 3.0
_NOISE_RUNS = 2.0
_ROUNDS = 15
# Noise of an unknown cluster's runs over the scatter of published ones about their fits, with many
# runs and with one. Chosen by `planner.evidence.learn.study`: with less, single runs mislead.
_DOUBT, _DOUBT_OF_ONE = 0.8, 2.5
# Pairs of u and v for the range of factors: as on published clusters or wider (u = 2), with any
# amount of likeness, so that likeness does not explain away a factor.
_EXPLAINING = tuple((u, v) for u in (1.0, 2.0) for v in (1.0, 0.25, 0.0))
# Pairs for predictions, and the logs of their odds. Whole steps tell factors apart so badly, and on
# most clusters so few differ (u = 0.2), that the full spreads alone make single clusters worse by a
# half. Odds below e⁻¹⁰ leave published clusters as they are, and still find made-up factors.
_PREDICTING = ((0.2, 1.0), *_EXPLAINING)
_ODDS = (0.0, 0.0, *(-12.0 for _ in _EXPLAINING[1:]))
# Two pseudo-runs are added to those that judge a calibration, because published clusters gain from
# one: the logs of their errors fall by these amounts (34 clusters: by 0.2 of three runs, 0.5 of
# ten, the mean). Errors below `_SMALL` count as equal. `_SUM` is added to the sum of errors before
# they are compared. A calibration is taken in full if the mean gain is `_SURE` standard errors.
_GAINS, _SMALL, _SUM, _SURE = (0.0, 0.6), 0.02, 0.04, 2.0
# Repeats of one configuration scatter by 4 % (standard deviation, median of 11 published clusters).
# Of runs nearer to their predictions, a share is taken that depends on their distance, at least
# `_LEAST`.
_SCATTER, _LEAST, _NOTHING = 0.04, 0.5, 1e-9
# A run's squared error, in variances, is limited to this when the width of bars is estimated.
_MOST_SHOWN = 25.0


@dataclass(frozen=True)
class Prior:
    """The prior standard deviations: `spreads` of the logs of the factors, (parameters,), and
    `noise` of ln(measured / predicted) of a single run."""

    spreads: Array
    noise: float

    def doubted(self, runs: int) -> float:
        """The noise with which the fit to this number of runs starts: larger for fewer runs."""
        return float(self.noise * np.sqrt(_DOUBT**2 + (_DOUBT_OF_ONE**2 - _DOUBT**2) / runs))


@dataclass(frozen=True)
class Posterior:
    """The factors as the runs determine them. `mean` (parameters,) and `covariance` (parameters,
    parameters): of the logs of the factors. `noise`: standard deviation of ln(measured / predicted)
    of a run about them. `weights` (runs,): below 1 for odd runs. `pull` (runs,): v² times the
    inverse of the runs' covariance times their residuals; a configuration is corrected by its
    likeness to the runs times this. `left_out` (runs,): ln(measured / predicted) of each run as
    corrected by all others; `expected` (runs,): the variance of `left_out` (Rasmussen & Williams
    2006, eq. 5.12)."""

    mean: Array
    covariance: Array
    noise: float
    weights: Array
    pull: Array
    left_out: Array
    expected: Array

    def shrunk(self, share: float, before: Array) -> Posterior:
        """This posterior with only a share, 0 to 1, of its correction. `mean`, `pull` and
        `left_out` are changed. `before` (runs,): ln(measured / predicted) without any correction.
        """
        left = before - share * (before - self.left_out)
        return replace(self, mean=share * self.mean, pull=share * self.pull, left_out=left)


def bar_width(left_out: Array, halves: Array, shared: float) -> float:
    """Width of the error bar of a further run on a cluster, divided by its width before the cluster
    had any runs.

    ln(measured / predicted) of a run is half(job) · (source + noise) with Student's tails
    (`planner.predict.uncertainty.residuals`); `shared` is the source's share s of the variance, 1 -
    s that of a run's noise. After n runs the source's level is known up to the variance s·(1 - s) /
    ((1 - s) + n·s), so a further run has (1 - s) plus that. Student's tails are a scale of the
    cluster, inverse χ² of `DEGREES`. Each run adds a degree, and its squared error as corrected by
    the others (`left_out`, (runs,), divided by `halves`, the half width of its bar on its side).

    A single run cannot tell its noise from the level and narrows nothing. Held out, bars that one
    run does not narrow have a coverage of 86 % and a score of 0.707, narrowed as above 76 % and
    0.718 (117 clusters, mean of today's errors and of those at first sight).
    """
    runs, noise, usual = len(left_out), 1.0 - shared, at_90(DEGREES)
    expected, further = (
        noise * (1.0 + shared / (noise + count * shared)) for count in (runs - 1, runs)
    )
    squares = np.minimum((usual * left_out / halves) ** 2, _MOST_SHOWN)
    shown = (DEGREES + float(squares.sum()) / expected) / (DEGREES + runs)
    if runs == 1:
        return math.sqrt(max(1.0, shown))
    return math.sqrt(further * shown) * at_90(DEGREES + runs) / usual


def best_posterior(slopes: Array, residuals: Array, prior: Prior, like: Array) -> Posterior:
    """The posterior that predicts best. Shapes: (runs, parameters), (runs,), and (runs, runs) for
    `like`, the covariance that similar runs share. A single run cannot tell which spreads are
    right, so it uses the first pair."""
    if len(residuals) == 1:
        return solve(slopes, residuals, prior, like, *_PREDICTING[0])
    return _averaged(slopes, residuals, prior, like, _PREDICTING, _ODDS)


def explain(slopes: Array, residuals: Array, prior: Prior, like: Array) -> Posterior:
    """The posterior that says what each factor may be; shapes as for `best_posterior`."""
    even = (0.0,) * len(_EXPLAINING)
    return _averaged(slopes, residuals, prior, like, _EXPLAINING, even)


def _averaged(
    slopes: Array,
    residuals: Array,
    prior: Prior,
    like: Array,
    pairs: Sequence[tuple[float, float]],
    odds: Sequence[float],
) -> Posterior:
    """The average of the posteriors of several `pairs` of u and v (see `solve`), each weighted by
    its prior odds and by how well it predicts each run from the others. `odds`: ln of the prior
    odds, one per pair."""
    each = [solve(slopes, residuals, prior, like, u, v) for u, v in pairs]
    shares = _shares(each, odds)
    averages: dict[str, Any] = {
        field.name: np.average([getattr(one, field.name) for one in each], 0, shares)
        for field in fields(Posterior)
    }
    found = Posterior(**averages)
    apart = [one.mean - found.mean for one in each]
    between = np.average([np.outer(by, by) for by in apart], 0, shares)
    return replace(found, covariance=found.covariance + between)


def _shares(each: Sequence[Posterior], odds: Sequence[float]) -> Array:
    """The weight of each posterior, up to a factor: its odds times how well it predicts each run
    from the others."""
    logs = np.array(odds)
    for place, one in enumerate(each):
        # Student's density with `_TAIL` degrees, without its constant.
        tails = 0.5 * (_TAIL + 1.0) * np.log1p(one.left_out**2 / (_TAIL * one.expected))
        logs[place] -= float((0.5 * np.log(one.expected) + tails).sum())
    return np.asarray(np.exp(logs - logs.max()))


def expectation(
    slopes: Array, residuals: Array, prior: Prior, like: Array, more: int
) -> tuple[Array, float]:
    """The uncertainty of configurations that have not run. The first `len(residuals)` rows of
    `slopes` and `like` are runs, the rest are these configurations. Returns the covariance of their
    ln(measured / predicted) without noise, averaged over the posteriors for predictions, and the
    variance of noise once `more` of them have run. With fewer than two runs the prior odds are used
    unchanged."""
    runs = len(residuals)
    known, found, noises = slice(runs), [], []
    each = []
    for u, v in _PREDICTING:
        kernel = (slopes * (u * prior.spreads) ** 2) @ slopes.T + v**2 * like
        noise = prior.doubted(runs + more) ** 2
        if runs:
            each.append(solve(slopes[known], residuals, prior, like[known, known], u, v))
            noise = each[-1].noise ** 2
            apart = kernel[known, known] + np.diag(noise / each[-1].weights)
            kernel = kernel - kernel[:, known] @ np.linalg.solve(apart, kernel[known])
        found.append(kernel[runs:, runs:])
        noises.append(noise)
    shares = _shares(each, _ODDS) if runs > 1 else np.exp(_ODDS)
    return np.average(found, 0, shares), float(np.average(noises, 0, shares))


def solve(
    slopes: Array, residuals: Array, prior: Prior, like: Array, u: float = 1.0, v: float = 1.0
) -> Posterior:
    """The posterior for one pair of u and v: u scales the prior spreads of the factors, v² the
    covariance that similar runs share (see the module). Shapes as for `best_posterior`."""
    variances = (u * prior.spreads) ** 2
    kernel = (slopes * variances) @ slopes.T + v**2 * like
    start = prior.doubted(len(residuals)) ** 2
    noise, weights = start, np.ones(len(residuals))
    for _ in range(_ROUNDS):
        each = noise / weights
        inverse = np.linalg.inv(kernel + np.diag(each))
        # The fitted part has the variance K - K·C⁻¹·K = E - E·C⁻¹·E, of which the diagonal is used.
        fitted = each - each**2 * np.diag(inverse)
        squares = (each * (inverse @ residuals)) ** 2 + np.maximum(fitted, 0.0)
        weights = (_TAIL + 1.0) / (_TAIL + squares / noise)
        noise = (_NOISE_RUNS * start + float(weights @ squares)) / (_NOISE_RUNS + len(residuals))
    known: Array = np.linalg.inv(kernel + np.diag(noise / weights)).astype(np.float64)
    pull, gain = known @ residuals, variances[:, None] * slopes.T
    alone = 1.0 / np.diag(known)
    covariance = np.diag(variances) - gain @ known @ gain.T
    deviation = math.sqrt(noise)
    mean, rest = gain @ pull, pull * alone
    return Posterior(mean, covariance, deviation, weights, v**2 * pull, rest, alone)


def trust(before: Array, left_out: Array) -> float:
    """The share of a calibration to apply, 0 to 1. `before` (runs,): ln(measured / predicted) of
    the runs without calibration; `left_out` (runs,): that of each run, corrected by the others.

    The gain of a run is ln of its error before, divided by its error after. Two assumed gains
    (`_GAINS`), typical of published clusters, are added. The share is the mean gain divided by
    `_SURE` standard errors of that mean, between 0 and 1. It is lowered if most errors before are
    within the scatter of repeated runs. It is 0, a refusal, if the sum of the errors does not
    shrink. It is 1 for fewer than two runs, because then nothing can be compared.
    """
    if len(before) < 2:
        return 1.0
    errors, rest = np.abs(before), np.abs(left_out)
    if errors.sum() + _SUM <= rest.sum():
        return 0.0
    gains = np.append(np.log((errors + _SMALL) / (rest + _SMALL)), _GAINS)
    sure = _SURE * float(gains.std(ddof=1)) / math.sqrt(len(gains))
    # If runs predict each other far better than repeats agree, the scatter is smaller than usual.
    scatter = min(_SCATTER, 2.0 * float(rest.mean()) + _NOTHING)
    real = min(1.0, max(_LEAST, float(np.median(errors)) / scatter))
    return real * min(1.0, max(0.0, float(gains.mean())) / sure)
