"""How far clusters differ from the catalogue: the prior spread of each parameter.

The runs of one source on one GPU under one framework are a cluster. The factors of all clusters are
taken as drawn from one distribution about 1. Its standard deviations and the noise of a run are
those that make the clusters' runs most likely (expectation maximisation of the linear model of
`planner.evidence.learn.posterior`). Runs are predicted with constants fitted without their source,
so the spread is that of a new cluster. `tests.fit.learning_prior_fit` writes the shipped ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from hardware.calibration import Figure, parameters_of
from hardware.files import shipped_toml
from planner.evidence.learn.linear import (
    Equations,
    LearningModel,
    ModelOf,
    equations,
    measured_log,
)
from planner.evidence.learn.posterior import Array, Prior
from planner.evidence.runs.left_out import left_out_factors, multiplied
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.rows import grouped, spread_out

_FILE = "data/learning_priors.toml"
FIGURES: tuple[Figure, ...] = ("time", "memory")
# Spread before any cluster is seen, and its limits: beyond them the linear model is not valid.
_START, _LEAST, _MOST = 0.15, 1e-3, 0.5
_NOISE = 0.1
_ROUNDS = 60
_TAIL = 4.0
# Smaller clusters say little about spreads; of larger ones at most this number of runs is used,
# evenly spread.
_FEWEST, _MOST_RUNS = 3, 40


class CalibratedCluster(NamedTuple):
    """The identity of a cluster in a calibration."""

    source: str
    gpu: str
    framework: str

    def __str__(self) -> str:
        return f"{self.source}, {self.gpu}, {self.framework}"


def cluster_of(prediction: Prediction) -> CalibratedCluster:
    """The cluster of a predicted run."""
    job = prediction.job
    return CalibratedCluster(prediction.row.source, job.cluster.gpu.name, job.framework.name)


@dataclass(frozen=True)
class Published:
    """Equations of published runs for a figure, and the cluster of each run."""

    predictions: tuple[Prediction, ...]
    equations: Equations
    clusters: tuple[CalibratedCluster, ...]

    def by_cluster(self, *, without: str = "") -> dict[CalibratedCluster, list[int]]:
        """The runs of every cluster, leaving out one source."""
        kept = (index for index, one in enumerate(self.clusters) if one.source != without)
        return grouped(kept, self.clusters.__getitem__)


def published(predictions: Iterable[Prediction], figure: Figure) -> Published:
    """Equations of the runs that have the figure, each with constants fitted without its source."""
    kept = [one for one in predictions if measured_log(one, figure) is not None]
    places = grouped(range(len(kept)), lambda index: kept[index].row.source)
    residuals, slopes = np.zeros(len(kept)), np.zeros((len(kept), len(parameters_of(figure))))
    for source, indices in places.items():
        found = equations([kept[index] for index in indices], figure, model_without(source))
        residuals[indices], slopes[indices] = found.residuals, found.slopes
    clusters = tuple(cluster_of(prediction) for prediction in kept)
    return Published(tuple(kept), Equations(figure, residuals, slopes), clusters)


def model_without(source: str) -> ModelOf:
    """Cost models with the constants fitted without a source."""
    factors = left_out_factors().get(source, {})
    return lambda job, learnt: LearningModel(job, learnt, multiplied(job, factors))


def fitted_prior(runs: Published, *, without: str = "") -> Prior:
    """The prior that makes the published runs most likely: the spread of each factor over clusters,
    and the noise of a run. `without`: leave out the runs of this source."""
    chosen = [
        list(spread_out(indices, _MOST_RUNS))
        for indices in runs.by_cluster(without=without).values()
        if len(indices) >= _FEWEST
    ]
    data = [(runs.equations.slopes[at], runs.equations.residuals[at]) for at in chosen]
    count = len(parameters_of(runs.equations.figure))
    variances, noise = np.full(count, _START**2), _NOISE**2
    weights = [np.ones(len(residuals)) for _, residuals in data]
    for _ in range(_ROUNDS if data else 0):
        squares, scatter, mass = np.zeros(count), 0.0, 0.0
        for place, (slopes, residuals) in enumerate(data):
            precision = (slopes.T * weights[place] / noise) @ slopes + np.diag(1.0 / variances)
            covariance = np.linalg.inv(precision)
            mean = covariance @ ((slopes.T * weights[place] / noise) @ residuals)
            rest = (residuals - slopes @ mean) ** 2
            rest += np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
            weights[place] = (_TAIL + 1.0) / (_TAIL + rest / noise)
            squares += mean**2 + np.diag(covariance)
            # A cluster weighs as the square root of its runs.
            scatter += len(rest) ** -0.5 * float(weights[place] @ rest)
            mass += len(rest) ** 0.5
        variances = np.clip(squares / len(data), _LEAST**2, None)
        noise = scatter / mass
    return Prior(np.minimum(np.sqrt(variances), _MOST), float(np.sqrt(noise)))


@cache
def shipped_prior(figure: Figure) -> Prior:
    """The prior of `planner/evidence/data/learning_priors.toml`."""
    table = shipped_toml("planner.evidence", _FILE)[figure]
    spreads: Array = np.array([table[one.name] for one in parameters_of(figure)])
    return Prior(spreads, float(table["noise"]))
