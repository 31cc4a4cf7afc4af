"""Calibrate a cluster from its runs of reinforcement learning: one factor for each kind of phase.

A run is a row of a table of measured runs, or a log next to the plan that it ran. Every time of a
phase gives ln(measured / predicted); those of one kind (`planner.predict.rl.errors.KINDS`) have one
factor. A log counts as one run however long it is, because its steps repeat each other. It is
predicted at the lengths in the log, so that earlier assumptions about them do not count as errors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from hardware.calibration import Calibration, LearntPhase
from hardware.schema import Cluster
from planner._version import __version__
from planner.evidence.rl.costing import Costed
from planner.evidence.rl.logs import RlLog
from planner.evidence.rl.predict import RlPrediction, compared
from planner.evidence.rl.rows import Timed
from planner.job.errors import CannotTellError, UsageError
from planner.predict.rl.errors import KINDS, learnt

# A measurement further from its prediction is a mistake or belongs to another run.
_MOST_TIMES = 100.0
# A time belongs to a kind of phase that makes up at least this share of it.
_LEAST_SHARE = 0.6


@dataclass(frozen=True)
class PhaseTime:
    """A time of phases of one kind, with the name of its run; predicted and measured seconds."""

    kind: str
    run: str
    predicted_s: float
    measured_s: float

    @property
    def log(self) -> float:
        """ln(measured / predicted)."""
        return math.log(self.measured_s / self.predicted_s)


@dataclass(frozen=True)
class LearntPhases:
    """The result of learning from some runs: a factor for each kind of phase, the times behind it,
    and sentences on each file; `lengths`: from the last log, in the form of `--lengths`, empty if
    unknown."""

    phases: tuple[LearntPhase, ...]
    times: tuple[PhaseTime, ...]
    notes: tuple[str, ...]
    lengths: str = ""

    def calibration(self, base: Calibration | None, sources: Sequence[str]) -> Calibration:
        """The cluster's earlier calibration `base`, if any, with its phases replaced by these."""
        known = {} if base is None else base.model_dump(exclude={"phases"})
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        told = (*known.get("sources", ()), *sources)
        fields = {"frameworks": (), **known}
        fields |= {"date": day, "planner": __version__, "sources": tuple(dict.fromkeys(told))}
        return Calibration.model_validate({**fields, "phases": self.phases})


def times_of_rows(predictions: Iterable[RlPrediction]) -> list[PhaseTime]:
    """The measured and predicted times in the rows, without step times, memory and times that mix
    several kinds of phase."""
    found = []
    for one in predictions:
        for each in compared(one):
            kind = _kind(each.parts)
            if kind is not None and each.figure not in ("step", "memory"):
                found.append(PhaseTime(kind, one.row.place, each.predicted, each.measured))
    return found


def times_of_log(log: RlLog, costed: Costed) -> list[PhaseTime]:
    """The times of a log, compared with the costs of its run."""
    return times_of(log.timed, log.path.name, costed)


def times_of(times: Iterable[Timed], run: str, costed: Costed) -> list[PhaseTime]:
    """Measured times of phases compared with the costs of the run, for times that belong to one
    kind of phase."""
    found = []
    for timed in times:
        if not timed.phases:
            continue
        some = [one for one in costed.phases if one.name in timed.phases]
        predicted = costed.seconds(timed.phases)
        kind = _kind((KINDS[one.name], one.seconds) for one in some)
        if kind is not None and predicted > 0.0:
            found.append(PhaseTime(kind, run, predicted, timed.seconds))
    return found


def _kind(parts: Iterable[tuple[str, float]]) -> str | None:
    """The kind of phase that takes at least `_LEAST_SHARE` of a time; None if no kind does, or if
    the time is zero. `parts`: pairs of a kind and its seconds."""
    found: dict[str, float] = defaultdict(float)
    for kind, seconds in parts:
        found[kind] += seconds
    total = math.fsum(found.values())
    if total <= 0.0:
        return None
    most = max(found, key=lambda kind: found[kind])
    return most if found[most] >= _LEAST_SHARE * total else None


def learn(times: Sequence[PhaseTime], notes: Sequence[str], lengths: str = "") -> LearntPhases:
    """Fit factors to times; those of the same run and kind count as one. CannotTellError if there
    are none, UsageError for an impossible time."""
    for one in times:
        if abs(one.log) > math.log(_MOST_TIMES):
            raise UsageError(
                f"{one.run}: its measured {one.kind} of {one.measured_s:g} s is over "
                f"{_MOST_TIMES:g} times off what is predicted ({one.predicted_s:g} s): correct its "
                "unit or its configuration, or leave it out"
            )
    if not times:
        raise CannotTellError("no run states the time of a phase that is predicted")
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in times:
        logs[one.kind][one.run].append(one.log)
    phases = tuple(
        learnt(kind, [median(some) for some in of_runs.values()]) for kind, of_runs in logs.items()
    )
    return LearntPhases(phases, tuple(times), tuple(notes), lengths)


def lengths_text(log: RlLog) -> str:
    """The lengths in a log in the form of `--lengths`; "" if it has no mean."""
    mean = log.lengths.get("response_mean")
    if not mean:
        return ""
    prompt = round(log.lengths.get("prompt_mean") or 0.0)
    longest = round(log.lengths.get("response_max") or 0.0)
    most = f",max={longest}" if longest > mean else ""
    answers = f"lognormal:mean={round(mean)},sigma=0.85{most}"
    return f"prompt={prompt},response={answers}" if prompt else answers


def demand_one_gpu(clusters: Iterable[Cluster]) -> Cluster | None:
    """The largest cluster among the runs; UsageError if they ran on several kinds of GPU."""
    found = list(clusters)
    names = sorted({one.gpu.name for one in found})
    if len(names) > 1:
        raise UsageError(
            f"runs on {' and '.join(names)}: a calibration covers one cluster; give each GPU's "
            "runs to a command of their own"
        )
    return max(found, key=lambda one: one.num_gpus, default=None)
