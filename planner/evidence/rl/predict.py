"""Predict measured runs of reinforcement learning over the facts that their rows leave open.

A row is predicted with the usual values; then once for each other value of each open fact, one at a
time. The spread of these predictions, in ln, is the deviation that the fact causes. Deviations of
several facts add up in squares, and widen the error bar in addition to the errors of the phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardware.schema import Cluster
from planner.evidence.rl.costing import Costed, cost_run
from planner.evidence.rl.lengths import OPEN_DEVIATION, SIGMAS
from planner.evidence.rl.mapping import RlMapped, map_rl
from planner.evidence.rl.rows import Figure, RlRow, Timed
from planner.evidence.rl.settings import USUAL, Taken, other_gpus
from planner.evidence.runs.model import UnpredictableRowError
from planner.job.errors import CannotTellError, UsageError
from planner.job.quantities import GIB
from planner.predict.rl.errors import KINDS, Ends, joined, kind_ends, learnt_phase, rl_errors
from planner.predict.rl.plan import Phase

# Three values with the mean and variance of a normal distribution: the middle one with a weight of
# two thirds, the others this many standard deviations from it (Gauss-Hermite quadrature of order
# 3).
_OUTER, _MIDDLE_WEIGHT = math.sqrt(3.0), 2.0 / 3.0
RESPONSE_LENGTH = "response length"
# Differences in ln are limited to this: no run with a larger one would have worked.
_MOST_LOG = 3.0
_BESIDE_TORCH = ("context", "communication", "process", "beside torch")


@dataclass(frozen=True, slots=True)
class OpenValue:
    """A possible value of an open fact, other than the usual one. `fact`: its name; `words`: the
    assumption in words; `taken`: the assumption for the mapping; `weight`: its share of the weights
    of all values, the usual one included."""

    fact: str
    words: str
    taken: Taken
    weight: float


@dataclass(frozen=True)
class RlPrediction:
    """A row and its prediction; `error`: why there is none. `others`: for each open fact, its other
    values with their weights and costs."""

    row: RlRow
    mapped: RlMapped | None = None
    costed: Costed | None = None
    others: Mapping[str, tuple[tuple[OpenValue, Costed], ...]] = field(default_factory=dict)
    error: str | None = None

    @property
    def open_facts(self) -> tuple[str, ...]:
        """The facts that the row leaves open and that were varied."""
        return tuple(self.others)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one run: predicted and measured in seconds or bytes, the 80 % interval, and for
    each open fact the standard deviation in ln that it causes. `parts`: kinds of phase with their
    seconds."""

    figure: Figure
    predicted: float
    measured: float
    ends: Ends
    open: Mapping[str, float]
    parts: tuple[tuple[str, float], ...]

    @property
    def error(self) -> float:
        """Signed error relative to the measured value."""
        return self.predicted / self.measured - 1.0

    @property
    def log(self) -> float:
        """ln(measured / predicted)."""
        return math.log(self.measured / self.predicted)

    @property
    def deviation(self) -> float:
        """Standard deviation in ln from all open facts."""
        return math.sqrt(math.fsum(one**2 for one in self.open.values()))

    @property
    def low(self) -> float:
        """The lower end of its interval."""
        return self.predicted * math.exp(-self.ends.low)

    @property
    def high(self) -> float:
        """The upper end of its interval."""
        return self.predicted * math.exp(self.ends.high)

    @property
    def covered(self) -> bool:
        """Whether the interval contains the measured value."""
        return self.low <= self.measured <= self.high


Cost = Callable[[RlMapped], Costed]


def predict_rl(
    rows: Iterable[RlRow],
    cost: Cost = cost_run,
    *,
    usual_alone: bool = False,
    cluster: Cluster | None = None,
) -> list[RlPrediction]:
    """A prediction per row, in order. `cost`: the model that costs a run; `usual_alone`: do not try
    other values of open facts; `cluster`: its calibration applies to rows on its GPU."""
    return [_predicted(row, cost, cluster, usual_alone=usual_alone) for row in rows]


def predicted_of(
    row: RlRow, cost: Cost = cost_run, taken: Taken = USUAL, cluster: Cluster | None = None
) -> RlPrediction:
    """The prediction of a row with the values that are `taken` for its open facts."""
    try:
        mapped = map_rl(row, taken).learnt(cluster)
        return RlPrediction(row, mapped, cost(mapped))
    except (UnpredictableRowError, UsageError, CannotTellError, ValueError) as error:
        return RlPrediction(row, error=str(error))


def _predicted(
    row: RlRow, cost: Cost, cluster: Cluster | None, *, usual_alone: bool
) -> RlPrediction:
    usual = predicted_of(row, cost, USUAL, cluster)
    if usual.mapped is None or usual_alone:
        return usual
    others: dict[str, tuple[tuple[OpenValue, Costed], ...]] = {}
    for value in open_values(usual.mapped):
        other = predicted_of(row, cost, value.taken, cluster).costed
        if other is not None:
            others[value.fact] = (*others.get(value.fact, ()), (value, other))
    return replace(usual, others=others)


def open_values(mapped: RlMapped) -> list[OpenValue]:
    """Values other than the usual ones that the row's open facts may have."""
    row, alone = mapped.row, mapped.row.is_trainer_alone
    found: list[OpenValue] = []
    if row.is_transfer_alone:
        return _gpus(row)
    if mapped.lengths.counted == "open":
        outer = (1.0 - _MIDDLE_WEIGHT) / 2.0
        for sign in (-1.0, 1.0):
            scale = math.exp(sign * _OUTER * OPEN_DEVIATION)
            words = f"answers of {scale:.1f} times the length"
            found.append(OpenValue(RESPONSE_LENGTH, words, Taken(response_scale=scale), outer))
    if not alone:
        low, _, high = SIGMAS
        for sigma in (low, high):
            words = f"lengths of answers that spread by {sigma} in ln"
            found.append(OpenValue("spread of lengths", words, Taken(sigma=sigma), 0.25))
    if row.resamples:
        twice = 2.0 * mapped.job.rollout.batches
        found.append(
            OpenValue("batches of generation", f"{twice:g} batches", Taken(batches=twice), 0.3)
        )
    return [*found, *_trainers(mapped), *_gpus(row)]


