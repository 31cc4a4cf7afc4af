"""Error bars of phases and steps of reinforcement learning, and what own runs teach of them.

A phase is measured at predicted · (what nobody stated) · (how this cluster differs) · (noise). The
first is the lengths: where they are open, `opened` widens the bar by what the open values predict.
The other two are the half widths of `errors.toml`, by kind of phase. Own runs
(`hardware.calibration.LearntPhase`) remove the second: the phase is predicted at the factor that
they showed, within what runs of one cluster scatter by.
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

# The kind of each phase, by what it does: errors of one kind have one cause.
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
# An 80 % interval of a normal distribution ends so many standard deviations from its middle.
WIDTH = 1.2816


class Ends(NamedTuple):
    """How far a bar reaches below and above what is predicted, in ln."""

    low: float
    high: float

    def and_also(self, deviation: float) -> Ends:
        """The bar with an independent error of a standard deviation, in ln, beside its own."""
        more = WIDTH * deviation
        return Ends(math.hypot(self.low, more), math.hypot(self.high, more))


class KindErrors(Frozen):
    """A row of `errors.toml`, which says what each is."""

    low: float
    high: float
    repeat: float
    rows: int
    sources: int

    @property
    def ends(self) -> Ends:
        """Its bar."""
        return Ends(self.low, self.high)


class RlErrors(Frozen):
    """`errors.toml`."""

    shared: float
    kind: dict[str, KindErrors]
    without: dict[str, dict[str, Ends]] = Field(default_factory=dict)

    def ends(self, kind: str, source: str) -> Ends:
        """The bar of a kind of phase without what a source measured."""
        return self.without.get(source, {}).get(kind) or self.kind[kind].ends


@cache
def rl_errors() -> RlErrors:
    """The shipped errors of every kind of phase."""
    return RlErrors.model_validate(shipped_toml("planner.predict.rl", "errors.toml"))


def with_bar(phase: Phase, job: RlJob, deviation: float = 0.0) -> Phase:
    """The phase within its bar, and at what own runs of its cluster showed; `deviation`: standard
    deviation of ln(seconds) over what is open of the job."""
    kind = KINDS[phase.name]
    learnt = learnt_phase(job, kind)
    ends = kind_ends(job, kind).and_also(deviation)
    found = replace(phase, low=math.exp(-ends.low), high=math.exp(ends.high))
    return found if learnt is None else _scaled(found, learnt.value)


def _scaled(phase: Phase, factor: float) -> Phase:
    terms = {name: factor * seconds for name, seconds in phase.terms.items()}
    return replace(phase, seconds=factor * phase.seconds, terms=terms)


def learnt_phase(job: RlJob, kind: str) -> LearntPhase | None:
    """What runs of the job's cluster taught of a kind of phase; None without any."""
    calibration = job.trainer.cluster.calibration
    if calibration is None:
        return None
    return next((one for one in calibration.phases if one.name == kind), None)


def learnt_ends(learnt: LearntPhase) -> Ends:
    """The bar of a phase that own runs have measured."""
    return Ends(WIDTH * learnt.spread, WIDTH * learnt.spread)


def learnt(kind: str, logs: Sequence[float]) -> LearntPhase:
    """What runs of one cluster teach of a kind of phase; `logs`: ln(measured / predicted) of each.

    The factor has the shipped bar as its prior (normal, in ln) and `repeat` as the noise of a run,
    but no more than half of the bar's variance: a source's table is of more unlike runs than those
    that one learns from for a job of one's own. `spread`: what a further run will show about it.
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
    """Factors of the 80 % interval of a sum of phases: of a step whose phases follow each other, or
    of the side that binds where both work at once."""
    parts = [(Ends(-math.log(one.low), math.log(one.high)), one.seconds) for one in phases]
    ends = joined(parts, rl_errors().shared)
    return math.exp(-ends.low), math.exp(ends.high)


def kind_ends(job: RlJob, kind: str) -> Ends:
    """The bar of a kind of phase: what own runs left of it, else the shipped one."""
    learnt = learnt_phase(job, kind)
    return learnt_ends(learnt) if learnt else rl_errors().kind[kind].ends


def joined(parts: Sequence[tuple[Ends, float]], shared: float) -> Ends:
    """The bar of a sum of (bar, seconds) whose errors are one error in part."""
    total = math.fsum(seconds for _, seconds in parts)
    if total <= 0.0:
        return Ends(0.0, 0.0)
    sides = zip(*(_of_share(ends, seconds / total) for ends, seconds in parts), strict=True)
    return Ends(*(_half(halves, shared) for halves in sides))


def _of_share(ends: Ends, share: float) -> Ends:
    return Ends(share * ends.low, share * ends.high)


def _half(halves: Sequence[float], shared: float) -> float:
    alone = math.fsum(half**2 for half in halves)
    return math.sqrt(shared * math.fsum(halves) ** 2 + (1.0 - shared) * alone)
