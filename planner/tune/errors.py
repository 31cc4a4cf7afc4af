"""The covariance of prediction errors among one cluster's configurations, through which a trial of
one informs about the others.

ln(measured / predicted) of the configurations of a job has the covariance

    (t · h)² · (p² · S·diag(σ²)·Sᵀ + l² · exp(-Σ w · d) + a² · 1)

h: mean half width of their error bars without any run (`planner.predict.uncertainty`); t: the
cluster's own scale, unknown, t² ~ scaled inverse χ² of `DEGREES`. The first term is physics: S are
derivatives of ln(predicted) by the logarithms of the cluster's rates, σ the spreads of these rates
over clusters (`planner.evidence.learn.priors`). The second is shared by similar configurations: d
are the distances of `AXES`, each with a weight. a is the part of a single configuration.

p, l, a and the weights are the most likely ones for the published sweeps (`tests.fit.sweep_fit`)
and ship in `errors.toml`, with `folds` that each leave out a tenth of the sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.calibration import parameters_of
from hardware.files import shipped_toml
from planner.evidence.runs.predict import Prediction
from planner.predict.uncertainty.intervals import spread_of
from planner.predict.uncertainty.residuals import fold_of

Array = NDArray[np.float64]

# Degrees of freedom of a cluster's own scale: the most likely of 2, 3, 4 and 8.
DEGREES = 2.0
# Scales that are tried, half an octave apart; no published cluster lies outside.
SCALES: Array = 2.0 ** np.arange(-2.0, 3.01, 0.5)
# Parts of the distance of two configurations: doublings of the tensor degree, of other degrees and
# of the micro-batch, sharding stages, choices without a size, kernels of attention, shares of
# exposed communication, logarithms of predicted GPU seconds per sequence; and doublings of the GPUs
# and of the micro-batches, in which smaller forms of a configuration differ.
AXES = ("tensor", "degrees", "micro_batch", "sharding", "switches", "kernel", "exposed", "pace")
SIZES = ("gpus", "micro_batches")
_DEGREES = ("pp", "vpp", "cp", "ep")
# Facts of a recorded run that its configuration does not contain.
_FACTS = ("software", "variant", "fabric", "host", "loss", "kernel", "routing", "deterministic")
# Weights of a doubling of GPUs and of micro-batches, which sweeps cannot tell: within one cluster
# the GPUs stay the same, and the batch decides the micro-batches. They are half the weight of a
# doubling of a degree, as for errors of ratios (`planner.predict.uncertainty.differences`), and the
# weight used in calibration.
_SIZES = {"gpus": 0.1, "micro_batches": 0.05}


@dataclass(frozen=True)
class ErrorScales:
    """`physics`, `likeness` and `alone` are p, l and a of the module's docstring, in half widths of
    an error bar; `weights`: one for each of `AXES`; `spreads`: σ of each rate, (parameters,)."""

    physics: float
    likeness: float
    alone: float
    weights: Mapping[str, float]
    spreads: Array = field(repr=False)

    def covariance(self, slopes: Array, distances: Mapping[str, Array]) -> Array:
        """Covariance of ln(measured / predicted) in units of (t · h)², (n, n)."""
        rates = slopes * (self.physics * self.spreads)
        like = self.likeness**2 * self.likeness_of(distances)
        found: Array = rates @ rates.T + like + self.alone**2 * np.eye(len(slopes))
        return found

    def likeness_of(self, distances: Mapping[str, Array]) -> Array:
        """Similarity: 1 for equal configurations, falling to 0 for distant ones, (n, n)."""
        weights = {**self.weights, **_SIZES}
        return np.asarray(np.exp(-sum(weights[name] * distances[name] for name in weights)))


def log_odds_of_scales() -> Array:
    """ln of the probability of each of `SCALES` before any run: a scaled inverse χ²."""
    logs = -DEGREES * np.log(SCALES) - 0.5 * DEGREES / SCALES**2
    return np.asarray(logs - np.logaddexp.reduce(logs))


def mean_half_width(predictions: Sequence[Prediction]) -> float:
    """Mean half width of the 80 % intervals of step times, in ln, each from other sources than its
    own."""
    widths = [
        0.5 * (spread.high - spread.low)
        for one in predictions
        for spread, _ in [spread_of(one.job, "time", one.row.source, one.conditions)]
    ]
    return float(np.mean(widths))


def distances_of(predictions: Sequence[Prediction]) -> dict[str, Array]:
    """Distances between configurations on each of `AXES` and `SIZES`, (n, n) each. ValueError if a
    step time is not predicted."""
    degrees = [one.configured.degrees for one in predictions]

    def doublings(*names: str) -> Array:
        sizes = np.log2([[float(getattr(one, name)) for name in names] for one in degrees])
        return np.asarray(np.abs(sizes[:, None] - sizes[None]).sum(axis=2))

    conditions = [one.conditions for one in predictions]
    exposed = [at.exposed if at else 0.0 for at in conditions]
    pace = [
        log(_seconds_of(one) * one.configured.degrees.gpus / sequences_of(one))
        for one in predictions
    ]
    return {
        "tensor": doublings("tp"),
        "degrees": doublings(*_DEGREES),
        "micro_batch": doublings("mbs"),
        "sharding": _differing([(one.zero,) for one in degrees]),
        "switches": _differing([_switches(one) for one in predictions]),
        "kernel": _differing(
            [(f"{one.job.attention} {one.job.attention_kernel}",) for one in predictions]
        ),
        "exposed": _apart(exposed),
        "pace": _apart(pace),
        "gpus": _apart([log2(one.gpus) for one in degrees]),
        "micro_batches": _apart([log2(one.grad_acc) for one in degrees]),
    }


def sequences_of(prediction: Prediction) -> float:
    """Sequences of a step."""
    mapped = prediction.configured
    return mapped.degrees.gbs * mapped.batch_share


def _seconds_of(prediction: Prediction) -> float:
    seconds = prediction.step_time_s
    if seconds is None:
        raise ValueError("a configuration without a predicted step time has no distance to others")
    return seconds


def _apart(values: Sequence[float]) -> Array:
    column = np.array(values)
    return np.asarray(np.abs(column[:, None] - column[None]))


def _switches(one: Prediction) -> tuple[Any, ...]:
    """The choices of a configuration that are not numbers, such as the recompute mode, the
    techniques and the schedule."""
    job, cp = one.job, one.configured.degrees.cp
    return (
        one.configured.mode.name,
        frozenset(job.techniques),
        job.framework,
        job.schedule,
        (job.optimizer_offload, job.activation_offload),
        job.context_kinds if cp > 1 else (),
        tuple(one.row.fact(name) for name in _FACTS),
    )


def _differing(rows: Sequence[tuple[Any, ...]]) -> Array:
    """The number of places in which each pair of rows differs."""
    total = np.zeros((len(rows), len(rows)))
    for column in zip(*rows, strict=True):
        numbers = _numbered(column)
        total += numbers[:, None] != numbers[None]
    return total


def _numbered(values: Sequence[Any]) -> NDArray[np.int64]:
    """Equal numbers for equal values, which need not be hashable."""
    distinct: list[Any] = []
    found = []
    for value in values:
        place = next((at for at, one in enumerate(distinct) if one is value or one == value), None)
        if place is None:
            place = len(distinct)
            distinct.append(value)
        found.append(place)
    return np.array(found, dtype=np.int64)


def _parsed(table: Mapping[str, Any]) -> ErrorScales:
    spreads = table["spreads"]
    return ErrorScales(
        table["physics"],
        table["likeness"],
        table["alone"],
        {name: table["weights"][name] for name in AXES},
        np.array([spreads[one.name] for one in parameters_of("time")]),
    )


@cache
def shipped_scales(without: str = "") -> ErrorScales:
    """The scales in `planner/tune/errors.toml`; `without`: those fitted without this source."""
    content = shipped_toml("planner.tune", "errors.toml")
    if without not in content["sources"]:
        return _parsed(content)
    return _parsed(content["folds"][fold_of(without, content["sources"])])
