"""Corrections to predictions, learnt from a cluster's own runs.

A factor of `hardware.calibration.PARAMETERS` multiplies every input of the cost core that is
proportional to it. For a hidden share the factor multiplies the exposed remainder: exposed' = 1 -
(1 - hidden) · factor. Errors that similar runs show beyond these factors are modelled by a Gaussian
process over configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardware.calibration import PARAMETERS, LearntRun, Parameter
from planner.job.job import Job

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])
# Factors by name.
Factors = Mapping[str, float]
Table = Literal["gpu", "framework", "links"]
# Suffix of fields that are shares of a peak, which no factor may raise above 1.
_SHARES = ("_efficiency",)

_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def learnt_factors(job: Job) -> dict[str, float]:
    """Factors that the cluster's calibration has for the job's framework; empty if the cluster has
    no calibration."""
    calibration = job.cluster.calibration
    return {} if calibration is None else calibration.of(job.framework.family or job.framework.name)


def calibrated(
    inputs: Inputs, table: Table, factors: Factors, altered: Factors | None = None
) -> Inputs:
    """Inputs with the fields of each parameter multiplied by that parameter's factor, then the
    fields named in `altered` multiplied by the factors given there."""
    values = inputs._asdict()  # type: ignore[attr-defined]
    for name, factor in factors.items():
        parameter = _BY_NAME[name]
        for field in getattr(parameter, table):
            values[field] = _changed(parameter, field, getattr(inputs, field), factor)
        for field in parameter.inverse if table == "framework" else ():
            values[field] = getattr(inputs, field) / factor
    values |= {name: values[name] * by for name, by in (altered or {}).items() if name in values}
    return type(inputs)(**values)


def _changed(parameter: Parameter, field: str, value: float, factor: float) -> float:
    if parameter.exposed:
        return max(0.0, 1.0 - (1.0 - value) * factor)
    return min(1.0, value * factor) if field.endswith(_SHARES) else value * factor


# s, n and w of `covariance`, chosen by `planner.evidence.learn.study`. If they are chosen on three
# quarters of the sources, they reduce the error on the others by 0.1 points after one and three
# runs and by 0.3 to 0.5 after ten; doubling or halving any of them changes the error by less than
# 0.1. Width and tensor degree select other kernels, hence their weight. The vocabulary sets the
# head and the logits: without it the worst cluster is off by 48 % after three runs.
SPREAD = 0.12
NUMBERS = {
    "hidden": 4.0, "tp": 4.0, "vocab": 1.0, "vpp": 1.0, "pp": 0.3, "cp": 0.2, "ep": 0.2,
    "mbs": 0.15, "seq": 0.1, "grad_acc": 0.05,
}  # fmt: skip
WORDS = {"precision": 0.4, "recompute": 0.3, "kernel": 1.2}


class Configurations(NamedTuple):
    """Descriptions of n configurations, to measure how similar they are: base-2 logarithms of their
    numbers, an array (n, numbers), and their words such as the precision, an array (n, words)."""

    numbers: NDArray[np.float64]
    words: NDArray[np.str_]


def configurations(job: Job, columns: Mapping[str, NDArray[Any]]) -> Configurations:
    """Descriptions of a job's shapes; `columns` as in `CostModel.cost_shapes`."""
    rows = len(columns["tp"])
    fixed = {"hidden": job.model.hidden, "vocab": job.model.vocab, "seq": job.seq}
    modes = np.array([mode.name for mode in job.recompute])
    words = {
        "precision": job.precision,
        "recompute": modes[columns["recompute"]],
        "kernel": f"{job.attention} {job.attention_kernel}",
    }
    numbers = [np.broadcast_to(fixed.get(name, columns.get(name, 1)), rows) for name in NUMBERS]
    return Configurations(
        np.log2(np.maximum(1.0, np.column_stack(numbers))),
        np.column_stack([np.broadcast_to(words[name], rows) for name in WORDS]),
    )


def known_runs(runs: Sequence[LearntRun]) -> Configurations:
    """The cluster's own runs from which a calibration was learnt, described like configurations."""
    return Configurations(
        np.log2([[getattr(run, name) for name in NUMBERS] for run in runs]),
        np.array([[getattr(run, name) for name in WORDS] for run in runs]),
    )


def covariance(these: Configurations, those: Configurations) -> NDArray[np.float64]:
    """Covariance of the errors of configurations beyond wrong rates, as an array (these, those).

    s² · exp(-(Σ n · |log2 of the ratio of a number in the two configurations| + Σ w of the words
    that differ))
    """
    far = np.zeros((len(these.numbers), len(those.numbers)))
    for column, weight in enumerate(NUMBERS.values()):
        far += weight * np.abs(these.numbers[:, column, None] - those.numbers[:, column])
    for column, weight in enumerate(WORDS.values()):
        far += weight * (these.words[:, column, None] != those.words[:, column])
    return np.asarray(SPREAD**2 * np.exp(-far))


def learnt_logs(job: Job, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Natural logarithm of the factor by which similar runs of the cluster suggest to correct the
    step time of each shape, an array (n,); zeros if the cluster has no such runs of the job's
    framework."""
    calibration = job.cluster.calibration
    rows = len(columns["tp"])
    framework = job.framework.family or job.framework.name
    if calibration is None or not calibration.runs or not calibration.knows(framework):
        return np.zeros(rows)
    pull = np.array([run.pull for run in calibration.runs])
    known = known_runs(calibration.runs)
    return np.asarray(covariance(configurations(job, columns), known) @ pull)
