"""The rule on the global batch."""

from __future__ import annotations

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask
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
