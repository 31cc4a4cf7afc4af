"""Costs of micro-batches of samples of unlike lengths: bytes of the longest, seconds of the mean.

A rank's memory has to hold the longest micro-batch that occurs, its time is a sum over all of them.
So pieces are costed twice, from the same op table by the same kernel: at the longest rows, and at
rows as they are on average. Of these the kernel is told a number and a length that have the mean
micro-batch's computed tokens and squared lengths:

    b' = tokens / l,  s' = l = squared lengths / tokens,  so that b'·s' = tokens, b'·s'² = squares

Attention is so costed at the length that a token attends to, and everything else by tokens. Ignores
that attention's rate is not the same for all lengths around l.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array, JobInputs
from planner.job.job import Job

# Costs of keys for numbers of a job.
Cost = Callable[[Array, JobInputs], Array]

# Columns of a piece that are seconds of a micro-batch.
TIMED = np.array(
    [
        *range(f.PIECE_FORWARD, f.PIECE_RECOMPUTE_EP + 1),
        f.PIECE_WEIGHT,
        f.PIECE_FORWARD_OFFLOAD,
        f.PIECE_BACKWARD_OFFLOAD,
        *range(f.PIECE_LINKS, f.PIECE_ISSUE_AGAIN + 1),
    ]
)
PASSES = [*f.FORWARD_COLUMNS, *f.BACKWARD_COLUMNS]


def with_computed(keys: Array, job: Job) -> Array:
    """The keys with the tokens of the longest micro-batch, and of one on average."""
    if job.samples.differ:
        for mbs in np.unique(keys[:, f.KEY["mbs"]]):
            row, of_size = job.row(int(mbs)), keys[:, f.KEY["mbs"]] == mbs
            keys[of_size, f.KEY["kept"]] = row.most / job.seq
            keys[of_size, f.KEY["computed"]] = row.computed / row.most
    return keys


def cost_samples(
    job: Job, inputs: JobInputs, keys: Array, cost: Cost, more_tokens: float = 1.0,
    longer: float = 1.0,
) -> Array:  # fmt: skip
    """Piece costs of keys [keys, pieces, PIECE_COLUMNS]. `more_tokens`, `longer`: factors on the
    tokens of a micro-batch, and on the length that they attend to."""
    costs = cost(keys, inputs)
    if not job.samples.differ:
        return costs
    for mbs in np.unique(keys[:, f.KEY["mbs"]]):
        rows = np.flatnonzero(keys[:, f.KEY["mbs"]] == mbs)
        timed, of_time = timed_keys(job, inputs, keys[rows], more_tokens, longer)
        costs[np.ix_(rows, np.arange(costs.shape[1]), TIMED)] = cost(timed, of_time)[..., TIMED]
    return costs


def timed_keys(
    job: Job, inputs: JobInputs, keys: Array, more_tokens: float = 1.0, longer: float = 1.0
) -> tuple[Array, JobInputs]:
    """Keys of one micro-batch size, and numbers of the job, as the kernel times them."""
    if not job.samples.differ:
        return keys, inputs
    mbs = int(keys[0, f.KEY["mbs"]])
    row = job.row(mbs)
    timed, length = keys.copy(), row.attended * longer
    timed[:, f.KEY["mbs"]] = mbs * row.computed * more_tokens / length
    timed[:, f.KEY["kept"]] = 1.0
    return timed, inputs._replace(seq=length)
