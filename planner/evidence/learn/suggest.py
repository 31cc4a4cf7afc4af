"""Suggest the next runs: short ones that reduce the uncertainty of the given plans most.

Candidates are the plans themselves and their forms on fewer GPUs or with fewer micro-batches. The
error bar of a plan is the uncertainty of its step time.

ln(measured / predicted) of the configurations has a covariance K, from the factors and from
similarity, by the prior or after earlier runs (`posterior.expectation`). Running i leaves K -
K_i·K_iᵀ / (K_ii + s²) (Kalman's update; s: a run's noise). Runs are chosen one after the other
(active learning after Cohn 1996, Neural Networks 9(6)). The remaining covariance does not depend on
their outcomes, so all can be named before the first one runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hardware.errors import HardwareError
from hardware.prices import load_prices
from planner.evidence.learn.calibrate import FigureFit
from planner.evidence.learn.linear import LearningModel, equations, likeness, predicted_logs
from planner.evidence.learn.posterior import WIDTH, Array, expectation
from planner.evidence.learn.priors import shipped_prior
from planner.evidence.runs.mapping import MappedRow, planned_row
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.rows import MeasuredRow
from planner.job.request import Request
from planner.predict.configuration import decided_request
from planner.predict.plan import Degrees, Plan

MOST_RUNS = 3
# Number of a file's plans that are compared.
_PLANS = 4
# Steps of a short run, and the seconds that starting it takes.
_STEPS, _START_S = 50, 300.0
# A cheaper run is chosen if it shrinks the error bars by this share of the best one's shrinkage.
_NEARLY = 0.8
# A run that leaves more than this share of the error bar is not worth its start.
_WORTH = 0.98


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A run to make. `configuration`: in words. `usd`: its cost at the median on-demand list price,
    None if the GPU has no price. `before`, `after`: the mean 80 % error bar of the given plans, as
    a share of the step time, before and after this run."""

    configuration: str
    gpus: int
    minutes: float
    usd: float | None
    before: float = 0.0
    after: float = 0.0


def suggest(
    request: Request, plans: Sequence[Plan], known: FigureFit | None = None
) -> list[Suggestion]:
    """The runs to make next, most informative first; `known`: the fit to earlier runs."""
    row = MeasuredRow("suggested", 1, {})
    mapped = [
        planned_row(row, decided_request(request, plan).resolve(), plan) for plan in plans[:_PLANS]
    ]
    targets = _costed(mapped)
    # Candidates that fit, each configuration once.
    unique = {_text(shape): shape for one in mapped for shape in _shorter(one)}
    candidates = [one for one in _costed(unique.values()) if one.fits is not False]
    unknown = _unknown(known.runs if known else (), [*targets, *candidates])
    judged, first = range(len(targets)), len(targets)
    steps = np.exp(predicted_logs(candidates, "time", {}, LearningModel)) if candidates else ()
    suggested = [_suggestion(*pair) for pair in zip(candidates, steps, strict=True)]
    left = list(range(len(candidates)))
    found: list[Suggestion] = []
    while len(found) < MOST_RUNS and left:
        before = _bar(unknown.deviation(judged))
        bars = [_bar(one) for one in unknown.deviations_after(judged)[first:]]
        least = min(bars[index] for index in left)
        if least > _WORTH * before:
            break
        limit = before - _NEARLY * (before - least)
        chosen = min(
            (index for index in left if bars[index] <= limit),
            key=lambda index: suggested[index].minutes * suggested[index].gpus,
        )
        left.remove(chosen)
        unknown = unknown.after(first + chosen)
        found.append(replace(suggested[chosen], before=before, after=bars[chosen]))
    return found


def _unknown(runs: Sequence[Prediction], configurations: Sequence[Prediction]) -> Unknown:
    """The uncertainty of the configurations' step times, given the runs."""
    both = [*runs, *configurations]
    found, prior = equations(both, "time"), shipped_prior("time")
    residuals = found.residuals[: len(runs)]
    return Unknown(*expectation(found.slopes, residuals, prior, likeness(both, "time"), MOST_RUNS))


def _bar(deviation: float) -> float:
    """Half width of an error bar, as a share, for a standard deviation of ln(step time)."""
    return math.expm1(WIDTH * deviation)


