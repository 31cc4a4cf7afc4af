"""Samples on as many ranks as each needs: context parallelism whose groups follow the lengths.

A rank holds `most` tokens at once (Megatron's --max-seqlen-per-dp-cp-rank, here the pack over cp),
and a sample of l tokens is split over the least power of two of ranks that holds it. Short samples
so exchange no keys and values. Two schedulers of Megatron-LM do it:

* `dynamic-cp` (branch `dev`, core/datasets/data_schedule.py, DefaultDynamicCPScheduler): ranks are
  filled up to `most` tokens, the longest samples first, short ones in the room that they leave;
* `hybrid-cp` (`main` and releases to 0.19, core/pipeline_parallel/hybrid_cp_schedule.py): each
  sample is a pass of its own. Samples are laid on the group of their size with the least l²/ranks
  until the ranks are within 5 %, or none of the right size is free; then all ranks wait.
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

# Samples of a step at most that a schedule is made of; of a larger step a part, on as many fewer
# ranks.
MOST_DRAWN = 4096
# Ranks of a phase are even within this share of the largest load (`delta` of next_hdp_group).
_EVEN = 0.05


class Pass(NamedTuple):
    """Forward and backward of a rank, of samples that are split over `ranks`: how many such passes
    there are in all ranks, the tokens that the rank holds in each, and the length of the sample
    that a token is in."""

    ranks: int
    passes: float
    tokens: float
    attended: float


class Load(NamedTuple):
    """Of a rank of each group in a phase of a step: tokens, squared lengths, passes."""

    tokens: Floats
    squares: Floats
    passes: Floats


def ranks_needed(length: float, most: float) -> int:
    """Ranks that a sample is split over: the least power of two whose ranks hold it."""
    return 1 << max(0, ceil(log2(length / most) - 1e-9))


@cache
def passes_of(lengths: Lengths, most: float, tokens: float, *, packed: bool) -> tuple[Pass, ...]:
    """The passes in which so many tokens of samples are trained; `packed`: ranks are filled."""
    number = tokens / lengths.mean
    held: dict[int, list[tuple[float, float]]] = {}
    for length, share in zip(lengths.tokens, lengths.shares, strict=True):
        held.setdefault(ranks_needed(length, most), []).append((length, number * share))
    found = [_class_passes(ranks, pairs) for ranks, pairs in sorted(held.items())]
    return tuple(_filled(found, most)) if packed else tuple(found)


def _class_passes(ranks: int, pairs: list[tuple[float, float]]) -> Pass:
    """Samples of one size of groups, each a pass of its own on every rank of its group."""
    number = sum(count for _, count in pairs)
    tokens = sum(length * count for length, count in pairs)
    squares = sum(length**2 * count for length, count in pairs)
    return Pass(ranks, number * ranks, tokens / (number * ranks), squares / tokens)


def _filled(found: list[Pass], most: float) -> list[Pass]:
    """The passes with ranks filled up to `most` tokens by samples that need one rank."""
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
    """(lengths of a step's samples at even shares of the distribution, the longest first, the part
    of the step that they are)."""
    import numpy as np

    count = int(min(max(1, round(number)), MOST_DRAWN))
    shares = (np.arange(count) + 0.5) / count
    at = np.searchsorted(np.cumsum(lengths.shares), shares)
    found = np.array(lengths.tokens)[np.minimum(at, len(lengths.tokens) - 1)]
    return found[::-1], count / max(1.0, number)


def packed_squares(lengths: Floats, ranks: float, most: float) -> tuple[float, float, float]:
    """(squared lengths of the slowest rank, summed over micro-batches; those of the slowest
    micro-batch; micro-batches) of a step whose ranks are filled, `lengths` falling.

    A micro-batch takes `ranks` places of `most` tokens. Half of the room on a long sample's ranks
    is taken to be filled by other long ones, half by short ones. The slowest rank has l²/ranks of
    a long sample, or `most` times l of short ones. The last micro-batch is not full: its samples
    are split over more ranks. Within 8 % of a mean rank's squares of simulated schedules
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
    """The phases of a step whose samples (`lengths` fall) are passes of their own, as `hybrid-cp`
    lays them on ranks."""
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
    """Ranks that samples are split over, with the samples laid on them."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.lengths, self.load = ranks, list[float](), 0.0

    def add(self, length: float) -> None:
        """Lay one more sample on the ranks."""
        self.lengths.append(length)
        self.load += length**2 / self.ranks


def _phase(waiting: dict[int, list[float]], ranks: int) -> Load:
    """One phase: takes samples out of `waiting`, which holds them by the size of their groups."""
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
    """Lay samples, the longest (last) first, each on the group with the least load; where other
    groups wait with a load of `most`, until these have it too."""
    heap = [(group.load, at) for at, group in enumerate(groups)]
    while waiting and heap:
        load, at = heap[0]
        if most and load >= (1.0 - _EVEN) * most:
            return
        groups[at].add(waiting.pop())
        heapq.heapreplace(heap, (groups[at].load, at))


def _spread(groups: list[_Group], ranks: int) -> list[_Group]:
    """Groups of which the smallest take the ranks that are free, each twice as many."""
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
