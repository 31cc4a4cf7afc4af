"""How much calibrating with k runs gains: clusters are calibrated with some of their runs and
judged by the rest.

A cluster is the runs of one source on one GPU under one framework. Constants and priors are fitted
without the source. k runs of each cluster are drawn repeatedly. The other runs are predicted in
three ways: without the k, with one overall factor (the median of measured over predicted of the k),
and calibrated, by the share that the k runs support when each is judged by the others (`trust`).
The calibrated prediction is the linear one, plus the correction from similar runs.

In addition, a random third of the runs is judged after k runs were chosen among the rest as
`planner calibrate --suggest` chooses them (`planner.evidence.learn.suggest`), ignoring their cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from planner.evidence.learn.calibrate import bar_ends
from planner.evidence.learn.linear import likeness
from planner.evidence.learn.posterior import (
    Array,
    Prior,
    bar_width,
    best_posterior,
    expectation,
    trust,
)
from planner.evidence.learn.priors import CalibratedCluster, Published, fitted_prior
from planner.evidence.learn.suggest import Unknown, most_telling
from planner.predict.uncertainty.shipped import shipped_tables

Indices = NDArray[np.int64]
# With fewer runs, too few would remain for judging.
FEWEST_RUNS = 12
DRAWS = 40
_SEED = 19


@dataclass(frozen=True, slots=True)
class Learnt:
    """The errors of one cluster's runs before and after learning from some of them. Each of
    `before`, `factor`, `after` and `chosen` is the median |predicted / measured - 1| of the runs
    that were not learnt from, averaged over random draws.

    `before`: without learning; `factor`: with one overall factor; `after`: calibrated with randomly
    drawn runs; `chosen`: calibrated with runs chosen as `planner calibrate --suggest` does.
    `refused`: share of draws whose calibration was refused. `covered`: share of the judged runs
    inside their 80 % intervals.
    """

    cluster: CalibratedCluster
    runs: int
    before: float
    factor: float
    after: float
    refused: float
    covered: float
    chosen: float


def study(runs: Published, count: int, draws: int = DRAWS) -> list[Learnt]:
    """The gain from learning `count` runs of each cluster that has enough runs, largest cluster
    first."""
    found = []
    priors: dict[str, Prior] = {}
    for cluster, indices in runs.by_cluster().items():
        if len(indices) < max(FEWEST_RUNS, count + 2):
            continue
        if cluster.source not in priors:
            priors[cluster.source] = fitted_prior(runs, without=cluster.source)
        found.append(_learnt(runs, cluster, indices, count, draws, priors[cluster.source]))
    return sorted(found, key=lambda one: -one.runs)


def _learnt(
    runs: Published,
    cluster: CalibratedCluster,
    indices: Sequence[int],
    count: int,
    draws: int,
    prior: Prior,
) -> Learnt:
    at = list(indices)
    figure, predictions = runs.equations.figure, [runs.predictions[index] for index in at]
    found = _ClusterRuns(
        runs.equations.slopes[at],
        runs.equations.residuals[at],
        likeness(predictions, figure),
        prior,
        bar_ends(predictions, figure, cluster.source),
        shipped_tables()[figure].shared,
    )
    generator, other = np.random.default_rng(_SEED), np.random.default_rng(_SEED)
    tried = []
    for _ in range(draws):
        drawn = generator.choice(len(at), count, replace=False)
        tried.append((*found.draw(drawn), found.draw_chosen(other.permutation(len(at)), count)))
    means = [fmean(column) for column in zip(*tried, strict=True)]
    return Learnt(cluster, len(at), *means)


@dataclass(frozen=True)
class _ClusterRuns:
    """A cluster's `slopes` (runs, parameters), `residuals` (runs,), covariance of similar runs
    (runs, runs), the prior without them, half widths of their bars (2, runs), and the share of the
    errors' variance that they have in common."""

    slopes: Array
    residuals: Array
    like: Array
    prior: Prior
    ends: Array
    shared: float

    def draw(self, known: Indices) -> tuple[float, float, float, float, float]:
        """Learn from the runs `known` and judge all other runs. Returns their median errors before
        learning, with one overall factor, and after calibration; then 1 if the calibration was
        refused, else 0; and the share of the judged runs inside their intervals."""
        others = np.setdiff1d(np.arange(len(self.residuals)), known)
        rest = self.residuals[others]
        left, width, share = self._corrected(known, others)
        covered = float((np.abs(left) <= width * self._half(left, others)).mean())
        by_factor = rest - median(self.residuals[known])
        before, factor, after = (median_error(each) for each in (rest, by_factor, left))
        return before, factor, after, float(share == 0.0), covered

    def draw_chosen(self, order: Indices, count: int) -> float:
        """Median error of the first third of `order`, learning from runs chosen among the rest."""
        third = min(len(order) // 3, len(order) - count)
        judged, others = order[:third], order[third:]
        nothing = expectation(self.slopes, np.zeros(0), self.prior, self.like, count)
        known = np.array(most_telling(Unknown(*nothing), others, judged, count))
        return median_error(self._corrected(known, judged)[0])

    def _corrected(self, known: Indices, judged: Indices) -> tuple[Array, float, float]:
        """ln(measured / predicted) of the judged runs, calibrated by the known ones; the width of
        their bars relative to that without calibration; and the share of the calibration that was
        applied."""
        like, before = self.like[np.ix_(known, known)], self.residuals[known]
        posterior = best_posterior(self.slopes[known], before, self.prior, like)
        share = trust(before, posterior.left_out)
        posterior = posterior.shrunk(share, before)
        pulled = self.like[np.ix_(judged, known)] @ posterior.pull
        left = self.residuals[judged] - self.slopes[judged] @ posterior.mean - pulled
        known_half = self._half(posterior.left_out, known)
        return left, bar_width(posterior.left_out, known_half, self.shared), share

    def _half(self, logs: Array, at: Indices) -> Array:
        """Half widths of the bars, on the side on which each log lies."""
        half: Array = np.where(logs > 0.0, self.ends[1, at], self.ends[0, at])
        return half


def median_error(residuals: Array) -> float:
    """Median |predicted / measured - 1|, from ln(measured / predicted)."""
    return float(np.median(np.abs(np.expm1(-residuals))))
