"""The belief about steps of reinforcement learning, from the errors of their phases by kind.

ln(measured / predicted) of a phase of kind k in plan i is f(i, k) = e(k) + r(i, k). e is the effect
of the cluster, the lengths and the framework on phases of a kind, which all candidates share. r is
the rest of a plan: plans with equal engines share it in sampling, plans with equal trainers in
training. The error of a step is the sum of its binding phases' errors, weighted by their share of
it, plus that of the time between phases. Half widths are those of the shipped bars, or those after
the cluster's own runs (`planner.predict.rl.errors`). Steps and phases of a trial are measured
together, and both condition the normal distribution, at every scale of the errors
(`planner.tune.belief`).

Ignores that lengths may grow between two trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from planner.evidence.rl.learn import times_of
from planner.evidence.rl.rows import Timed
from planner.predict.rl.errors import KINDS, WIDTH, rl_errors
from planner.predict.rl.plan import Phase
from planner.predict.uncertainty.intervals import log_bounds, spread_of
from planner.tune.belief import Belief
from planner.tune.errors import Array
from planner.tune.fits import Memory, margin_of
from planner.tune.rl.candidates import RlCandidate
from planner.tune.rl.follow import AND

# Relative noise of a step: the time between its phases, and the scatter of repeated runs.
_BETWEEN = 0.03
# Relative noise of a phase's time over a few steps.
_PHASE_NOISE = 0.03
# Share of the rest of a plan's sampling error that engines with equal degrees have in common,
# whatever their KV cache and number of sequences: assumed, not measured.
_OF_DEGREES = 0.9
# A time farther from the prediction measures something else.
_MOST = math.log(100.0)
_OF_TRAINER = ("training", "reading")


@dataclass(frozen=True)
class RlBelief(Belief):
    """`together`: covariance at scale 1 of the candidates' steps, then of f(i, k), plan by plan;
    `kinds`: of phases; `parts`: measured phases as (index in `together`, ln(measured / predicted)).
    """

    together: Array = field(default_factory=lambda: np.zeros((0, 0)))
    kinds: tuple[str, ...] = ()
    parts: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of_plans(cls, candidates: Sequence[RlCandidate]) -> RlBelief:
        """The belief before any trial."""
        kinds = tuple(dict.fromkeys(KINDS[one.name] for one in _phases(candidates)))
        together = _together(candidates, kinds)
        count = len(candidates)
        return cls(
            tuple(one.key for one in candidates),
            np.log([one.step_s for one in candidates]),
            together[:count, :count],
            np.array([float(one.launch.job.rollout.samples) for one in candidates]),
            np.array([float(one.gpus) for one in candidates]),
            np.ones(count, dtype=np.bool_),
            _memory(candidates),
            (None,) * count,
            together=together,
            kinds=kinds,
        )

    def measured(self, candidate: RlCandidate, parts: Mapping[str, float]) -> RlBelief:
        """The belief with the phase times that a trial of a candidate measured. `parts`: seconds by
        the names of their phases, joined with +. Times that mix kinds of phase, or that are
        absurdly far from the prediction, are ignored."""
        times = [Timed("step", value, tuple(name.split(AND))) for name, value in parts.items()]  # type: ignore[arg-type]
        logs: dict[str, list[float]] = {}
        for one in times_of(times, candidate.key, candidate.costed):
            if one.kind in self.kinds and one.measured_s > 0.0 and abs(one.log) <= _MOST:
                logs.setdefault(one.kind, []).append(one.log)
        start = len(self.keys) + self.place(candidate.key) * len(self.kinds)
        found = tuple((start + self.kinds.index(kind), median(some)) for kind, some in logs.items())
        return replace(self, parts=(*self.parts, *found))

    @property
    def joint(self) -> Array:
        """Covariance at scale 1 of the candidates' steps, then of their phases: candidate by
        candidate, one entry for each kind."""
        return self.together

    @property
    def measurements(self) -> tuple[list[int], Array, Array]:
        """The measurements of steps, then those of phases."""
        at, rest, noise = super().measurements
        logs = [log for _, log in self.parts]
        return (
            [*at, *(place for place, _ in self.parts)],
            np.concatenate([rest, logs]),
            np.concatenate([noise, [_PHASE_NOISE**2] * len(logs)]),
        )


def _phases(candidates: Iterable[RlCandidate]) -> list[Phase]:
    """The phases that add up to the candidates' steps, without those that take no time."""
    return [phase for one in candidates for phase in one.costed.binding if phase.seconds > 0.0]


