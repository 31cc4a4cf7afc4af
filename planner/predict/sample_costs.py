"""Costs of micro-batches with samples of different lengths: bytes of the longest, mean seconds.

A rank's memory must have room for the longest micro-batch that occurs; its time is a sum over all
of them. So pieces are costed twice by the same kernel, from the same op table: at the longest rows
and at average rows. For the latter the kernel gets a number and a length of sequences that
reproduce the computed tokens and the squared lengths of a mean micro-batch:

    b' = tokens / l,  s' = l = squared lengths / tokens,  so that b'·s' = tokens, b'·s'² = squares

So attention is costed at the mean length to which a token attends, and the rest by tokens. Ignores
that attention's rate varies with length.

If the number of ranks that share a sample depends on its length (`planner.job.rank_groups`), a mean
micro-batch is a sum over kinds of passes, each costed on its number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost import fields as f
from planner.cost.codes import GROUP_CP
from planner.cost.tables import Array, JobInputs
from planner.job.job import Job
from planner.job.rank_groups import Pass, passes_of
from planner.predict.pictures import held_pictures, is_pictured, timed_pictures

# Function for the costs of keys, given inputs of a job and a factor on the patches of images.
Cost = Callable[[Array, JobInputs, float], Array]

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
# Columns of a key: its micro-batch; the ranks of its context-parallel group.
MBS = [f.KEY["mbs"]]
CP_RANKS = f.KEY["ranks"] + GROUP_CP
PASSES = [*f.FORWARD_COLUMNS, *f.BACKWARD_COLUMNS]


def with_computed(keys: Array, job: Job) -> Array:
    """The keys, changed in place: columns `kept` and `computed` get the tokens of the longest
    micro-batch and of a mean one. Unchanged if all samples have one length."""
    if job.samples.differ:
        for mbs in np.unique(keys[:, f.KEY["mbs"]]):
            row, same_size = job.row(int(mbs)), keys[:, f.KEY["mbs"]] == mbs
            keys[same_size, f.KEY["kept"]] = row.most / job.seq
            keys[same_size, f.KEY["computed"]] = row.computed / row.most
    return keys


def cost_samples(
    job: Job, inputs: JobInputs, keys: Array, cost: Cost, more_tokens: float = 1.0,
    longer: float = 1.0, more_images: float = 1.0,
) -> Array:  # fmt: skip
    """Piece costs of keys [keys, pieces, PIECE_COLUMNS]. Factors: `more_tokens` on the tokens of a
    micro-batch, `longer` on the length to which they attend, `more_images` on its patches."""
    if not (job.samples.differ or is_pictured(job)):
        return cost(keys, inputs, 1.0)
    sizes = keys[:, [f.KEY["mbs"], f.KEY["cp"]]] if job.samples.by_sample else keys[:, MBS]
    groups = [np.flatnonzero((sizes == size).all(axis=1)) for size in np.unique(sizes, axis=0)]
    costs = _held(job, inputs, keys, cost, groups)
    for rows in groups:
        pictures = timed_pictures(job, int(keys[rows[0], f.KEY["mbs"]])) * more_images
        timed = sum(
            weight * cost(*timed_by, pictures)[..., TIMED]
            for weight, timed_by in _parts(job, inputs, keys[rows], more_tokens, longer)
        )
        costs[np.ix_(rows, np.arange(costs.shape[1]), TIMED)] = timed
    return costs


def _held(
    job: Job, inputs: JobInputs, keys: Array, cost: Cost, groups: Sequence[NDArray[np.intp]]
) -> Array:
    """Costs at the longest micro-batch, with the most patches that any micro-batch has."""
    if not is_pictured(job):
        return cost(keys, inputs, 1.0)
    found = [
        cost(keys[rows], inputs, held_pictures(job, int(keys[rows[0], f.KEY["mbs"]])))
        for rows in groups
    ]
    costs = np.empty((len(keys), *found[0].shape[1:]))
    for rows, priced in zip(groups, found, strict=True):
        costs[rows] = priced
    return costs


def _parts(
    job: Job, inputs: JobInputs, keys: Array, more_tokens: float, longer: float
) -> Iterator[tuple[float, tuple[Array, JobInputs]]]:
    """Kinds of passes in a mean micro-batch, each as (number of times, (keys, inputs for
    timing))."""
    if not job.samples.by_sample:
        yield 1.0, timed_keys(job, inputs, keys, more_tokens, longer)
        return
    cp = int(keys[0, f.KEY["cp"]])
    for one in mean_passes(job, int(keys[0, f.KEY["mbs"]]), cp):
        length = one.attended * longer
        timed = keys.copy()
        timed[:, f.KEY["mbs"]] = one.ranks * one.tokens * more_tokens / length
        timed[:, [f.KEY["kept"], f.KEY["computed"]]] = 1.0
        timed[:, f.KEY["cp"]] = timed[:, CP_RANKS] = one.ranks
        timed[:, f.KEY["exchange"]] = np.minimum(timed[:, f.KEY["exchange"]], one.ranks)
        yield one.passes, (timed, inputs._replace(seq=length))


def mean_passes(job: Job, mbs: int, cp: int) -> tuple[Pass, ...]:
    """The passes of a rank in a mean micro-batch of `mbs` packs, in which each sample is split over
    the number of ranks that it needs."""
    lengths, packed = job.samples.lengths, job.samples.balance == "dynamic-cp"
    if lengths is None:
        return ()
    found = passes_of(lengths, job.seq / cp, mbs * job.row(mbs).computed, packed=packed)
    return tuple(one._replace(ranks=min(one.ranks, cp), passes=one.passes / cp) for one in found)


def timed_keys(
    job: Job, inputs: JobInputs, keys: Array, more_tokens: float = 1.0, longer: float = 1.0
) -> tuple[Array, JobInputs]:
    """Copies of the keys, all of one micro-batch size, and of the job's inputs, changed so that the
    kernel computes the time of a mean micro-batch (see the module docstring). Unchanged if all
    samples have one length."""
    if not job.samples.differ:
        return keys, inputs
    mbs = int(keys[0, f.KEY["mbs"]])
    timed, length = keys.copy(), job.row(mbs).attended * longer
    tokens = mbs * job.seq * keys[:, f.KEY["kept"]] * keys[:, f.KEY["computed"]]
    timed[:, f.KEY["mbs"]] = tokens * more_tokens / length
    timed[:, f.KEY["kept"]] = 1.0
    return timed, inputs._replace(seq=length)
