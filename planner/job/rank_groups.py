"""Context parallelism whose groups follow the sample lengths: each sample uses as many ranks as it
needs.

A rank holds at most `most` tokens at once (Megatron's --max-seqlen-per-dp-cp-rank; here the pack
size over cp). A sample is split over the smallest power of two of ranks that holds it, so short
samples exchange no keys and values. Megatron-LM has two schedulers for this:

* `dynamic-cp` (branch `dev`, core/datasets/data_schedule.py, DefaultDynamicCPScheduler): ranks are
  filled up to `most` tokens, the longest samples first, short ones in the remaining room;
* `hybrid-cp` (`main` and releases to 0.19, core/pipeline_parallel/hybrid_cp_schedule.py): each
  sample is a pass of its own. Samples are placed on the group of their size with the smallest
  l²/ranks until the ranks are within 5 %, or none of the right size is free; then all ranks wait.
"""

from __future__ import annotations

import heapq
from functools import cache
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from planner.job.samples import Lengths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Most samples of a step for which a schedule is built. For a larger step, a part of it on
# proportionally fewer ranks.
MOST_DRAWN = 4096
# Ranks of a phase are balanced within this share of the largest load (`delta` of next_hdp_group).
_EVEN = 0.05


class Pass(NamedTuple):
    """One forward and backward pass of a rank over samples that are split over `ranks`: the number
    of such passes on all ranks, the tokens per rank in each, and the mean length of the sample that
    a token belongs to."""

    ranks: int
    passes: float
    tokens: float
    attended: float


class Load(NamedTuple):
    """Work of a rank of each group in one phase of a step: tokens, squared lengths, passes."""

    tokens: Floats
    squares: Floats
    passes: Floats


def ranks_needed(length: float, most: float) -> int:
    """The smallest power of two of ranks that holds a sample."""
    return 1 << max(0, ceil(log2(length / most) - 1e-9))


@cache
def passes_of(lengths: Lengths, most: float, tokens: float, *, packed: bool) -> tuple[Pass, ...]:
    """The passes that train `tokens` tokens of samples. `packed`: ranks are filled with several
    samples."""
    number = tokens / lengths.mean
    held: dict[int, list[tuple[float, float]]] = {}
    for length, share in zip(lengths.tokens, lengths.shares, strict=True):
        held.setdefault(ranks_needed(length, most), []).append((length, number * share))
    found = [_class_passes(ranks, pairs) for ranks, pairs in sorted(held.items())]
    return tuple(_filled(found, most)) if packed else tuple(found)


def _class_passes(ranks: int, pairs: list[tuple[float, float]]) -> Pass:
    """Samples that need `ranks` ranks, each a pass of its own on every rank of its group."""
    number = sum(count for _, count in pairs)
    tokens = sum(length * count for length, count in pairs)
    squares = sum(length**2 * count for length, count in pairs)
    return Pass(ranks, number * ranks, tokens / (number * ranks), squares / tokens)


def _filled(found: list[Pass], most: float) -> list[Pass]:
    """The passes after filling ranks up to `most` tokens with samples that need one rank."""
    short = next((one for one in found if one.ranks == 1), None)
    if short is None:
        return found
    left, filled = short.passes * short.tokens, []
    room = sum(one.passes * (most - one.tokens) for one in found if one.ranks > 1)
    share = min(1.0, left / room) if room > 0.0 else 0.0
    for one in found:
        if one.ranks > 1:
            added = share * (most - one.tokens)
            tokens = one.tokens + added
            attended = (one.tokens * one.attended + added * short.attended) / tokens
            filled.append(Pass(one.ranks, one.passes, tokens, attended))
    left -= share * room
    alone = [Pass(1, left / most, most, short.attended)] if left > 1e-9 * most else []
    return [*alone, *filled]


@cache
def drawn(lengths: Lengths, number: float) -> tuple[Floats, float]:
    """Lengths of a step's samples, at equally spaced quantiles, longest first; and the part of the
    step that they represent."""
    import numpy as np

    count = int(min(max(1, round(number)), MOST_DRAWN))
    shares = (np.arange(count) + 0.5) / count
    at = np.searchsorted(np.cumsum(lengths.shares), shares)
    found = np.array(lengths.tokens)[np.minimum(at, len(lengths.tokens) - 1)]
    return found[::-1], count / max(1.0, number)