def smaller_degrees(degrees: Degrees) -> Iterator[Degrees]:
    """The degrees themselves, then smaller ones. The data-parallel replicas are halved as long as
    their number is even, the most replicas first. Each number of replicas comes with all
    micro-batches, and with at most two micro-batches per pipeline stage. Numbers that do not suit
    the expert or shard groups are left out."""
    for halvings in range((degrees.dp & -degrees.dp).bit_length()):
        replicas = degrees.dp >> halvings
        inner = replicas * degrees.cp * degrees.tp
        if inner % degrees.expert_ranks or degrees.shard > replicas * degrees.cp:
            continue
        for micro_batches in sorted({degrees.grad_acc, min(degrees.grad_acc, 2 * degrees.pp)}):
            yield degrees.model_copy(update={"dp": replicas, "grad_acc": micro_batches})


def _shorter(mapped: MappedRow) -> Iterator[MappedRow]:
    """The configuration and its forms on fewer GPUs and with fewer micro-batches."""
    for degrees in smaller_degrees(mapped.degrees):
        job = replace(mapped.job, cluster=mapped.job.cluster.with_gpus(degrees.gpus))
        yield replace(mapped, job=job, degrees=degrees)


def _costed(mapped: Iterable[MappedRow]) -> list[Prediction]:
    return cost_predictions([Prediction(one.row, one) for one in mapped])


def _suggestion(candidate: Prediction, step_s: float) -> Suggestion:
    mapped, seconds = candidate.configured, _START_S + _STEPS * float(step_s)
    price, gpus = usd_per_gpu_hour(mapped.job.cluster.gpu.name), mapped.degrees.gpus
    usd = None if price is None else price * (seconds * gpus) / 3600.0
    return Suggestion(_text(mapped), gpus, seconds / 60.0, usd)


def usd_per_gpu_hour(gpu: str) -> float | None:
    """The median on-demand list price in the catalogue; None without one."""
    found = []
    for price in load_prices():
        if price.gpu == gpu and price.kind == "on_demand":
            try:
                found.append(price.usd_per_gpu_hour)
            except HardwareError:
                continue  # another currency
    return median(found) if found else None


def _text(mapped: MappedRow) -> str:
    degrees: Degrees = mapped.degrees
    named = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero", "mbs")
    parts = [
        f"{name} {getattr(degrees, name)}"
        for name in named
        if getattr(degrees, name) > 1 or name in ("dp", "zero", "mbs")
    ]
    noun = "micro-batch" if degrees.grad_acc == 1 else "micro-batches"
    return f"{', '.join(parts)}, {degrees.grad_acc} {noun}, recompute {mapped.mode.name}"


Indices = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Unknown:
    """The uncertainty of n configurations. `covariance` (n, n): of their ln(measured / predicted).
    `noise`: the variance of ln(measured / predicted) of a single run about these."""

    covariance: Array
    noise: float

    def deviation(self, judged: Indices) -> float:
        """Standard deviation of ln(measured / predicted), as a mean over the configurations at the
        indices `judged`."""
        return float(np.sqrt(np.maximum(np.diag(self.covariance)[judged], 0.0)).mean())

    def deviations_after(self, judged: Indices) -> Array:
        """For each of the n configurations, the mean standard deviation of the `judged` ones if
        that configuration were run next, (n,)."""
        variances = np.diag(self.covariance)
        gains = self.covariance[judged] ** 2 / (variances + self.noise)
        return np.asarray(np.sqrt(np.maximum(variances[judged, None] - gains, 0.0)).mean(0))

    def after(self, run: int) -> Unknown:
        """The uncertainty once a configuration has run."""
        column = self.covariance[:, run]
        gain = np.outer(column, column) / (column[run] + self.noise)
        return Unknown(self.covariance - gain, self.noise)


def most_telling(unknown: Unknown, candidates: Indices, judged: Indices, count: int) -> list[int]:
    """The `count` candidates that reduce the uncertainty of the judged configurations most, each
    once."""
    left, chosen = [int(index) for index in candidates], list[int]()
    for _ in range(count):
        after = unknown.deviations_after(judged)
        chosen.append(min(left, key=lambda index: float(after[index])))
        left.remove(chosen[-1])
        unknown = unknown.after(chosen[-1])
    return chosen
