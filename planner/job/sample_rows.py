"""The rows of a micro-batch, made from samples: real tokens, computed tokens, and attended lengths.

A row is a sample with its padding, or a pack of samples. The cost of a micro-batch follows from its
rows; `planner.predict.unequal` describes how much micro-batches differ from each other.
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

# Number of packs that are made, between these limits. Their mean fill and mean squared lengths then
# err by less than 1 %.
_PACKS = 400
_FEWEST, _MOST = 4096, 40_000
_SEED = 7
# Number of micro-batches in a training for which memory is sized: 100,000 samples, three epochs,
# ten per micro-batch.
_MICRO_BATCHES = 30_000
# The sampler that groups by length sorts this many micro-batches of a step at a time (transformers,
# trainer_pt_utils.py, get_length_grouped_indices: `mega_batch_mult`).
SORTED_BATCHES = 50


class Row(NamedTuple):
    """The mean row of a micro-batch: real tokens, computed tokens, the length that a computed token
    attends to (sum of squared lengths over tokens), and samples.

    `most`: tokens of a row in the longest micro-batch of a training. `patches`: patches of its
    images. `most_patches`: patches of a row in the micro-batch with the most.
    """

    counted: float
    computed: float
    attended: float
    samples: float
    most: float
    patches: float = 0.0
    most_patches: float = 0.0


class Packs(NamedTuple):
    """Packs of one size: the share of real tokens, and for each pack the sum of its samples'
    squared lengths and the patches of their images."""

    fill: float
    squares: Floats
    patches: Floats


def row_of(samples: Samples, seq: int, mbs: int) -> Row:
    """The mean row of a micro-batch of `mbs` rows. `seq`: the length limit, or the size of a
    pack."""
    row, lengths = _row_of(samples, seq, mbs), samples.lengths
    if lengths is None or not lengths.mean_patches:
        return row
    mean = row.samples * lengths.mean_patches
    if samples.is_packed:
        found = packs_of(lengths, seq, samples.packer).patches
        return row._replace(patches=mean, most_patches=max(mean, float(found.max())))
    most = (lengths.most_patches + (mbs - 1) * lengths.mean_patches) / mbs
    return row._replace(patches=mean, most_patches=most)


def _row_of(samples: Samples, seq: int, mbs: int) -> Row:
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
        # Megatron's main branch trains the filler of a pack as part of its last sample
        # (sft_dataset.py).
        computed = float(seq) if samples.balance == "hybrid-cp" else counted
        return Row(counted, computed, lengths.attended, counted / lengths.mean, float(seq))
    attended = float(packs.squares.mean()) / seq if within else float(seq)
    return Row(counted, float(seq), attended, counted / lengths.mean, float(seq))


def row_tokens(samples: Samples, seq: int) -> float:
    """Mean real tokens of a row, whatever the micro-batch."""
    return row_of(samples, seq, 1).counted


def longest_of(lengths: Lengths, balance: Balance, mbs: int) -> tuple[float, float]:
    """Mean and mean square of the longest sample in a micro-batch."""
    tokens, shares = longest_classes(lengths, balance, mbs)
    return float(tokens @ shares), float((tokens**2) @ shares)


@cache
def most_together(lengths: Lengths, count: int) -> float:
    """Tokens of `count` samples in the largest micro-batch of a training: the largest of
    `_MICRO_BATCHES`, or one with the longest sample."""
    import numpy as np

    from planner.job.order_statistics import sum_of

    found = sum_of(np.array(lengths.tokens), np.array(lengths.shares), count)
    together = (1.0 + found.quantile(1.0 - 1.0 / _MICRO_BATCHES)) * count * lengths.mean
    return max(together, lengths.longest + (count - 1) * lengths.mean)


@cache
def longest_classes(lengths: Lengths, balance: Balance, mbs: int) -> tuple[Floats, Floats]:
    """(lengths, shares): the distribution of the longest sample in a micro-batch.

    Random order: P(longest <= l) = F(l)^mbs. Grouped by length (`balance` tokens): samples are
    sorted, `SORTED_BATCHES` micro-batches at a time, and the longest of the j-th micro-batch is
    about the sample at quantile j/`SORTED_BATCHES`: the order statistic of rank j·mbs of
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
    """Packs that a packer makes of samples drawn evenly over the distribution and then shuffled."""
    import numpy as np

    drawn = int(min(max(_PACKS * size / lengths.mean, _FEWEST), _MOST))
    shares = (np.arange(drawn) + 0.5) / drawn
    at = np.searchsorted(np.cumsum(lengths.shares), shares)
    at = np.minimum(at, len(lengths.tokens) - 1)
    np.random.default_rng(_SEED).shuffle(at)
    tokens = np.array(lengths.tokens)[at]
    patches = np.array(lengths.patches)[at] if lengths.patches else np.zeros(drawn)
    if packer == "cut":
        return Packs(1.0, _cut_squares(tokens, size), _cut_patches(tokens, patches, size))
    fit = np.minimum(tokens, float(size))
    packed = _best_fit if packer == "best-fit" else _next_fit
    bins = packed(zip(fit, patches, strict=True), size)
    filled = np.array([held for held, *_ in bins])
    # The last packs lack the samples that a larger data set would add.
    whole = filled[:-1] if len(filled) > 1 else filled
    _, squares, seen = (np.array(column) for column in zip(*bins, strict=True))
    return Packs(float(whole.mean() / size), squares, seen)


