"""Rules on the global batch, for every step of a batch ramp too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import BatchGoal, Columns, IntArray, Mask
from constraints.pipeline import (
    interleaving_microbatches,
    microbatches_fill_pipeline,
    schedule_microbatches,
)
from constraints.rule import shape_rule


def _wording(ctx: RuleContext) -> str:
    batch = ctx.batch
    if batch.exact:
        return f"mbs·grad_acc·dp must equal the global batch of {batch.sequences:,} sequences"
    return (
        f"mbs·grad_acc·dp must be within {batch.tolerance * 100:.1f} % "
        f"of the global batch of {batch.sequences:,} sequences"
    )


@shape_rule(wording=_wording)
def batch_size(columns: Columns, ctx: RuleContext) -> Mask:
    difference = np.abs(columns["gbs"] - ctx.batch.sequences)
    made = columns["mbs"] * columns["grad_acc"] * columns["dp"] == columns["gbs"]
    mask: Mask = made & (difference <= ctx.batch.largest_difference)
    return mask


def accumulation(columns: Columns, ctx: RuleContext) -> IntArray:
    """Micro-batches per step that bring the global batch nearest to the goal.

    Interleaved schedules that run groups of pp get the nearest multiple of pp if it stays within
    the tolerance.
    """
    step = columns["mbs"] * columns["dp"]
    nearest = _nearest_multiple(ctx.batch.sequences, step)
    if ctx.framework.interleaved_microbatches == "any":
        return nearest
    grouped = columns["pp"] * _nearest_multiple(ctx.batch.sequences, step * columns["pp"])
    close = np.abs(grouped * step - ctx.batch.sequences) <= ctx.batch.largest_difference
    return np.where((columns["vpp"] > 1) & close, grouped, nearest)


def _nearest_multiple(goal: int, step: IntArray) -> IntArray:
    """The factor, at least 1, that brings `step` times the factor nearest to `goal`."""
    counts: IntArray = np.maximum(1, (2 * goal + step) // (2 * step))
    return counts


# Rules on a step's number of micro-batches.
_OF_EACH_STEP = (
    batch_size, interleaving_microbatches, microbatches_fill_pipeline, schedule_microbatches,
)  # fmt: skip


def ramp_columns(columns: Columns, ctx: RuleContext, goal: BatchGoal) -> Columns:
    """The columns for another batch of the ramp, which changes gradient accumulation."""
    count = accumulation(columns, replace(ctx, batch=goal))
    return {**columns, "grad_acc": count, "gbs": columns["mbs"] * columns["dp"] * count}


def _divisor(ctx: RuleContext) -> str:
    """The number that dp·mbs must divide so that every batch of the ramp is exact."""
    goals = [goal.sequences for goal in (*ctx.ramp, ctx.batch)]
    return f"; dp·mbs must divide {math.gcd(*goals):,}" if ctx.batch.exact else ""


def _ramp_wording(ctx: RuleContext) -> str:
    if not ctx.ramp:
        return "a batch ramp's batches must be multiples of dp·mbs"
    goals = [goal.sequences for goal in (*ctx.ramp, ctx.batch)]
    near = "" if ctx.batch.exact else f" within {ctx.batch.tolerance * 100:.1f} %"
    fix = _divisor(ctx)
    return (
        f"every batch of the ramp ({goals[0]:,} to {goals[-1]:,} sequences) must be a multiple of "
        f"dp·mbs{near}, with as many micro-batches as the schedule needs{fix}, or give another "
        "--batch-ramp"
    )


def _ramp_breach(columns: Columns, ctx: RuleContext) -> str:
    """The first batch of the ramp that a shape cannot run, and the rule it breaks."""
    for goal in ctx.ramp:
        at, there = replace(ctx, batch=goal), ramp_columns(columns, ctx, goal)
        for rule in _OF_EACH_STEP:
            if not rule.mask(there, at)[0]:
                count = int(there["grad_acc"][0])
                fix = _divisor(ctx) if rule is batch_size else ""
                return (
                    f"the ramp's batch of {goal.sequences:,} sequences, {count:,} micro-batches at "
                    f"dp·mbs {int(there['dp'][0] * there['mbs'][0]):,}: {rule.explain(at)}{fix}"
                )
    return _ramp_wording(ctx)


@shape_rule(wording=_ramp_wording, breach=_ramp_breach)
def batch_ramp(columns: Columns, ctx: RuleContext) -> Mask:
    mask: Mask = np.ones(columns["tp"].shape, dtype=np.bool_)
    for goal in ctx.ramp:
        at, there = replace(ctx, batch=goal), ramp_columns(columns, ctx, goal)
        for rule in _OF_EACH_STEP:
            mask &= rule.mask(there, at)
    return mask
