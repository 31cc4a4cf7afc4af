"""A micro-batch as MaxText counts it: sequences a GPU, over all GPUs, also those of one rank.

Source: MaxText 0.2.5, configs/types.py (calculate_global_batch_sizes), layers/pipeline.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.predict.plan import Degrees


@dataclass(frozen=True, slots=True)
class Batch:
    """`per_gpu`: sequences of a forward pass over the GPUs; `accumulated`: such passes a step;
    `microbatches`: those that a pipeline cuts one into."""

    per_gpu: float
    accumulated: int
    microbatches: int


def batch_of(degrees: Degrees) -> Batch:
    """A pipeline takes all micro-batches of a step in one pass."""
    passes = degrees.grad_acc if degrees.pp > 1 else 1
    per_gpu = degrees.mbs * degrees.dp * passes / degrees.gpus
    return Batch(per_gpu, degrees.grad_acc // passes, passes)


def tiles(microbatches: int, pp: int) -> int:
    """Pieces in which the loss makes its logits, so that each is of one micro-batch: a pipeline
    makes those of all micro-batches at once, divided over its stages."""
    return max(1, microbatches // pp) if pp > 1 else 1


def micro_batch(per_gpu: float, gpus: int, dp: int, microbatches: int) -> int | None:
    """Sequences of a rank's micro-batch; None where that is no whole number."""
    # As MaxText does: cut to a whole number of sequences.
    whole = int(gpus * per_gpu)
    return whole // (dp * microbatches) if whole and whole % (dp * microbatches) == 0 else None
