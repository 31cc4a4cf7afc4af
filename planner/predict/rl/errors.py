"""Error bars of phases and steps of reinforcement learning, and corrections learnt from a cluster's
own runs.

The true seconds of a phase are taken to be predicted · (effect of unstated facts) · (difference of
this cluster) · (noise). The first factor concerns the lengths of answers: if these are not all
known, `and_also` widens the bar by the spread of predictions over the possible lengths. The other
two factors together have the half widths in `errors.toml`, by kind of phase. Own runs
(`hardware.calibration.LearntPhase`) remove the difference of the cluster: the prediction is
multiplied by the factor that these runs showed, and the bar is the scatter of runs of one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from pydantic import Field

from hardware.calibration import LearntPhase
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.job.rl.job import RlJob
from planner.predict.rl.plan import Phase, PhaseName

# The kind of each phase: errors of phases of one kind have the same cause.
KINDS: Mapping[PhaseName, str] = {
    "generation": "generation",
    "update": "training",
    "critic_update": "training",
    "old_logprobs": "reading",
    "reference": "reading",
    "values": "reading",
    "transfer": "transfer",
    "wake": "moves",
    "sleep": "moves",
    "leave": "moves",
    "return": "moves",
    "reward": "reward",
}
# Half width of an 80 % interval of a normal distribution, in standard deviations.
WIDTH = 1.2816


class Ends(NamedTuple):
    """A bar: distances from the prediction down to its low end and up to its high end, both
    positive, in ln."""

    low: float
    high: float

    def and_also(self, deviation: float) -> Ends:
        """The bar widened by a further independent error; `deviation`: its standard deviation, in
        ln."""
        more = WIDTH * deviation
        return Ends(math.hypot(self.low, more), math.hypot(self.high, more))


class KindErrors(Frozen):
    """The errors of one kind of phase: a row of `errors.toml`, which explains the fields."""

    low: float
    high: float
    repeat: float
    rows: int
    sources: int

    @property
    def ends(self) -> Ends:
        """The bar of this kind of phase."""
        return Ends(self.low, self.high)


class RlErrors(Frozen):
    """The content of `errors.toml`."""

    shared: float
    kind: dict[str, KindErrors]
    without: dict[str, dict[str, Ends]] = Field(default_factory=dict)

    def ends(self, kind: str, source: str) -> Ends:
        """The bar of a kind of phase as fitted without the runs of `source`; the bar fitted on all
        runs if there is none for that source."""
        return self.without.get(source, {}).get(kind) or self.kind[kind].ends


@cache
def rl_errors() -> RlErrors:
    """The shipped errors of every kind of phase."""
    return RlErrors.model_validate(shipped_toml("planner.predict.rl", "errors.toml"))


def with_bar(phase: Phase, job: RlJob, deviation: float = 0.0) -> Phase:
    """The phase with the ends of its 80 % interval (`low`, `high`). If own runs of the job's
    cluster taught a factor, the seconds and their terms are multiplied by it. `deviation`: standard
    deviation of ln(seconds) over the open facts of the job."""
    kind = KINDS[phase.name]
    learnt = learnt_phase(job, kind)
    ends = kind_ends(job, kind).and_also(deviation)
    found = replace(phase, low=math.exp(-ends.low), high=math.exp(ends.high))
    if learnt is None:
        return found
    terms = {name: learnt.value * seconds for name, seconds in phase.terms.items()}
    return replace(found, seconds=learnt.value * phase.seconds, terms=terms)


def learnt_phase(job: RlJob, kind: str) -> LearntPhase | None:
    """The correction that runs of the job's cluster taught for a kind of phase; None without such
    runs."""
    calibration = job.trainer.cluster.calibration
    if calibration is None:
        return None
    return next((phase for phase in calibration.phases if phase.name == kind), None)


def learnt_ends(learnt: LearntPhase) -> Ends:
    """The bar of a phase whose factor own runs have taught."""
    return Ends(WIDTH * learnt.spread, WIDTH * learnt.spread)


def learnt(kind: str, logs: Sequence[float]) -> LearntPhase:
    """The factor and its spread that runs of one cluster teach about a kind of phase; `logs`:
    ln(measured / predicted) of each run.

    The factor's prior is the shipped bar (normal, in ln). The noise of a run is `repeat`, but at
    most half of the bar's variance, because runs of a published source differ more among each other
    than runs of the user's own job. `spread`: scatter of a further run about the factor.
    """
    errors = rl_errors().kind[kind]
    whole = ((errors.low + errors.high) / 2.0 / WIDTH) ** 2
    noise = min(errors.repeat**2, whole / 2.0)
    prior = whole - noise
    precision = 1.0 / prior + len(logs) / noise
    mean = math.fsum(logs) / noise / precision
    spread = math.sqrt(1.0 / precision + noise)
    return LearntPhase(
        name=kind, value=round(math.exp(mean), 4), spread=round(spread, 4), runs=len(logs)
    )


def step_bar(phases: Sequence[Phase]) -> tuple[float, float]:
    """Factors (low, high) of the 80 % interval of a sum of phases: 1 is the prediction. The phases
    are all those of a step in which they follow each other, or those of the slower side if both
    sides work at once."""
    parts = [(Ends(-math.log(phase.low), math.log(phase.high)), phase.seconds) for phase in phases]
    ends = joined(parts, rl_errors().shared)
    return math.exp(-ends.low), math.exp(ends.high)


def kind_ends(job: RlJob, kind: str) -> Ends:
    """The bar of a kind of phase: that of the cluster's own runs if there are any, otherwise the
    shipped one."""
    learnt = learnt_phase(job, kind)
    return learnt_ends(learnt) if learnt else rl_errors().kind[kind].ends


def joined(parts: Sequence[tuple[Ends, float]], shared: float) -> Ends:
    """The bar of a sum. `parts`: (bar, seconds) of each summand; `shared`: share of the variance of
    their errors that is common to all parts, the rest being independent. (0, 0) if the seconds add
    up to 0."""
    total = math.fsum(seconds for _, seconds in parts)
    if total <= 0.0:
        return Ends(0.0, 0.0)
    low = [seconds / total * ends.low for ends, seconds in parts]
    high = [seconds / total * ends.high for ends, seconds in parts]
    return Ends(_joined_end(low, shared), _joined_end(high, shared))


def _joined_end(ends: Sequence[float], shared: float) -> float:
    alone = math.fsum(end**2 for end in ends)
    return math.sqrt(shared * math.fsum(ends) ** 2 + (1.0 - shared) * alone)
