"""The rule on a batch ramp: every batch of it is one that the layout can run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from constraints.batch import accumulation, batch_size
from constraints.context import RuleContext
from constraints.numbers import BatchGoal, Columns, Mask
from constraints.pipeline import interleaving_microbatches, microbatches_fill_pipeline
from constraints.rule import shape_rule
from constraints.schedule import schedule_microbatches

# What a step's number of micro-batches has to obey.
_OF_EACH_STEP = (
    batch_size, interleaving_microbatches, microbatches_fill_pipeline, schedule_microbatches,
)  # fmt: skip


def ramp_columns(columns: Columns, ctx: RuleContext, goal: BatchGoal) -> Columns:
    """The columns at another batch of the ramp: gradient accumulation follows."""
    count = accumulation(columns, replace(ctx, batch=goal))
    return {**columns, "grad_acc": count, "gbs": columns["mbs"] * columns["dp"] * count}


def _wording(ctx: RuleContext) -> str:
    if not ctx.ramp:
        return "a batch ramp's batches must be multiples of dp·mbs"
    goals = [goal.sequences for goal in (*ctx.ramp, ctx.batch)]
    near = "" if ctx.batch.exact else f" within {ctx.batch.tolerance:.1%}"
    fix = f"; dp·mbs must divide {math.gcd(*goals):,}" if ctx.batch.exact else ""
    return (
        f"every batch of the ramp ({goals[0]:,} to {goals[-1]:,} sequences) must be a multiple of "
        f"dp·mbs{near}, with as many micro-batches as the schedule needs{fix}, or give another "
        "--batch-ramp"
    )


@shape_rule(
    "batch-ramp",
    "every batch of a ramp is a multiple of dp·mbs, with micro-batches that the schedule can run",
    source="Megatron-LM core 0.19, num_microbatches_calculator.py, update: the current global "
    "batch is divisible by micro-batch times data-parallel size",
    wording=_wording,
)
def batch_ramp(columns: Columns, ctx: RuleContext) -> Mask:
    mask: Mask = np.ones(columns["tp"].shape, dtype=np.bool_)
    for goal in ctx.ramp:
        at, there = replace(ctx, batch=goal), ramp_columns(columns, ctx, goal)
        for rule in _OF_EACH_STEP:
            mask &= rule.mask(there, at)
    return mask
