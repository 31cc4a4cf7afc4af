"""Runs as linear equations: the error of each prediction, and its derivatives by the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hardware.calibration import Figure, parameters_of
from planner.evidence.learn.posterior import Array
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.report import known, predicted
from planner.job.job import Job
from planner.predict.calibrated import Configurations, configurations, covariance
from planner.predict.cost_model import Columns, CostModel

# Step in a logarithm for derivatives: far above rounding, nearly linear.
_STEP = 0.05

Factors = Mapping[str, float]
# The cost model of a job under some factors.
ModelOf = Callable[[Job, Factors], CostModel]


class LearningModel(CostModel):
    """The cost model of a job with given factors instead of its cluster's; `constants` are factors
    on constants of `planner.evidence.runs.constants`."""

    def __init__(self, job: Job, learnt: Factors, constants: Factors | None = None) -> None:
        super().__init__(job, constants or {})
        self._learnt = learnt

    @property
    def factors(self) -> Factors:
        """The given factors."""
        return self._learnt

    def learnt_logs(self, columns: Columns) -> Array:
        """Zeros: while factors are fitted, the correction from similar runs is left out."""
        return np.zeros(len(columns["tp"]))


@dataclass(frozen=True)
class Equations:
    """Runs as linear equations, one per run. `residuals` (runs,): ln(measured / predicted) with all
    factors at 1. `slopes` (runs, parameters): derivatives of ln(predicted) by the logs of the
    factors on `parameters_of(figure)`."""

    figure: Figure
    residuals: Array
    slopes: Array

    def and_also(self, others: Equations) -> Equations:
        """These equations, followed by others of the same figure."""
        return Equations(
            self.figure,
            np.concatenate([self.residuals, others.residuals]),
            np.concatenate([self.slopes, others.slopes]),
        )


def no_equations(figure: Figure) -> Equations:
    """An empty set of equations."""
    return Equations(figure, np.zeros(0), np.zeros((0, len(parameters_of(figure)))))


def measured_log(prediction: Prediction, figure: Figure) -> float | None:
    """ln of a run's measured seconds or bytes; None if there is none."""
    pair = known(prediction, figure)
    return math.log(pair[1]) if pair and pair[0] and pair[1] > 0.0 else None


def measured_logs(runs: Sequence[Prediction], figure: Figure) -> Array:
    """`measured_log` of every run, (runs,); nan if there is none."""
    logs = (measured_log(run, figure) for run in runs)
    return np.array([math.nan if log is None else log for log in logs])


def likeness(runs: Sequence[Prediction], figure: Figure) -> Array:
    """Covariance that similar runs share, (runs, runs); zero for memory, which the model counts
    exactly wherever it has the terms."""
    if figure == "memory" or not runs:
        return np.zeros((len(runs), len(runs)))
    found = run_configurations(runs)
    return covariance(found, found)


def run_configurations(predictions: Sequence[Prediction]) -> Configurations:
    """The configurations of runs, in their order."""
    mapped = [one.mapped for one in predictions if one.mapped]
    found = [configurations(one.job, one.columns) for one in mapped]
    numbers, words = zip(*found, strict=True)
    return Configurations(np.concatenate(numbers), np.concatenate(words))


def equations(
    predictions: Sequence[Prediction],
    figure: Figure,
    model_of: ModelOf = LearningModel,
    at: Factors | None = None,
    widths: Array | None = None,
) -> Equations:
    """The equations of runs that all have the figure, linearised at the factors `at`, or across the
    `widths` of their logs (parameters,)."""
    if not predictions:
        return no_equations(figure)
    measured = measured_logs(predictions, figure)
    about = dict(at or {})
    base, slopes = tangent(
        lambda factors: predicted_logs(predictions, figure, factors, model_of),
        figure,
        about,
        widths,
    )
    logs = [math.log(about.get(parameter.name, 1.0)) for parameter in parameters_of(figure)]
    return Equations(figure, measured - base + slopes @ np.array(logs), slopes)


def tangent(
    logs_of: Callable[[Factors], Array],
    figure: Figure,
    about: Factors | None = None,
    widths: Array | None = None,
) -> tuple[Array, Array]:
    """ln(predicted) under the factors `about`, (runs,), and its mean slopes, (runs, parameters):
    the change over a step in the log of each factor, divided by the step. The step is the factor's
    entry in `widths`, at least `_STEP`. A wide step matters for traffic that is hidden, or that
    waits for other links: its own rate has an effect only once that ends."""
    at = dict(about or {})
    steps = np.maximum(_STEP, np.zeros(len(parameters_of(figure))) if widths is None else widths)
    base = logs_of(at)
    # Steps go towards faster links and shorter waits, because shares have upper limits.
    trials = (
        at | {one.name: at.get(one.name, 1.0) * math.exp(-step)}
        for one, step in zip(parameters_of(figure), steps, strict=True)
    )
    return base, np.column_stack([base - logs_of(trial) for trial in trials]) / steps


def predicted_logs(
    predictions: Sequence[Prediction], figure: Figure, factors: Factors, model_of: ModelOf
) -> Array:
    """ln(predicted) of the runs under the factors, (runs,)."""
    costed = cost_predictions(predictions, lambda job: model_of(job, factors))
    return np.array([math.log(predicted(one, figure) or math.nan) for one in costed])
