"""The belief about the candidates' step times and memory, before and after trials.

ln(step time) of the candidates is a mixture of normal distributions about the predictions, one for
each scale of the cluster's errors (`planner.tune.errors`). A measured step conditions each of them
(Rasmussen & Williams 2006, equations 2.22 to 2.24), and each is weighted by the likelihood of all
measurements under it. Memory has a separate belief (`planner.tune.fits`): a run that fits, runs out
of memory or reports its peak updates it; a run that failed otherwise does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.evidence.learn.linear import equations
from planner.job.errors import UsageError
from planner.job.job import SURE_TO_FIT
from planner.tune.candidates import Candidate, in_common
from planner.tune.errors import (
    SCALES,
    Array,
    ErrorScales,
    distances_of,
    log_odds_of_scales,
    mean_half_width,
    sequences_of,
    shipped_scales,
)
from planner.tune.fits import Memory

# Smallest relative standard error of a measured step time.
LEAST_NOISE = 0.005
# Cost of launching a plan that does not fit, as a share of the job: less than having no plan, but
# more than a start, because it may take days to be noticed.
_LOST = 0.5


@dataclass(frozen=True)
class Observation:
    """The outcome of a trial. `step_s`: median seconds of a step, None if unknown; `relative_sd`:
    its standard error as a share of it; `out_of_memory`, `failed`: whether the trial ran out of
    memory, or failed in another way. `peak_bytes`: the most memory of any GPU, counted as in
    `Candidate.peak_bytes`; None if the log has nothing comparable."""

    candidate_key: str
    step_s: float | None = None
    relative_sd: float = 0.01
    out_of_memory: bool = False
    peak_bytes: float | None = None
    failed: bool = False


class Draws(NamedTuple):
    """Joint draws from the belief. `step_s`: seconds of a step; `fits`: whether the candidate fits.
    Both have the shape (draws, candidates)."""

    step_s: Array
    fits: NDArray[np.bool_]


class Component(NamedTuple):
    """One normal distribution of the mixture: its weight, mean (n,) and covariance (n, n)."""

    weight: float
    mean: Array
    covariance: Array


@dataclass(frozen=True)
class Belief:
    """The belief about n candidates, in the order of `keys`. `log_s`: ln of predicted seconds of a
    step, (n,); `covariance`: of the errors of `log_s` at scale 1, (n, n); `sequences`: number in a
    step of each candidate, (n,); `gpus`: number of each, (n,); `whole`: whether each may be
    recommended, (n,), which smaller forms may not; `memory`: the belief about memory."""

    keys: tuple[str, ...]
    log_s: Array
    covariance: Array
    sequences: Array
    gpus: Array
    whole: NDArray[np.bool_]
    memory: Memory
    predicted_peaks: tuple[float | None, ...] = ()
    observations: tuple[Observation, ...] = field(default=())

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        *,
        without: str = "",
        scales: ErrorScales | None = None,
        slopes: Array | None = None,
    ) -> Belief:
        """The belief before any trial. `without`: use the scales fitted without this source;
        `slopes`: derivatives of ln(predicted) by the cluster's rates, if already known. UsageError
        if there are no candidates, or if two of them share a key."""
        keys = tuple(one.key for one in candidates)
        if not keys or len(set(keys)) < len(keys):
            raise UsageError("a study needs at least one candidate, each with its own key")
        known = scales or shipped_scales(without)
        predictions = in_common(one.prediction for one in candidates)
        if slopes is None:
            slopes = equations(predictions, "time").slopes
        distances = distances_of(predictions)
        unit = mean_half_width(predictions) ** 2 * known.covariance(slopes, distances)
        return cls(
            keys,
            np.log([one.step_s for one in candidates]),
            unit,
            np.array([sequences_of(one) for one in predictions]),
            np.array([float(one.gpus) for one in candidates]),
            np.array([not one.smaller_of for one in candidates]),
            Memory.of(predictions, known.likeness_of(distances)),
            tuple(one.peak_bytes for one in candidates),
        )

    def observed(self, observations: Iterable[Observation]) -> Belief:
        """The belief after further trials. UsageError for an unknown candidate or an impossible
        time."""
        found = self
        for one in observations:
            found = found._with(one)
        return found

    def _with(self, one: Observation) -> Belief:
        place, memory = self.place(one.candidate_key), self.memory
        if one.step_s is not None and not 0.0 < one.step_s < math.inf:
            raise UsageError(
                f"{one.candidate_key}: a step of {one.step_s:g} s; measured steps take more than "
                "0 s"
            )
        peak = self.predicted_peaks[place] if self.predicted_peaks else None
        if one.peak_bytes and peak and not one.out_of_memory:
            memory = memory.measured(place, math.log(one.peak_bytes / peak))
        if one.out_of_memory or one.step_s is not None:
            memory = memory.seen(place, fits=not one.out_of_memory)
        return replace(self, memory=memory, observations=(*self.observations, one))

    def place(self, key: str) -> int:
        """The index of a candidate. UsageError for an unknown key."""
        if key not in self._places:
            raise UsageError(f"{key!r} is not a candidate of this study")
        return self._places[key]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @property
    def tried(self) -> frozenset[str]:
        """Keys of all candidates with trials, failed ones included."""
        return frozenset(one.candidate_key for one in self.observations)

    @property
    def failed(self) -> frozenset[str]:
        """Keys of candidates whose trials all failed for a reason other than memory."""
        told = {one.candidate_key for one in self.observations if not one.failed}
        return self.tried - told

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The mixture of ln(step time), one component for each of `SCALES`, weighted by its prior
        probability and the likelihood of the measurements."""
        measured = self.measurements
        found = [self._component(scale, *measured) for scale in SCALES]
        logs = log_odds_of_scales() + np.array([log for log, _, _ in found])
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        return tuple(
            Component(float(weight), mean, covariance)
            for weight, (_, mean, covariance) in zip(weights, found, strict=True)
        )

    @property
    def joint(self) -> Array:
        """Covariance at scale 1 of everything that trials measure; the candidates' steps come
        first."""
        return self.covariance

    @property
    def measurements(self) -> tuple[list[int], Array, Array]:
        """Measurements of trials: their indices in `joint`, ln(measured / predicted) and its
        variance."""
        timed = [one for one in self.observations if one.step_s is not None]
        at = [self.place(one.candidate_key) for one in timed]
        seconds = np.array([one.step_s for one in timed], dtype=np.float64)
        noise = np.square([max(one.relative_sd, LEAST_NOISE) for one in timed])
        return at, np.log(seconds) - self.log_s[at], noise

    def _component(
        self, scale: float, at: list[int], rest: Array, noise: Array
    ) -> tuple[float, Array, Array]:
        """For one scale: ln of the density of the measurements, and the mean and covariance after
        them."""
        prior = scale**2 * self.covariance
        if not at:
            return 0.0, self.log_s, prior
        joint = scale**2 * self.joint
        factor = np.linalg.cholesky(joint[np.ix_(at, at)] + np.diag(noise))
        white = np.linalg.solve(factor, rest)
        gain = np.linalg.solve(factor, joint[at, : len(self.keys)])
        log = -float(np.log(np.diag(factor)).sum()) - 0.5 * float(white @ white)
        return log, self.log_s + gain.T @ white, prior - gain.T @ gain

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """Mean (n,) and covariance (n, n) of ln(step time)."""
        weights = [one.weight for one in self.components]
        mean = np.average([one.mean for one in self.components], axis=0, weights=weights)
        covariance = sum(
            one.weight * (one.covariance + np.outer(one.mean - mean, one.mean - mean))
            for one in self.components
        )
        return mean, np.asarray(covariance)

    @property
    def fits(self) -> Array:
        """Probability of fitting, (n,)."""
        return self.memory.probabilities

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """Whether each candidate may be recommended, (n,). Eligible are the whole candidates whose
        probability of fitting is at least the one that a search requires; if there are none, those
        with the highest probability. Candidates whose trials failed count only if there are no
        others."""
        chance = np.where(self.whole, self.fits, -1.0)
        chance[[self.place(key) for key in self.failed]] -= 1.0
        sure = chance >= SURE_TO_FIT
        found: NDArray[np.bool_] = sure if sure.any() else chance >= chance.max() - 1e-9
        return found

    @property
    def costs_per_sequence(self) -> Array:
        """ln of the expected seconds per sequence, (n,); the plan with the smallest value is
        recommended. The uncertainty of a step time raises its expected value, so a plan that has
        run is preferred to an untried one with the same median. Once any plan has run, a plan's
        risk of not fitting adds to its cost."""
        mean, covariance = self.moments
        costs = mean + 0.5 * np.diag(covariance) - np.log(self.sequences)
        ran = any(one.step_s is not None for one in self.observations)
        return np.asarray(costs + (_LOST * (1.0 - self.fits) if ran else 0.0))

    @property
    def recommended(self) -> str:
        """The key of the plan to run, tried or not."""
        costs = np.where(self.eligible, self.costs_per_sequence, np.inf)
        return self.keys[int(costs.argmin())]

    def interval(self, key: str, coverage: float = 0.8) -> tuple[float, float]:
        """The interval that contains a candidate's step time with this probability, s."""
        place = self.place(key)
        ends = []
        for share in (0.5 - coverage / 2.0, 0.5 + coverage / 2.0):
            ends.append(math.exp(self._quantile(place, share)))
        return ends[0], ends[1]

    def _quantile(self, place: int, share: float) -> float:
        """The quantile of ln(step time), by bisection on the mixture's distribution function."""
        mean, covariance = self.moments
        reach = 12.0 * math.sqrt(max(float(covariance[place, place]), 1e-12))
        low, high = float(mean[place]) - reach, float(mean[place]) + reach
        while high - low > 1e-7:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._below(place, middle) < share else (low, middle)
        return 0.5 * (low + high)

    def _below(self, place: int, value: float) -> float:
        total = 0.0
        for weight, mean, covariance in self.components:
            deviation = math.sqrt(max(float(covariance[place, place]), 1e-12))
            total += (
                weight
                * 0.5
                * math.erfc((float(mean[place]) - value) / (deviation * math.sqrt(2.0)))
            )
        return total

    def draws(self, count: int, seed: int = 0) -> Draws:
        """Joint draws of step times and of fitting; the same seed gives the same draws."""
        generator = np.random.default_rng(seed)
        weights = np.array([one.weight for one in self.components])
        chosen = generator.multinomial(count, weights / weights.sum())
        logs = [
            _normal(generator, one.mean, one.covariance, number)
            for one, number in zip(self.components, chosen, strict=True)
        ]
        steps = generator.permutation(np.concatenate(logs), axis=0)
        errors = _normal(generator, self.memory.mean, self.memory.covariance, count)
        fits = errors <= self.memory.margin
        for place, known in self.memory.known.items():
            fits[:, place] = known
        return Draws(np.exp(steps), fits)


def _normal(generator: np.random.Generator, mean: Array, covariance: Array, count: int) -> Array:
    """Draws of a normal distribution whose covariance may be singular, (count, n)."""
    values, vectors = np.linalg.eigh(covariance)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Array = mean + generator.standard_normal((count, len(mean))) @ roots.T
    return found
