"""The rule on the global batch."""

from __future__ import annotations

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import Columns, IntArray, Mask
from constraints.rule import shape_rule


def _wording(ctx: RuleContext) -> str:
    batch = ctx.batch
    if batch.exact:
        return f"mbs·grad_acc·dp must equal the global batch of {batch.sequences:,} sequences"
    return (
        f"mbs·grad_acc·dp must be within {batch.tolerance:.1%} "
        f"of the global batch of {batch.sequences:,} sequences"
    )


@shape_rule(
    "batch-size",
    "the global batch is the one asked for: exactly, or the nearest that mbs·dp divides, within "
    "the tolerance",
    source="gbs = mbs·grad_acc·dp: Megatron-LM core 0.19, num_microbatches_calculator.py; "
    "DeepSpeed train_batch_size",
    wording=_wording,
)
def batch_size(columns: Columns, ctx: RuleContext) -> Mask:
    difference = np.abs(columns["gbs"] - ctx.batch.sequences)
    made = columns["mbs"] * columns["grad_acc"] * columns["dp"] == columns["gbs"]
    mask: Mask = made & (difference <= ctx.batch.largest_difference)
    return mask


def accumulation(columns: Columns, ctx: RuleContext) -> IntArray:
    """Micro-batches per step that bring the batch nearest to the goal.

    Interleaved schedules that run groups of pp get the nearest multiple of pp, where that
    stays within the tolerance.
    """
    step = columns["mbs"] * columns["dp"]
    nearest = _nearest_multiple(ctx.batch.sequences, step)
    if ctx.framework.interleaved_microbatches == "any":
        return nearest
    grouped = columns["pp"] * _nearest_multiple(ctx.batch.sequences, step * columns["pp"])
    close = np.abs(grouped * step - ctx.batch.sequences) <= ctx.batch.largest_difference
    return np.where((columns["vpp"] > 1) & close, grouped, nearest)


def _nearest_multiple(goal: int, step: IntArray) -> IntArray:
    """The factor, at least 1, whose multiple of `step` is nearest to `goal`."""
    counts: IntArray = np.maximum(1, (2 * goal + step) // (2 * step))
    return counts
