"""Which run to make next: the short ones that tell most of the plans at hand.

The factors of a cluster have a covariance S: the prior's, or what earlier runs left. A run whose
ln(time) follows them by c leaves S - S·c·cᵀ·S / (cᵀ·S·c + s²) (Kalman's update; s: a run's noise).
The error bar of a plan is the spread of d·θ, d being its own derivatives. Candidates are the plans
themselves, on fewer GPUs and with fewer micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

import numpy as np

from hardware import HardwareError, load_prices
from planner.evidence.learn.calibrate import FigureFit
from planner.evidence.learn.linear import LearningModel, equations, predicted_logs
from planner.evidence.learn.posterior import Array
from planner.evidence.learn.priors import shipped_prior
from planner.evidence.runs.mapping import MappedRow, planned_row
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.rows import MeasuredRow
from planner.job.request import Request
from planner.predict.decided import decided_request
from planner.predict.plan import Degrees, Plan
from planner.predict.uncertainty.residuals import COVERAGE

MOST_RUNS = 3
# Plans of a file that are decided between.
_PLANS = 4
# Steps of a short run, and what starting it takes.
_STEPS, _START_S = 50, 300.0
# A run is chosen if it shrinks the error bars by this share of what the best one does, for less.
_NEARLY = 0.8
# One that leaves more than this of the error bar is not worth its start.
_WORTH = 0.98
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A run to make: its configuration and cost (`usd` at the median on-demand list price; None
    without one), and the plans' mean 80 % error bars, as shares, before and after it."""

    configuration: str
    gpus: int
    minutes: float
    usd: float | None
    before: float
    after: float


@dataclass(frozen=True)
class _Candidate:
    prediction: Prediction
    slopes: Array
    seconds: float

    @property
    def gpu_seconds(self) -> float:
        mapped = self.prediction.mapped
        return self.seconds * (mapped.degrees.gpus if mapped else 1)


def suggest(
    request: Request, plans: Sequence[Plan], known: FigureFit | None = None
) -> list[Suggestion]:
    """The runs to make next, most telling first; `known`: what earlier runs taught."""
    row = MeasuredRow("suggested", 1, {})
    mapped = [
        planned_row(row, decided_request(request, plan).resolve(), plan) for plan in plans[:_PLANS]
    ]
    targets = equations(_costed(mapped), "time").slopes
    candidates = _candidates([shape for one in mapped for shape in _shorter(one)])
    prior = shipped_prior("time")
    covariance = np.diag(prior.spreads**2) if known is None else known.factors.covariance
    noise = prior.doubted(1) if known is None else known.posterior.noise
    found: list[Suggestion] = []
    while len(found) < MOST_RUNS and candidates:
        before = _bar(covariance, targets)
        left = [_bar(_after(covariance, one.slopes, noise), targets) for one in candidates]
        if min(left) > _WORTH * before:
            break
        limit = before - _NEARLY * (before - min(left))
        chosen = min(
            (index for index, bar in enumerate(left) if bar <= limit),
            key=lambda index: candidates[index].gpu_seconds,
        )
        one = candidates.pop(chosen)
        covariance = _after(covariance, one.slopes, noise)
        found.append(_suggestion(one, before, left[chosen]))
    return found


def _after(covariance: Array, slopes: Array, noise: float) -> Array:
    gain = covariance @ slopes
    return np.asarray(covariance - np.outer(gain, gain) / (slopes @ gain + noise**2))


def _bar(covariance: Array, targets: Array) -> float:
    """Mean half width, as a share, of the plans' step times."""
    deviations = np.sqrt(np.einsum("ij,jk,ik->i", targets, covariance, targets))
    return math.expm1(_Z * float(deviations.mean()))


def _shorter(mapped: MappedRow) -> Iterator[MappedRow]:
    """The configuration with fewer replicas and micro-batches, smallest last."""
    degrees = mapped.degrees
    for replicas in _halved(degrees.dp):
        inner = replicas * degrees.cp * degrees.tp
        if inner % (degrees.ep * degrees.etp) or degrees.shard > replicas * degrees.cp:
            continue
        for steps in sorted({degrees.grad_acc, min(degrees.grad_acc, 2 * degrees.pp)}):
            changed = degrees.model_copy(update={"dp": replicas, "grad_acc": steps})
            cluster = mapped.job.cluster.with_gpus(changed.gpus)
            yield replace(mapped, job=replace(mapped.job, cluster=cluster), degrees=changed)


def _halved(number: int) -> Iterator[int]:
    while True:
        yield number
        if number % 2:
            return
        number //= 2


def _costed(mapped: Sequence[MappedRow]) -> list[Prediction]:
    return cost_predictions([Prediction(one.row, one) for one in mapped])


def _candidates(mapped: Sequence[MappedRow]) -> list[_Candidate]:
    """Those that fit, each configuration once."""
    unique = {_text(one): one for one in mapped}
    costed = [one for one in _costed(list(unique.values())) if one.fits is not False]
    if not costed:
        return []
    seconds = np.exp(predicted_logs(costed, "time", {}, LearningModel))
    slopes_of = equations(costed, "time").slopes
    return [
        _Candidate(one, slopes, _START_S + _STEPS * float(step))
        for one, slopes, step in zip(costed, slopes_of, seconds, strict=True)
    ]


def _suggestion(one: _Candidate, before: float, after: float) -> Suggestion:
    mapped = one.prediction.mapped
    if mapped is None:
        raise ValueError("a candidate has a configuration")
    price = usd_per_gpu_hour(mapped.job.cluster.gpu.name)
    usd = None if price is None else price * one.gpu_seconds / 3600.0
    return Suggestion(_text(mapped), mapped.degrees.gpus, one.seconds / 60.0, usd, before, after)


def usd_per_gpu_hour(gpu: str) -> float | None:
    """Median on-demand list price of the catalogue; None without one."""
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
    return f"{', '.join(parts)}, {degrees.grad_acc} micro-batches, recompute {mapped.mode.name}"
