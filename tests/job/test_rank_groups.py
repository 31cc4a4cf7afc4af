"""Samples on as many ranks as each needs: what is laid where, held against the schedulers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2

import numpy as np
import pytest

from planner.job.length_text import read_lengths
from planner.job.rank_groups import (
    drawn,
    packed_squares,
    passes_of,
    ranks_needed,
    stacked_loads,
)
from planner.predict.group_waits import packed_excess, stacked_excess

# Median, sigma, longest sample, samples of a step, ranks, tokens of a rank.
STEPS = [
    (1500, 1.8, 131072, 1024, 32, 16384),
    (1000, 1.5, 32768, 512, 32, 4096),
    (600, 1.0, 8192, 256, 16, 2048),
    (600, 1.0, 8192, 1024, 16, 2048),
    (600, 0.85, 8192, 512, 8, 4096),
    (2000, 1.2, 65536, 512, 32, 8192),
]


@dataclass
class Group:
    """Ranks that share samples, as the simulated schedulers form them."""

    ranks: int
    lengths: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> float:
        """Tokens that each rank holds."""
        return sum(self.lengths) / self.ranks

    @property
    def load(self) -> float:
        """Squared lengths over ranks, by which the schedulers balance."""
        return sum(length**2 for length in self.lengths) / self.ranks


def needed(length: float, most: float) -> int:
    return max(1, 2 ** ceil(log2(length / most)))


def step_of(step: tuple[float, ...], seed: int) -> list[float]:
    """Samples of a step, drawn at random, the longest first."""
    median, sigma, most, count = step[:4]
    drawn_lengths = np.random.default_rng(seed).normal(np.log(median), sigma, int(count))
    return sorted(np.clip(np.exp(drawn_lengths), 16, most).round().tolist(), reverse=True)


def packed(lengths: list[float], ranks: int, most: float) -> list[list[Group]]:
    """Micro-batches of the packing scheduler: each sample goes where the most loaded rank stays
    lowest, the fewest ranks first, with no rank above `most` tokens or the tallest's share."""
    found = []
    while lengths:
        groups, left = [Group(needed(lengths[0], most), [lengths[0]])], []
        for length in lengths[1:]:
            best = _place(length, groups, ranks, most, 1.05 * lengths[0] * most)
            if best is None:
                left.append(length)
            elif best.lengths:
                best.lengths.append(length)
            else:
                best.lengths.append(length)
                groups.append(best)
        _widen(groups, ranks)
        found.append(groups)
        lengths = left
    return found


def _place(length: float, groups: list[Group], ranks: int, most: float, cap: float) -> Group | None:
    highest, best, least = max(group.load for group in groups), None, float("inf")
    free, size = ranks - sum(group.ranks for group in groups), needed(length, most)
    while size <= ranks:
        room = [one for one in groups if one.ranks == size and one.tokens + length / size <= most]
        for group in [*room, *([Group(size)] if free >= size else [])]:
            reached = max(highest, group.load + length**2 / size)
            if reached <= cap and reached < least:
                best, least = group, reached
        size *= 2
    return best


def _widen(groups: list[Group], ranks: int) -> None:
    """The smallest groups take the ranks that are free."""
    while (free := ranks - sum(group.ranks for group in groups)) > 0:
        smallest = min(groups, key=lambda group: group.ranks)
        if smallest.ranks > free:
            return
        smallest.ranks *= 2


def stacked(lengths: list[float], ranks: int, most: float) -> list[list[Group]]:
    """Phases of the stacking scheduler: buckets of as much work as there are sizes of groups; the
    first bucket whose head has a group of its size, or ranks that are free, is taken from, until
    all ranks are within 5 % or nothing can be laid."""
    phases = []
    while lengths:
        buckets, groups = _buckets(lengths, most), list[Group]()
        first, even = needed(lengths[0], most), False
        while (bucket := _next(buckets, groups, ranks, most)) and not even:
            length = bucket.pop(0)
            size = needed(length, most)
            same = [group for group in groups if group.ranks == size]
            least = min(same, key=lambda group: group.load, default=None)
            if ranks - sum(group.ranks for group in groups) >= size:
                least = Group(size)
                groups.append(least)
            assert least is not None
            least.lengths.append(length)
            full = ranks == sum(group.ranks for group in groups)
            loads = [group.load for group in groups]
            even = size < first and full and min(loads) >= 0.95 * max(loads)
        _widen(groups, ranks)
        phases.append(groups)
        lengths = sorted((length for bucket in buckets for length in bucket), reverse=True)
    return phases


