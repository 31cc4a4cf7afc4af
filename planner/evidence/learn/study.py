"""What learning from k runs brings: sources held out, calibrated by some of their runs, judged by
the rest.

A cluster is the runs of one source on one GPU under one framework. Constants and priors are fitted
without the source. Of each cluster k runs are drawn, again and again; the others are predicted
without them, by one overall factor (the median of measured over predicted of the k), and as
calibrated. A calibration that the k runs, each judged by the others, do not show to be better than
none is refused (`is_no_better`), and the prediction stays as it was. The calibrated
prediction is the linear one, and what like runs say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

import numpy as np

from planner.evidence.learn.linear import likeness
from planner.evidence.learn.posterior import Array, Prior, is_no_better, learn
from planner.evidence.learn.priors import Cluster, Published, fitted_prior
from planner.predict.uncertainty.residuals import COVERAGE

# Below these a cluster's runs are too few to judge by what is left of them.
FEWEST_RUNS = 12
DRAWS = 40
_SEED = 19
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)


@dataclass(frozen=True, slots=True)
class Learnt:
    """Median |predicted / measured - 1| of the runs of a cluster that were not learnt from, mean
    over draws: `before` without any run, with one overall `factor`, and `after` calibrating.
    `refused`: share of the draws whose calibration was refused; `covered`: share of runs in the
    80 % intervals of the others."""

    cluster: Cluster
    runs: int
    before: float
    factor: float
    after: float
    refused: float
    covered: float


def study(runs: Published, count: int, draws: int = DRAWS) -> list[Learnt]:
    """Learning from `count` runs of each cluster that has enough, largest first."""
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
    runs: Published, cluster: Cluster, indices: Sequence[int], count: int, draws: int, prior: Prior
) -> Learnt:
    generator = np.random.default_rng(_SEED)
    slopes, residuals = runs.equations.slopes[indices], runs.equations.residuals[indices]
    like = likeness([runs.predictions[index] for index in indices], runs.equations.figure)
    tried = []
    for _ in range(draws):
        chosen = np.zeros(len(indices), dtype=bool)
        chosen[generator.choice(len(indices), count, replace=False)] = True
        tried.append(_draw(slopes, residuals, like, chosen, prior))
    means = [fmean(column) for column in zip(*tried, strict=True)]
    return Learnt(cluster, len(indices), *means)


def _draw(
    slopes: Array, residuals: Array, like: Array, chosen: np.ndarray, prior: Prior
) -> tuple[float, float, float, float, float]:
    """(before, factor, after, refused, covered) of one draw."""
    known, rest = residuals[chosen], residuals[~chosen]
    posterior = learn(slopes[chosen], known, prior, like[np.ix_(chosen, chosen)])
    left = rest - slopes[~chosen] @ posterior.mean - like[np.ix_(~chosen, chosen)] @ posterior.pull
    covered = float((np.abs(left) <= _Z * posterior.spread(len(known))).mean())
    worse = is_no_better(known, posterior.left_out)
    after = rest if worse else left
    errors = (median_error(each) for each in (rest, rest - median(known), after))
    return *errors, float(worse), covered  # type: ignore[return-value]


def median_error(residuals: Array) -> float:
    """Median |predicted / measured - 1| of ln(measured / predicted)."""
    return float(np.median(np.abs(np.expm1(-residuals))))
