"""Published comparisons of placements: engines sharing the trainer's GPUs or on separate ones,
samples of the newest weights or of older ones. Does the prediction put the two in the right order?

Two runs are compared if a source made both with the same version of its software, model, kind of
GPU and batch. On equal numbers of GPUs the faster step wins; otherwise the run whose samples cost
fewer GPU-seconds, as in a table of tokens per second and GPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from planner.evidence.rl.predict import RlPrediction
from planner.evidence.rl.rows import RlRow
from planner.evidence.runs.rows import grouped
from planner.job.quantities import stated

# Two runs closer than `TIE` count as equal, like repeats of one configuration (5 % within a batch
# of jobs); the prediction of a tie is right within `NEAR`, the scatter of repeats on other days.
TIE, NEAR = math.log(1.05), math.log(1.16)
_SAME = (
    "source", "software", "model", "gpu", "prompts_per_step", "samples_per_prompt",
    "prompt_len_max", "response_len_max", "train_precision", "rollout_precision",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs that a source made for comparison: `first` is colocated or samples with the newest
    weights, `second` is the alternative.

    `what`: the difference between them (placement or asynchrony). `measured`, `predicted`: ln of
    the time per sample of `second` divided by that of `first`; `predicted` is None if either run
    has no prediction. `by_gpu`: GPU-seconds per sample are compared instead of seconds.
    """

    first: RlRow
    second: RlRow
    what: str
    by_gpu: bool
    measured: float
    predicted: float | None

    @property
    def is_right(self) -> bool | None:
        """Whether the predicted order is the measured one; None without a prediction."""
        if self.predicted is None:
            return None
        if abs(self.measured) < TIE:
            return abs(self.predicted) < NEAR
        return self.measured * self.predicted > 0.0


def pairs(predictions: Sequence[RlPrediction]) -> list[Pair]:
    """Every published comparison among some rows, in their order."""
    timed = [one for one in predictions if seconds_a_sample(one.row) is not None]
    groups = grouped(timed, lambda one: _key(one.row)).values()
    return [pair for members in groups for pair in _pairs(members)]


def _key(row: RlRow) -> Hashable:
    stated = tuple(row.text(column) for column in _SAME)
    limit = row.noted("T-max seq N") or row.noted("seq max N")
    return *stated, row.fact("algorithm").replace("multi-turn", "").strip(), limit


def seconds_a_sample(row: RlRow) -> float | None:
    """Seconds of a step per sample; if the batch is not stated, of a whole step. None if the row
    states no time."""
    if step := row.number("step_s"):
        return step / (
            (row.integer("prompts_per_step") or 1) * (row.integer("samples_per_prompt") or 1)
        )
    rate = row.number("samples_per_s")
    return 1.0 / rate if rate else None


def _pairs(members: Sequence[RlPrediction]) -> Iterator[Pair]:
    """Each run with separate engine GPUs paired with the nearest colocated one, and each
    asynchronous run paired with a synchronous one of the same split."""
    for second in members:
        if second.row.is_separate:
            colocated = [one for one in members if one.row.text("placement") == "colocated"]
            if (first := _nearest(colocated, second)) is not None:
                yield _pair(first, second, "placement")
        if _behind(second.row):
            split = _split(second.row)
            newest = [one for one in members if _split(one.row) == split and not _behind(one.row)]
            if (first := _nearest(newest, second)) is not None:
                yield _pair(first, second, "asynchrony")


def _behind(row: RlRow) -> bool:
    """Whether samples come from older weights: a pipeline with staleness 0 waits for the newest
    ones."""
    return row.is_asynchronous and not row.says("asynchrony", r"staleness 0\)")


def _split(row: RlRow) -> Hashable:
    return row.is_separate, row.integer("train_gpus"), row.integer("rollout_gpus")


def _nearest(some: Sequence[RlPrediction], other: RlPrediction) -> RlPrediction | None:
    """The run, other than `other` itself, whose number of GPUs is nearest to that of `other`; among
    equals, one that can be predicted. None if there is no other run."""
    gpus = other.row.integer("num_gpus") or 1
    alike = [one for one in some if one is not other]
    return min(
        alike,
        key=lambda one: (
            abs(math.log((one.row.integer("num_gpus") or 1) / gpus)),
            one.error is not None,
        ),
        default=None,
    )


def _pair(first: RlPrediction, second: RlPrediction, what: str) -> Pair:
    gpus = [one.row.integer("num_gpus") or 1 for one in (first, second)]
    by_gpu = gpus[0] != gpus[1]
    more = math.log(gpus[1] / gpus[0]) if by_gpu else 0.0
    times = [stated(seconds_a_sample(one.row), 1.0) for one in (first, second)]
    steps = [one.costed.step_s if one.costed else None for one in (first, second)]
    predicted = math.log(steps[1] / steps[0]) + more if steps[0] and steps[1] else None
    measured = math.log(times[1] / times[0]) + more
    return Pair(first.row, second.row, what, by_gpu, measured, predicted)