def _together(candidates: Sequence[RlCandidate], kinds: Sequence[str]) -> Array:
    """Covariance of the steps of all candidates, then of their phases by kind."""
    whole = np.array([_variance(_phases(candidates), kind) for kind in kinds])
    own = np.minimum([rl_errors().kind[kind].repeat ** 2 for kind in kinds], whole / 2.0)
    deviations = np.sqrt(whole - own)
    shares = np.full((len(kinds), len(kinds)), rl_errors().shared)
    np.fill_diagonal(shares, 1.0)
    common = np.outer(deviations, deviations) * shares
    count = len(candidates)
    phases = np.kron(np.ones((count, count)), common)
    for place, kind in enumerate(kinds):
        phases[place :: len(kinds), place :: len(kinds)] += own[place] * _alike(candidates, kind)
    weights = np.zeros((count, count * len(kinds)))
    for row, one in enumerate(candidates):
        weights[row, row * len(kinds) : (row + 1) * len(kinds)] = _shares(one, kinds)
    crossed = weights @ phases
    steps = crossed @ weights.T + _BETWEEN**2 * np.eye(count)
    return np.block([[steps, crossed], [crossed.T, phases]])


def _variance(phases: Iterable[Phase], kind: str) -> float:
    """Variance of ln(measured / predicted) for a kind, from the bar of its longest phase."""
    longest = max((one for one in phases if KINDS[one.name] == kind), key=lambda one: one.seconds)
    return float((0.5 * math.log(longest.high / longest.low) / WIDTH) ** 2)


def _alike(candidates: Sequence[RlCandidate], kind: str) -> Array:
    """Similarity of the candidates in one kind of phase, (n, n). In sampling: 1 for the same
    engines, `_OF_DEGREES` for engines with equal degrees that differ otherwise, else 0. In the
    trainer's phases: 1 for the same trainer, else 0. In other phases: 1 for a candidate with
    itself, else 0."""
    if kind == "generation":
        same = _equal([one.engine for one in candidates])
        return _OF_DEGREES * _equal([one.engine_degrees for one in candidates]) + (
            (1.0 - _OF_DEGREES) * same
        )
    side = "trainer" if kind in _OF_TRAINER else "key"
    return _equal([getattr(one, side) for one in candidates])


def _equal(sides: Sequence[object]) -> Array:
    return np.array([[float(one == other) for other in sides] for one in sides])


def _shares(candidate: RlCandidate, kinds: Sequence[str]) -> Array:
    """The share of each kind of phase in a step."""
    found = dict.fromkeys(kinds, 0.0)
    for phase in _phases([candidate]):
        found[KINDS[phase.name]] += phase.seconds
    shares = np.array([found[kind] for kind in kinds])
    return np.asarray(shares / shares.sum())


def _memory(candidates: Sequence[RlCandidate]) -> Memory:
    """The belief about memory before any run. Candidates with the same trainer and candidates with
    the same engine are similar."""
    spread, _ = spread_of(candidates[0].launch.layout.trainer.job, "memory")
    low, high = log_bounds(spread)
    deviation = 0.5 * (high - low) / WIDTH
    margins = [(deviation, margin_of(deviation, one.fits)) for one in candidates]
    likeness = 0.5 * (_alike(candidates, "training") + _alike(candidates, "generation"))
    return Memory.of_margins(margins, likeness)