def _buckets(lengths: list[float], most: float) -> list[list[float]]:
    work = [length**2 / needed(length, most) for length in lengths]
    count = len({needed(length, most) for length in lengths})
    buckets, held = [list[float]()], 0.0
    for length, each in zip(lengths, work, strict=True):
        if buckets[-1] and held + each > 1.1 * sum(work) / count:
            buckets.append([])
            held = 0.0
        buckets[-1].append(length)
        held += each
    return buckets


def _next(
    buckets: list[list[float]], groups: list[Group], ranks: int, most: float
) -> list[float] | None:
    free = ranks - sum(group.ranks for group in groups)
    for bucket in filter(None, buckets):
        size = needed(bucket[0], most)
        if free >= size or any(group.ranks == size for group in groups):
            return bucket
    return None


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_filled_ranks_wait_as_in_a_simulation(step: tuple[float, ...]) -> None:
    ranks, most = int(step[4]), step[5]
    simulated, predicted = [], []
    for seed in range(2):
        lengths = step_of(step, seed)
        mean = sum(length**2 for length in lengths) / ranks
        batches = packed(lengths, ranks, most)
        held = [max(group.tokens for group in groups) for groups in batches]
        assert sum(held) == pytest.approx(sum(lengths) / ranks, rel=0.06)
        simulated.append(sum(max(group.load for group in groups) for groups in batches) / mean)
        predicted.append(packed_squares(np.array(lengths), ranks, most)[0] / mean)
    assert max(1.0, np.mean(predicted)) == pytest.approx(np.mean(simulated), abs=0.08)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_stacked_samples_wait_as_in_a_simulation(step: tuple[float, ...], share: float) -> None:
    ranks, most = int(step[4]), step[5]
    lengths = step_of(step, 1)
    tokens = sum(lengths) / ranks
    squares = sum(length**2 for length in lengths) / ranks
    simulated = sum(
        max((1 - share) * one.tokens / tokens + share * one.load / squares for one in groups)
        for groups in stacked(lengths, ranks, most)
    )
    loads = stacked_loads(np.array(lengths), ranks, most)
    found = sum(
        float(((1 - share) * one.tokens / tokens + share * one.squares / squares).max())
        for one in loads
    )
    assert found == pytest.approx(simulated, rel=0.06)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("most", [512.0, 2048.0, 8192.0])
def test_passes_hold_all_tokens_and_squares(filled: bool, most: float) -> None:
    lengths = read_lengths("lognormal:median=600,p95=2500,max=8192")
    found = passes_of(lengths, most, 1e6, packed=filled)
    assert sum(one.passes * one.tokens for one in found) == pytest.approx(1e6)
    squares = sum(one.passes * one.tokens * one.attended for one in found)
    assert squares == pytest.approx(1e6 * lengths.attended)
    assert all(0.0 < one.tokens <= most + 1e-6 for one in found)
    if filled and most > 512.0:  # else short samples are too few to fill the ranks of long ones
        assert sum(one.passes for one in found) == pytest.approx(1e6 / most, rel=1e-6)


def test_ranks_are_powers_of_two_that_hold_a_sample() -> None:
    assert [ranks_needed(length, 2048) for length in (1, 2048, 2049, 4096, 4097, 8192)] == [
        1, 1, 2, 2, 4, 4,
    ]  # fmt: skip


def test_no_sample_is_lost_and_a_part_of_a_large_step_stands_for_it() -> None:
    lengths = read_lengths("lognormal:median=600,p95=2500,max=8192")
    step, part = drawn(lengths, 1000.0)
    assert len(step) == 1000 and part == 1.0 and step[0] >= step[-1]
    loads = stacked_loads(step, 8, 2048.0)
    assert all(len(one.tokens) <= 8 for one in loads)
    large = packed_excess(lengths, 64_000.0, 128, 2048.0, 16, 0.0)
    assert large == pytest.approx(packed_excess(lengths, 4_000.0, 8, 2048.0, 16, 0.0), rel=0.15)


def test_samples_alike_wait_for_nobody() -> None:
    even = read_lengths("512")
    assert packed_excess(even, 64.0, 8, 2048.0, 2, 0.0) == pytest.approx(0.0, abs=1e-9)
    assert stacked_excess(even, 64.0, 8, 2048.0, 2, (0.5, 0.3, 0.2)) == pytest.approx((0, 0, 0))