def _trainers(mapped: RlMapped) -> list[OpenValue]:
    """Other values of recomputation and offload, if the row does not state them."""
    row, layout = mapped.row, mapped.layout
    found = []
    if not row.text("recompute"):
        other = "none" if layout.trainer.recompute == "full" else "full"
        taken = Taken(recompute=other)
        found.append(OpenValue("recompute", f"recompute {other}", taken, 0.4))
    if layout.placement == "colocated" and not (row.text("train_offload") or row.is_trainer_alone):
        leaves = not layout.trainer_leaves
        words = "the trainer leaves" if leaves else "the trainer stays"
        found.append(OpenValue("offload", words, Taken(leaves=leaves), 0.5))
    return found


def _gpus(row: RlRow) -> list[OpenValue]:
    if row.text("gpu"):
        return []
    return [OpenValue("gpu", name, Taken(gpu=name), 0.4) for name in other_gpus(row)]


def compared(prediction: RlPrediction) -> list[Compared]:
    """Every figure of a row that is both measured and predicted, with its interval."""
    if prediction.costed is None or prediction.mapped is None:
        return []
    mapped, costed = prediction.mapped, prediction.costed
    times = [_compared_time(prediction, mapped, costed, one) for one in prediction.row.timed()]
    return [one for one in (*times, _compared_memory(prediction, costed)) if one is not None]


def _compared_time(
    prediction: RlPrediction, mapped: RlMapped, costed: Costed, timed: Timed
) -> Compared | None:
    parts = _parts(costed, timed)
    seconds = _seconds(costed, timed)
    if seconds is None or seconds <= 0.0 or not parts:
        return None
    spread = _deviations(prediction, seconds, lambda one: _seconds(one, timed))
    bars = [(_bar(mapped, kind), each) for kind, each in parts]
    ends = joined(bars, rl_errors().shared)
    return _made(timed.figure, seconds, timed.seconds, ends, spread, tuple(parts))


def _bar(mapped: RlMapped, kind: str) -> Ends:
    """The error bar of a kind of phase: from the cluster's own runs if it has any, else from other
    sources."""
    if learnt_phase(mapped.job, kind) is not None:
        return kind_ends(mapped.job, kind)
    return rl_errors().ends(kind, mapped.row.source)


def _made(
    figure: Figure,
    predicted: float,
    measured: float,
    ends: Ends,
    spread: Mapping[str, float],
    parts: tuple[tuple[str, float], ...],
) -> Compared:
    whole = math.sqrt(math.fsum(one**2 for one in spread.values()))
    return Compared(figure, predicted, measured, ends.and_also(whole), spread, parts)


def _seconds(costed: Costed, timed: Timed) -> float | None:
    return costed.seconds(timed.phases) if timed.phases else costed.step_s


def _parts(costed: Costed, timed: Timed) -> list[tuple[str, float]]:
    """The phases that a figure covers, as kinds with their seconds."""
    if not timed.phases:
        chosen: Sequence[Phase] = costed.binding or costed.phases
    else:
        chosen = [one for one in costed.phases if one.name in timed.phases]
    return [(KINDS[one.name], one.seconds) for one in chosen if one.seconds > 0.0]


def _deviations(
    prediction: RlPrediction, base: float, of: Callable[[Costed], float | None]
) -> dict[str, float]:
    """For each open fact, the standard deviation of ln(figure) that its possible values cause.
    Facts that change nothing are left out. `base`: the figure with the usual values; `of`: gives
    the figure of a costed run, None if it has none."""
    found = {}
    for fact, values in prediction.others.items():
        logs = [
            (value.weight, min(_MOST_LOG, max(-_MOST_LOG, math.log(other / base))))
            for value, costed in values
            if (other := of(costed))
        ]
        mean = math.fsum(weight * log for weight, log in logs)
        squared = math.fsum(weight * log**2 for weight, log in logs)
        if (variance := squared - mean**2) > 0.0:
            found[fact] = math.sqrt(variance)
    return found


def _compared_memory(prediction: RlPrediction, costed: Costed) -> Compared | None:
    """The comparison of peak memory; None for totals that the source computed rather than
    measured."""
    row, predicted = prediction.row, memory_bytes(prediction.row, costed)
    measured = row.number("peak_mem_gib")
    if not measured or not predicted or row.says("mem_kind", "computed"):
        return None
    spread = _deviations(prediction, predicted, lambda one: memory_bytes(row, one))
    ends = rl_errors().ends("memory", row.source)
    return _made("memory", predicted, measured * GIB, ends, spread, (("memory", predicted),))


def memory_bytes(row: RlRow, costed: Costed) -> float:
    """Predicted bytes of the kind that a row measured: in the update only if the row says so, only
    torch's allocator if it says so, otherwise everything on the fullest GPU."""
    kind = row.fact("mem_kind")
    training = "training" in kind or row.is_trainer_alone
    phases = [one for one in costed.phases if not training or one.name == "update"]
    return max((_held(one, kind) for one in phases), default=0.0)


def _held(phase: Phase, kind: str) -> float:
    """Bytes in use in one phase; torch does not count contexts and communicators."""
    torch = "torch" in kind
    return math.fsum(
        size
        for name, size in phase.held.items()
        if not (torch and any(word in name for word in _BESIDE_TORCH))
    )
