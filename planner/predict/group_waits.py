"""How long ranks wait if context-parallel groups are chosen by the samples' lengths.

The schedulers of `planner.job.rank_groups` get a step's samples at even quantiles of the length
distribution; the slowest rank of each micro-batch (`dynamic-cp`) or phase (`hybrid-cp`) is compared
with a mean one. A rank takes c·passes + a·tokens + b·squares seconds, as in
`planner.predict.unequal`. Under `dynamic-cp` all ranks have equally many tokens, so only squares
differ; a step that does not fill a micro-batch counts as a fraction of one.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.job.rank_groups import drawn, packed_squares, ranks_needed, stacked_loads
from planner.job.samples import Lengths

# Shares of a rank's seconds are rounded to this precision when searching for the slowest rank.
_ROUNDED = 0.05


def group_seconds(job: Job, shapes: Array, key: Array, spent: Array) -> Array:
    """Seconds in each shape's step during which ranks wait for slower ones, an array with one value
    per shape. `key`: the row of the key table for each shape; `spent`: seconds of its mean
    micro-batch in all pieces of the model, in three columns: the parts that grow with tokens, with
    squared lengths and with the number of passes."""
    dp, pp = shapes[:, f.SHAPE["dp"]], shapes[:, f.SHAPE["pp"]]
    filling = (pp - 1.0) / np.maximum(1.0, shapes[:, f.SHAPE["vpp"]])
    shares = np.round(spent / spent.sum(axis=1, keepdims=True) / _ROUNDED) * _ROUNDED
    table = np.column_stack(
        [key[:, f.KEY["mbs"]], key[:, f.KEY["cp"]], shapes[:, f.SHAPE["grad_acc"]], dp, filling]
    )
    rows, inverse = np.unique(np.hstack([table, shares]), axis=0, return_inverse=True)
    found = np.array([_waits(job, row) for row in rows]).reshape(-1, 3)[inverse.ravel()]
    seconds: Array = np.maximum(0.0, (found * spent).sum(axis=1)) / pp
    return seconds


def _waits(job: Job, row: Array) -> tuple[float, float, float]:
    mbs, cp, micro_batches, dp = (int(number) for number in row[:4])
    lengths, most = job.samples.lengths, job.seq / cp
    if lengths is None:
        return 0.0, 0.0, 0.0
    packs = mbs * micro_batches * dp
    number = packs * job.row(mbs).samples
    if job.samples.balance == "dynamic-cp":
        excess = packed_excess(lengths, number, dp * cp, most, micro_batches, float(row[4]))
        return 0.0, excess, 0.0
    return stacked_excess(lengths, number, dp * cp, most, micro_batches, tuple(row[5:]))


@cache
def packed_excess(
    lengths: Lengths, samples: float, ranks: int, most: float, micro_batches: int, filling: float
) -> float:
    """Time that ranks wait in a step, in units of the attention time of a mean micro-batch: the
    squared lengths of the slowest ranks minus the mean, divided by those of a mean micro-batch.
    `filling`: (p - 1)/v of a pipeline of p stages and v blocks per stage; the time to fill it
    follows the slowest micro-batch of all."""
    step, part = drawn(lengths, samples)
    of_step, slowest, count = packed_squares(step, ranks * part, most)
    mean = float((step**2).sum()) / (ranks * part)
    waits = max(0.0, of_step / mean - 1.0) * micro_batches
    return waits + filling * max(0.0, slowest * count / mean - 1.0) * micro_batches / count


@cache
def stacked_excess(
    lengths: Lengths, samples: float, ranks: int, most: float, micro_batches: int,
    shares: tuple[float, float, float],
) -> tuple[float, float, float]:  # fmt: skip
    """(tokens, squared lengths, passes) of the slowest ranks minus those of a mean rank, summed
    over the phases and micro-batches of a step and divided by those of a mean micro-batch.
    `shares`: the share of a rank's seconds that each of the three takes, which decides which rank
    is slowest."""
    step, part = drawn(lengths, samples)
    whole_ranks = max(1, round(ranks * part))
    needed = sum(min(whole_ranks, ranks_needed(length, most)) for length in step)
    mean = np.array([step.sum(), (step**2).sum(), needed]) / whole_ranks
    slowest = np.zeros(3)
    for phase in stacked_loads(step, whole_ranks, most):
        loads = np.array(phase) / mean[:, None]
        slowest += loads[:, int((np.array(shares) @ loads).argmax())]
    tokens, squares, passes = (slowest - 1.0) * micro_batches
    return float(tokens), float(squares), float(passes)
