"""Rows of a micro-batch, made of samples: the tokens that count in a row, those that are computed,
and the length that each computed token attends to.

A row is a sample with its padding, or a pack. What a micro-batch computes follows from its rows;
how much micro-batches differ from each other, `planner.predict.unequal` says.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from planner.job.samples import Balance, Lengths, Packer, Samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Packs are made of as many samples as fill so many, between these bounds: their mean fill and mean
# squared lengths then err by less than 1 %.
_PACKS = 400
_FEWEST, _MOST = 4096, 40_000
_SEED = 7
# Micro-batches of a training on which memory is sized: 100,000 samples, three times, ten at a time.
_MICRO_BATCHES = 30_000
# The sampler that groups by length sorts so many micro-batches of a step at a time
# (transformers, trainer_pt_utils.py, get_length_grouped_indices: `mega_batch_mult`).
SORTED_BATCHES = 50


class Row(NamedTuple):
    """Of a row of a micro-batch on average: tokens that count, tokens that are computed, the length
    that a computed token attends to (sum of squared lengths over tokens), samples; `most`: tokens
    of a row of the longest micro-batch of a training."""

    counted: float
    computed: float
    attended: float
    samples: float
    most: float


class Packs(NamedTuple):
    """Packs of a size: the share of their tokens that count, and of each the sum of its samples'
    squared lengths."""

    fill: float
    squares: Floats


def row_of(samples: Samples, seq: int, mbs: int) -> Row:
    """A row of a micro-batch of `mbs` rows; `seq`: the limit, or the size of a pack."""
    lengths = samples.lengths
    if lengths is None:
        return Row(float(seq), float(seq), float(seq), 1.0, float(seq))
    if samples.packing == "limit":
        return Row(lengths.mean, float(seq), float(seq), 1.0, float(seq))
    if samples.packing == "longest":
        longest, squared = longest_of(lengths, samples.balance, mbs)
        return Row(lengths.mean, longest, squared / longest, 1.0, float(seq))
    if samples.packing == "padding-free":
        most = most_together(lengths, mbs) / mbs
        return Row(lengths.mean, lengths.mean, lengths.attended, 1.0, most)
    packs = packs_of(lengths, seq, samples.packer)
    counted = packs.fill * seq
    within = samples.packing == "pack-varlen"
    if samples.by_sample:
        # Megatron's main branch trains what fills a pack up with its last sample (sft_dataset.py).
        computed = float(seq) if samples.balance == "hybrid-cp" else counted
        return Row(counted, computed, lengths.attended, counted / lengths.mean, float(seq))
    attended = float(packs.squares.mean()) / seq if within else float(seq)
    return Row(counted, float(seq), attended, counted / lengths.mean, float(seq))


def row_tokens(samples: Samples, seq: int) -> float:
    """Tokens that count in a row on average, whatever the micro-batch."""
    return row_of(samples, seq, 1).counted


def longest_of(lengths: Lengths, balance: Balance, mbs: int) -> tuple[float, float]:
    """Mean, and mean square, of the longest of the samples of a micro-batch."""
    tokens, shares = longest_classes(lengths, balance, mbs)
    return float(tokens @ shares), float((tokens**2) @ shares)


@cache
def most_together(lengths: Lengths, count: int) -> float:
    """Tokens of so many samples together, in the micro-batch with most of a training: one in
    `_MICRO_BATCHES`, or with the longest sample in it."""
    import numpy as np

    from planner.job.order_statistics import sum_of

    found = sum_of(np.array(lengths.tokens), np.array(lengths.shares), count)
    together = (1.0 + found.quantile(1.0 - 1.0 / _MICRO_BATCHES)) * count * lengths.mean
    return max(together, lengths.longest + (count - 1) * lengths.mean)


@cache
def longest_classes(lengths: Lengths, balance: Balance, mbs: int) -> tuple[Floats, Floats]:
    """(lengths, shares) of the longest of the samples of a micro-batch.

    Drawn at random: P(longest <= l) = F(l)^mbs. Grouped by length (`balance` tokens): samples are
    sorted, `SORTED_BATCHES` micro-batches at a time, and the longest of the j-th of these is about
    the sample at j/`SORTED_BATCHES` of the distribution: the order statistic of rank j·mbs of
    `SORTED_BATCHES`·mbs draws, at its mean rank.
    """
    import numpy as np

    tokens = np.array(lengths.tokens)
    reached = np.minimum(np.cumsum(lengths.shares), 1.0)
    reached[-1] = 1.0
    if balance == "tokens":
        drawn = SORTED_BATCHES * mbs
        ranks = np.arange(1, SORTED_BATCHES + 1) * mbs / (drawn + 1.0)
        at = np.minimum(np.searchsorted(reached, ranks), len(tokens) - 1)
        return tokens[at], np.full(SORTED_BATCHES, 1.0 / SORTED_BATCHES)
    power = reached**mbs
    return tokens, np.diff(power, prepend=0.0)


@cache
def packs_of(lengths: Lengths, size: int, packer: Packer) -> Packs:
    """Packs that a packer makes of samples of these lengths, drawn evenly over the distribution and
    then shuffled."""
    import numpy as np

    drawn = int(min(max(_PACKS * size / lengths.mean, _FEWEST), _MOST))
    shares = (np.arange(drawn) + 0.5) / drawn
    at = np.searchsorted(np.cumsum(lengths.shares), shares)
    tokens = np.array(lengths.tokens)[np.minimum(at, len(lengths.tokens) - 1)]
    np.random.default_rng(_SEED).shuffle(tokens)
    if packer == "cut":
        return Packs(1.0, _cut_squares(tokens, size))
    fit = np.minimum(tokens, float(size))
    bins = _best_fit(fit, size) if packer == "best-fit" else _next_fit(fit, size)
    filled = np.array([held for held, _ in bins])
    # The last ones lack what the next samples of a larger set would fill.
    whole = filled[:-1] if len(filled) > 1 else filled
    return Packs(float(whole.mean() / size), np.array([squares for _, squares in bins]))


def _cut_squares(tokens: Floats, size: int) -> Floats:
    """Sums of squares of texts that follow each other and are cut at every multiple of `size`."""
    import numpy as np

    ends = np.cumsum(tokens)
    count = max(1, int(ends[-1] // size))
    cuts = np.union1d(np.arange(1, count + 1) * float(size), ends)
    cuts = cuts[cuts <= count * size] if ends[-1] >= size else cuts
    pieces = np.diff(cuts, prepend=0.0)
    pack = np.minimum((np.ceil(cuts / size) - 1).astype(np.int64), count - 1)
    sums: Floats = np.bincount(pack, weights=pieces**2, minlength=count).astype(np.float64)
    return sums


def _next_fit(tokens: Iterable[float], size: int) -> list[tuple[float, float]]:
    """(tokens, sum of squares) of packs: a sample that does not fit opens the next one."""
    bins, held, squares = [], 0.0, 0.0
    for length in tokens:
        if held + length > size:
            bins.append((held, squares))
            held = squares = 0.0
        held, squares = held + length, squares + length**2
    return [*bins, (held, squares)]


def _best_fit(tokens: Floats, size: int) -> list[tuple[float, float]]:
    """(tokens, sum of squares) of packs: samples in falling order, each into the fullest pack that
    has room."""
    rooms: list[tuple[float, int]] = []
    bins: list[list[float]] = []
    for length in sorted(map(float, tokens), reverse=True):
        at = bisect_left(rooms, (length, -1))
        if at == len(rooms):
            room, index = float(size), len(bins)
            bins.append([0.0, 0.0])
        else:
            room, index = rooms.pop(at)
        bins[index][0] += length
        bins[index][1] += length**2
        insort(rooms, (room - length, index))
    return [(held, squares) for held, squares in bins]
