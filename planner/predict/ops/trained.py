"""FLOP and parameters of a model that is trained in part: sums over the rows that are trained.

A frozen product has a gradient of its input only, so a trained token costs two forward passes of it
instead of three; rows below which nothing is trained have no backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.cost.codes import OpKind
from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.predict.ops.context import OpContext, piece_counts
from planner.predict.ops.rows import Op
from planner.predict.ops.table import (
    TRAINED,
    TRAINED_ATTENTION,
    flop_per_token,
    forward_share,
    least_flop_per_token,
    op_flop,
    parameter_count,
    pieces,
)

# FLOP of a backward over those of its forward, for each gradient: a product has one for its input
# and one for its weights; attention and scans have two for inputs.
_RETURNED = 1.0


@dataclass(frozen=True, slots=True)
class TrainedFlop:
    """FLOP of one trained token without recomputation (`total`), and that number divided by the
    FLOP of one forward pass (`passes`: 3 if all weights are trained)."""

    total: float
    passes: float


def trained_flop(job: Job, attended: float, *, causal: bool = False) -> TrainedFlop:
    """Model FLOP of one trained token that attends to `attended` tokens; see `flop_per_token`."""
    read = sum(_read_flop(job, attended, causal=causal))
    if job.tuning.trains_all:
        total = flop_per_token(job.model, attended, causal)
        if not read:
            return TrainedFlop(total, TRAINED)
        return TrainedFlop(total + read, (total + read) / (total / TRAINED + read))
    forward = total = read
    for op, count in _rows(job):
        flop = count * op_flop(op, attended) * forward_share(op, causal=causal)
        forward += flop
        total += flop * (1.0 + _backward(op))
    return TrainedFlop(total, total / forward)


def least_trained_flop(job: Job, attended: float) -> tuple[float, float]:
    """Least FLOP that a step executes per trained token; see `least_flop_per_token`."""
    low, wide = _read_flop(job, attended, causal=True)
    if job.tuning.trains_all:
        trained_low, trained_wide = least_flop_per_token(job.model, attended)
        return low + trained_low, wide + trained_wide
    for op, count in _rows(job):
        flop = count * op_flop(op, attended) * forward_share(op, causal=True)
        if op.is_product and op.low_precision:
            low += flop * (1.0 + _backward(op))
        elif op.kind is OpKind.ATTENTION and op.returns:
            wide += flop * TRAINED_ATTENTION
        else:
            wide += flop * (1.0 + _backward(op))
    return low, wide


def _read_flop(job: Job, attended: float, *, causal: bool) -> tuple[float, float]:
    """FLOP of models that a step reads forward (reference, teacher, the policy itself) per trained
    token: (linear layers that may run in 8 or 4 bits, others)."""
    low = wide = 0.0
    for read in job.reads:
        model = read.model or job.model
        context = OpContext(model, job.framework, job.seq)
        for op, count in _counted(model, context):
            flop = read.times * count * op_flop(op, attended) * forward_share(op, causal=causal)
            if op.is_product and op.low_precision:
                low += flop
            else:
                wide += flop
    return low, wide


def _backward(op: Op) -> float:
    """FLOP of a row's backward divided by those of its forward: 2 in general, 1 for a product whose
    weights are frozen, 0 for a row without backward."""
    if not op.returns:
        return 0.0
    return _RETURNED + (op.derives if op.is_product else _RETURNED)


@dataclass(frozen=True, slots=True)
class HeldParameters:
    """Parameters of a model with its adapters: the trained ones, and all."""

    trained: int
    total: int

    @property
    def share(self) -> float:
        """Share of the parameters that is trained."""
        return self.trained / self.total


def held_parameters(job: Job) -> HeldParameters:
    """Parameters that a job trains, and all that it holds, without multi-token prediction."""
    if job.tuning.trains_all:
        total = parameter_count(job.model).total
        return HeldParameters(total, total)
    trained = total_held = 0.0
    for op, count in _rows(job):
        total_held += count * op.parameter_count
        trained += count * op.parameter_count * op.trains
    return HeldParameters(round(trained), round(total_held))


def _rows(job: Job) -> Iterator[tuple[Op, int]]:
    context = OpContext(job.model, job.framework, job.seq, tuning=job.tuning)
    yield from _counted(job.model, context)


def _counted(model: ModelSpec, context: OpContext) -> Iterator[tuple[Op, int]]:
    """Each row and the number of times it occurs in the model, without multi-token prediction."""
    counts = piece_counts(model)[: len(model.piece_kinds) + 2]
    for piece, count in zip(pieces(context), counts, strict=False):
        for op in piece.ops:
            yield op, count