def packed_squares(lengths: Floats, ranks: float, most: float) -> tuple[float, float, float]:
    """For a step whose ranks are filled, with `lengths` descending: squared lengths of the slowest
    rank summed over micro-batches, those of its slowest micro-batch, and the number of
    micro-batches.

    A micro-batch has `ranks` places of `most` tokens. Half of the room on a long sample's ranks is
    assumed to be filled by other long samples, half by short ones. The slowest rank has l²/ranks of
    a long sample, or `most` times l of short ones. The last micro-batch is not full: its samples
    are split over more ranks. Within 8 % of the mean rank's squares in simulated schedules
    (`tests/job/test_rank_groups.py`).
    """
    import numpy as np

    needed = np.array([ranks_needed(length, most) for length in lengths], dtype=np.float64)
    long, held = needed > 1.0, lengths / most
    places = np.where(long, (held + needed) / 2.0, held)
    short = float(held[~long].sum())
    left = float(held.sum() - places[long].sum())
    places = np.where(
        long,
        places * min(1.0, float(held.sum() / max(places[long].sum(), 1e-9))),
        places * (max(0.0, left) / short if short else 0.0),
    )
    squares = np.where(long, lengths**2 / needed, most * lengths)
    ends = np.cumsum(places) / ranks
    total, slowest, at = 0.0, 0.0, 0
    while at < ends[-1]:
        first, last = np.searchsorted(ends, (at, at + 1), side="right")
        first = min(first, len(ends) - 1)
        worst = float(squares[first : max(last, first + 1)].max())
        total += min(1.0, float(ends[-1]) - at) * worst
        slowest, at = max(slowest, worst), at + 1
    return total, slowest, max(1.0, float(ends[-1]))


def stacked_loads(lengths: Floats, ranks: int, most: float) -> list[Load]:
    """The phases of a step whose samples (descending `lengths`) are passes of their own, placed on
    ranks as `hybrid-cp` does."""
    waiting: dict[int, list[float]] = {}
    for length in lengths:
        waiting.setdefault(min(ranks_needed(length, most), ranks), []).append(float(length))
    for falling in waiting.values():
        falling.reverse()
    phases = []
    while any(waiting.values()):
        phases.append(_phase(waiting, ranks))
    return phases


class _Group:
    """Ranks that share each of their samples, with the samples placed on them."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.lengths, self.load = ranks, list[float](), 0.0

    def add(self, length: float) -> None:
        """Place one more sample on the ranks."""
        self.lengths.append(length)
        self.load += length**2 / self.ranks


def _phase(waiting: dict[int, list[float]], ranks: int) -> Load:
    """Build one phase, taking samples from `waiting`, which lists them by group size."""
    groups: list[_Group] = []
    sizes = sorted((size for size, left in waiting.items() if left), reverse=True)
    for size in sizes:
        free = ranks - sum(group.ranks for group in groups)
        new = [_Group(size) for _ in range(min(free // size, len(waiting[size])))]
        most = max((group.load for group in groups), default=0.0)
        groups += new
        _lay(waiting[size], new, most if free < 2 * size or size < sizes[0] else 0.0)
    return _loads(_spread(groups, ranks))


def _lay(waiting: list[float], groups: list[_Group], most: float) -> None:
    """Place samples, longest (last) first, each on the group with the least load, until all groups
    have a load of `most`."""
    heap = [(group.load, at) for at, group in enumerate(groups)]
    while waiting and heap:
        load, at = heap[0]
        if most and load >= (1.0 - _EVEN) * most:
            return
        groups[at].add(waiting.pop())
        heapq.heapreplace(heap, (groups[at].load, at))


def _spread(groups: list[_Group], ranks: int) -> list[_Group]:
    """Give the free ranks to the smallest groups, each doubling in size."""
    while (free := ranks - sum(group.ranks for group in groups)) > 0:
        smallest = min(groups, key=lambda group: group.ranks)
        if smallest.ranks > free:
            return groups
        wider = _Group(2 * smallest.ranks)
        for length in smallest.lengths:
            wider.add(length)
        groups[groups.index(smallest)] = wider
    return groups


def _loads(groups: list[_Group]) -> Load:
    import numpy as np

    sums = [(sum(group.lengths) / group.ranks, group.load, len(group.lengths)) for group in groups]
    tokens, squares, passes = np.array(sums, dtype=np.float64).T
    return Load(tokens, squares, passes)
