"""How long ranks wait for those whose samples need more work.

A micro-batch takes w = c + a·t + b·q + p·i seconds for its tokens t, squared lengths q and image
patches i, each treated separately: with images the sum of maxima is an upper bound on the waiting.
Ranks that share the data of a step wait for the slowest: at the end of the step, or at each
micro-batch if they exchange weights or tokens in every layer (ZeRO-3, expert parallelism). In a
pipeline, micro-batches follow each other through equal stages in sum(w) + (p - 1)/v · max(w) (a
flow shop whose jobs take the same time on every machine). So for m micro-batches on n ranks, of
which g run in step,

    unequal = m·(E[max_n/g of mean_m of max_g of w] - E[w]) + (p - 1)/v·(E[max_mn of w] - E[w])

in seconds of a stage, where means and maxima are over independent draws from the distribution of w.
The rank with the largest sum need not have the largest micro-batch: taking both maxima overstates
the waiting by up to 7 % (`tests/predict/test_unequal.py` simulates ranks).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.job.order_statistics import sum_of
from planner.job.sample_rows import SORTED_BATCHES, longest_classes, packs_of
from planner.job.samples import Lengths, Samples
from planner.predict.group_waits import group_seconds
from planner.predict.pictures import is_pictured
from planner.predict.sample_costs import PASSES

# Function for the piece costs of keys with a larger micro-batch
# (`planner.predict.sample_costs.cost_samples`).
Price = Callable[..., Array]

# Elasticities come from comparing with micro-batches that are larger by this factor.
_STEP = 1.25


class Waiting(NamedTuple):
    """Waiting of a step for tokens, squared lengths and image patches: for each, the maximum over
    ranks minus the mean, summed over the step and divided by the amount in one mean micro-batch."""

    tokens: float
    squares: float
    patches: float = 0.0


def waiting(
    distribution: tuple[Array, Array], draws: int, micro_batches: int, ranks: int, in_step: int,
    filling: float,
) -> float:  # fmt: skip
    """Seconds that ranks wait in a step, in units of a mean micro-batch (see the module docstring).
    `draws`: number of draws from the distribution per micro-batch; `filling`: (p - 1)/v."""
    micro_batch = sum_of(*distribution, draws).largest_of(in_step)
    if len(micro_batch.values) == 1:
        return 0.0
    sums = sum_of(micro_batch.values + 1.0, micro_batch.shares, micro_batches)
    step_excess = (1.0 + micro_batch.mean) * (1.0 + sums.largest_of(ranks / in_step).mean) - 1.0
    longest = micro_batch.largest_of(micro_batches * ranks / in_step).mean
    return max(0.0, micro_batches * step_excess + filling * longest)


@cache
def waits(
    samples: Samples, seq: int, mbs: int, micro_batches: int, ranks: int, in_step: int,
    filling: float,
) -> Waiting:  # fmt: skip
    """Waiting for tokens, squared lengths and patches of the job's samples (see `waiting`); all
    zero if the samples do not differ in length."""
    lengths = samples.lengths
    if lengths is None or not samples.differ:
        return Waiting(0.0, 0.0)
    schedule = micro_batches, ranks, in_step, filling
    patches = _waiting_for_images(samples, lengths, seq, mbs, schedule)
    return _waits_of_tokens(samples, lengths, seq, mbs, schedule)._replace(patches=patches)


# (micro_batches, ranks, in_step, filling) of `waiting`.
_Schedule = tuple[int, int, int, float]


def _waiting_for_images(
    samples: Samples, lengths: Lengths, seq: int, mbs: int, schedule: _Schedule
) -> float:
    """Result of `waiting` for image patches, which come with their samples, in packs or one sample
    a row; 0 if the samples have no images or the ranks are balanced by tokens."""
    if not lengths.mean_patches or samples.balance == "tokens":
        return 0.0
    if samples.is_packed:
        patches = packs_of(lengths, seq, samples.packer).patches
        even = np.full(len(patches), 1.0 / len(patches))
        return waiting((patches, even), mbs, *schedule) if patches.any() else 0.0
    return waiting((np.array(lengths.patches), np.array(lengths.shares)), mbs, *schedule)


def _waits_of_tokens(
    samples: Samples, lengths: Lengths, seq: int, mbs: int, schedule: _Schedule
) -> Waiting:
    draws = mbs
    if samples.packing == "longest":
        tokens, shares = longest_classes(lengths, samples.balance, mbs)
        if samples.balance == "tokens":
            micro_batches, ranks = schedule[:2]
            return Waiting(*(micro_batches * _sorted(one, ranks) for one in (tokens, tokens**2)))
        draws = 1
    elif samples.balance != "none":
        return Waiting(0.0, 0.0)
    elif samples.packing == "padding-free":
        tokens, shares = np.array(lengths.tokens), np.array(lengths.shares)
    else:
        squares = packs_of(lengths, seq, samples.packer).squares
        even = np.full(len(squares), 1.0 / len(squares))
        return Waiting(0.0, waiting((squares, even), mbs, *schedule))
    return Waiting(*(waiting((one, shares), draws, *schedule) for one in (tokens, tokens**2)))


def _sorted(values: Array, ranks: int) -> float:
    """Largest value of each group of neighbours in a sorted list, averaged over the groups and
    divided by the mean of all values, minus 1. Ranks get neighbours, one value each, so this is
    their waiting as a share of the mean."""
    together = min(ranks, SORTED_BATCHES)
    starts = range(0, len(values) - together + 1, together)
    return float(np.mean([values[at : at + together].max() for at in starts]) / values.mean() - 1.0)


def unequal_seconds(
    job: Job, price: Price, totals: Array, shapes: Array, keys: Array, costs: Array
) -> Array:
    """Seconds of each shape's step in which ranks wait for those whose samples need more work.

    They are computed for the passes of an average stage, including everything that the mode
    recomputes. `costs[key, machine, piece]`: as priced; `totals[piece]`: number of each in the
    model.
    """
    key_of_shape = shapes[:, f.SHAPE["key"]].astype(np.int64)
    tokens, squares, fixed = elastic_seconds(price, totals, keys, costs)
    key = keys[key_of_shape]
    if job.samples.by_sample:
        spent = np.column_stack([tokens, squares, fixed])[key_of_shape]
        return group_seconds(job, shapes, key, spent)
    patches = image_seconds(job, price, totals, keys, costs)
    tokens = np.maximum(0.0, tokens - patches)
    pp, zero = shapes[:, f.SHAPE["pp"]], shapes[:, f.SHAPE["zero"]]
    ranks = shapes[:, f.SHAPE["dp"]]
    experts = key[:, f.KEY["ep"]] * key[:, f.KEY["etp"]]
    holders = np.maximum(1.0, experts / (key[:, f.KEY["tp"]] * key[:, f.KEY["cp"]]))
    in_step = np.where(zero == 3, ranks, np.minimum(ranks, holders))
    filling = (pp - 1.0) / np.maximum(1.0, shapes[:, f.SHAPE["vpp"]])
    table = np.column_stack(
        [key[:, f.KEY["mbs"]], shapes[:, f.SHAPE["grad_acc"]], ranks, in_step, filling]
    )
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    each = [waits(job.samples, job.seq, *map(int, row[:4]), float(row[4])) for row in rows]
    found = np.array(each).reshape(-1, 3)[inverse.ravel()]
    spent = np.column_stack([tokens, squares, patches])[key_of_shape]
    seconds: Array = (found * spent).sum(axis=1) / pp
    return seconds


def elastic_seconds(
    price: Price, totals: Array, keys: Array, costs: Array
) -> tuple[Array, Array, Array]:
    """Seconds of a micro-batch in all pieces, split into three arrays: those that grow with tokens
    (a·t), with squared lengths (b·q), and with neither (c). The first two come from the price of a
    micro-batch that is larger by the factor `_STEP`."""
    now = _seconds(totals, keys, costs)
    both = _seconds(totals, keys, price(keys, more_tokens=_STEP)) - now
    longer = _seconds(totals, keys, price(keys, longer=_STEP)) - now
    share = 1.0 / (_STEP - 1.0)
    squares = np.clip(share * longer, 0.0, now)
    tokens = np.clip(share * both - squares, 0.0, now - squares)
    return tokens, squares, now - tokens - squares


def image_seconds(job: Job, price: Price, totals: Array, keys: Array, costs: Array) -> Array:
    """Seconds of a micro-batch, all pieces, that grow with the patches of its images."""
    now = _seconds(totals, keys, costs)
    if not is_pictured(job):
        return np.zeros(len(now))
    more = _seconds(totals, keys, price(keys, more_images=_STEP)) - now
    found: Array = np.clip(more / (_STEP - 1.0), 0.0, now)
    return found


def _seconds(totals: Array, keys: Array, priced: Array) -> Array:
    """Seconds of the passes of a micro-batch, on the slowest machine."""
    again = (keys[:, f.KEY["modules"]] > 0.0)[:, None, None]
    passes = priced[..., PASSES].sum(axis=-1)
    passes = passes + again * priced[..., f.RECOMPUTE_COLUMNS].sum(axis=-1)
    most: Array = (passes @ totals).max(axis=1)
    return most