def _cut_patches(tokens: Floats, patches: Floats, size: int) -> Floats:
    """Image patches of each pack, if consecutive texts are cut into packs; an image counts where
    its sample begins."""
    import numpy as np

    begins = np.cumsum(tokens) - tokens
    count = max(1, int((begins[-1] + tokens[-1]) // size))
    pack = np.minimum((begins // size).astype(np.int64), count - 1)
    sums: Floats = np.bincount(pack, weights=patches, minlength=count).astype(np.float64)
    return sums


def _cut_squares(tokens: Floats, size: int) -> Floats:
    """Sums of squared lengths, if consecutive texts are cut at every multiple of `size`."""
    import numpy as np

    ends = np.cumsum(tokens)
    count = max(1, int(ends[-1] // size))
    cuts = np.union1d(np.arange(1, count + 1) * float(size), ends)
    cuts = cuts[cuts <= count * size] if ends[-1] >= size else cuts
    pieces = np.diff(cuts, prepend=0.0)
    pack = np.minimum((np.ceil(cuts / size) - 1).astype(np.int64), count - 1)
    sums: Floats = np.bincount(pack, weights=pieces**2, minlength=count).astype(np.float64)
    return sums


# A pack's tokens, sum of squares and patches.
Pack = tuple[float, float, float]


def _next_fit(samples: Iterable[tuple[float, float]], size: int) -> list[Pack]:
    """Packs of (tokens, patches): a sample that does not fit opens the next pack."""
    bins, held, squares, seen = [], 0.0, 0.0, 0.0
    for length, patches in samples:
        if held + length > size:
            bins.append((held, squares, seen))
            held = squares = seen = 0.0
        held, squares, seen = held + length, squares + length**2, seen + patches
    return [*bins, (held, squares, seen)]


def _best_fit(samples: Iterable[tuple[float, float]], size: int) -> list[Pack]:
    """Packs of (tokens, patches): longest samples first, each into the fullest pack that has
    room."""
    rooms: list[tuple[float, int]] = []
    bins: list[list[float]] = []
    for length, patches in sorted(((float(a), float(b)) for a, b in samples), reverse=True):
        at = bisect_left(rooms, (length, -1))
        if at == len(rooms):
            room, index = float(size), len(bins)
            bins.append([0.0, 0.0, 0.0])
        else:
            room, index = rooms.pop(at)
        for column, more in enumerate((length, length**2, patches)):
            bins[index][column] += more
        insort(rooms, (room - length, index))
    return [(held, squares, seen) for held, squares, seen in bins]
