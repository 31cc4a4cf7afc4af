"""Continuous batching modelled as a flow: how many sequences run at each step until the longest
ends.

An engine admits samples from a queue as far as slots (`max_num_seqs`) and cache allow, gives every
running sequence one token per step, and admits more as others end. Here the sequences of one age
(number of tokens so far) are a real-valued quantity, of which a share ends at each step according
to the distribution of lengths; ages and steps are counted in equal bins. If running sequences
outgrow the cache, the youngest are preempted and wait (vLLM, v1/core/sched/scheduler.py: the last
running one is preempted and goes to the front of the queue); their tokens are read again later.

The flow is a mean over random lengths. The effect of a longest answer among many is exact: the
probability that some sequence still runs at a step follows from the quantity that runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.job.samples import Lengths

Floats = NDArray[Any]
# Bins of age: up to the longest answer, at least within the mean answer, and at most in all.
_BINS = 160
_BINS_OF_MEAN = 6
_MOST_BINS = 800
# A flow fed from a queue may be repeated after this many stretches of two mean answers, if it
# changes by less than this share from one stretch to the next; after `_LONG` bins it is averaged in
# any case.
_SETTLED = 3
_STILL = 0.01
_LONG = 1200
# A flow ends when fewer sequences than this are left.
_LAST = 1e-4
# Limit on bins of steps, which no flow reaches, and share of the room beyond which the cache is
# too full.
_MOST_ROWS = 48_000
_FULL = 1.0 + 1e-9
# Quantities below this count as nothing; dividing by it does not overflow.
_LEAST = 1e-30


@dataclass(frozen=True)
class Load:
    """The work of one rank of an engine.

    `samples` answers of `lengths` to prompts of `prompt` tokens, at most `slots` at once. `room`:
    size of the cache, in the unit of `state`, `full` and `windowed` (bytes for an engine's work). A
    sequence with c cached tokens takes `state + full·c + windowed·min(c, window)` of it; c leaves
    out the share `shared` of its prompt, which other sequences have cached already. `again`:
    whether the prompt of a preempted sequence is read again.
    """

    samples: float
    lengths: Lengths
    prompt: float
    slots: float
    room: float
    full: float = 1.0
    windowed: float = 0.0
    window: float = 0.0
    state: float = 0.0
    shared: float = 0.0
    again: bool = True

    def taken(self, cached: Floats) -> Floats:
        """Part of `room` that a sequence with `cached` tokens takes."""
        counted = cached - self.shared * self.prompt
        windowed = self.windowed * np.minimum(counted, self.window)
        room: Floats = self.state + self.full * counted + windowed
        return room


@dataclass(frozen=True)
class Flow:
    """Mean numbers for each bin of steps: decoding steps in the bin (`steps`), sequences that run
    (`running`), their cached tokens (`tokens`; `windowed`: at most a window of each), sequences not
    yet ended (`left`), newly admitted ones (`admitted`), tokens read again (`reread`).

    `preempted`: preemptions per sample, over the whole flow.
    """

    steps: Floats
    running: Floats
    tokens: Floats
    windowed: Floats
    left: Floats
    admitted: Floats
    reread: Floats
    preempted: float


@lru_cache(maxsize=512)
def flow(load: Load) -> Flow:
    """The flow of a load until nothing is left."""
    return _Bins(load).run()


class _Bins:
    """Computes a load's flow, bin by bin. `ages`, `waiting`: the numbers of running and of
    preempted sequences, by the number of answer tokens that they have; `queue`: samples not yet
    admitted."""

    def __init__(self, load: Load) -> None:
        self.load = load
        longest = max(1.0, load.lengths.tokens[-1])
        fine = min(_MOST_BINS, math.ceil(_BINS_OF_MEAN * longest / load.lengths.mean))
        count = max(1, min(math.ceil(longest), max(_BINS, fine)))
        self.width = longest / count
        ends = self.width * np.arange(1, count + 1)
        self.alive = _alive(load.lengths, ends)
        before, after = self.alive[:-1], self.alive[1:]
        self.ending = np.where(before > 0.0, 1.0 - after / np.maximum(before, _LEAST), 1.0)
        self.staying = 1.0 - self.ending[:-1]
        self.cached = load.prompt + ends - 0.5 * self.width
        self.windowed = np.minimum(self.cached, load.window) if load.window else 0.0 * ends
        self.taken = load.taken(load.prompt + ends)
        self.start = float(load.taken(np.asarray([load.prompt + self.width]))[0])
        self.ages, self.waiting = np.zeros(count), np.zeros(count)
        self.queue, self.held, self.lost = load.samples, 0.0, 0.0

    def run(self) -> Flow:
        """The whole flow: in closed form if all samples run from the start, else bin by bin."""
        at_once = self.load.samples * self.alive[:-1]
        most = float((at_once * self.taken).max()) if len(at_once) else 0.0
        if self.load.samples <= self.load.slots and most <= self.load.room:
            return self._at_once()
        return self._through_queue()

    def _at_once(self) -> Flow:
        """The flow if all samples start together, and so always have the same age."""
        samples = self.load.samples
        running = samples * (self.alive[:-1] + self.alive[1:]) / 2.0
        admitted = np.zeros_like(running)
        admitted[0] = samples
        return Flow(
            np.full_like(running, self.width), running, running * self.cached,
            running * self.windowed, running, admitted, np.zeros_like(running), 0.0,
        )  # fmt: skip

    def _through_queue(self) -> Flow:
        """The flow bin by bin, with the steady part added as one bin."""
        sums = self._sums()
        rows: list[tuple[float, ...]] = []
        strides = False
        while len(rows) < _MOST_ROWS:
            fresh, reread = self._schedule(sums[:2])
            left = self.queue + self.held + float(sums[0] @ self.ages)
            if left < _LAST:
                break
            running, tokens, windowed, ended = (sums[2:] @ self.ages).tolist()
            rows.append((self.width, running, tokens, windowed, left - ended / 2.0, fresh, reread))
            self.ages[1:] = self.ages[:-1] * self.staying
            self.ages[0] = 0.0
            if not strides and self.queue > 0.0 and self._is_settled(rows):
                strides = True
                self._skip(rows)
        names = ("steps", "running", "tokens", "windowed", "left", "admitted", "reread")
        quantities = dict(zip(names, np.asarray(rows).T, strict=True))
        return Flow(**quantities, preempted=self.lost / self.load.samples)

    def _schedule(self, sums: Floats) -> tuple[float, float]:
        """Choose the sequences that run in the next bin; return (newly admitted sequences, tokens
        read again). `sums`: two rows; their products with `ages` are the number of running
        sequences and the room that these take."""
        count, taken = (sums @ self.ages).tolist()
        if taken > self.load.room * _FULL and count > 1.0:
            self._preempt(taken)
            count, taken = (sums @ self.ages).tolist()
        reread = 0.0
        if self.held > _LAST:
            reread = self._readmit(count, taken)
            count, taken = (sums @ self.ages).tolist()
        fresh = 0.0 if self.held > _LAST else self._fresh(count, taken)
        self.ages[0] += fresh
        self.queue -= fresh
        return fresh, reread

    def _sums(self) -> Floats:
        """Six rows with a value for each age. Multiplied with the numbers of sequences by age they
        give: the number of sequences, the room that they take at the end of the bin, the mean
        number that run in the bin, their cached tokens, those within the window, and the number
        that end."""
        mean = 1.0 - 0.5 * self.ending
        return np.stack((
            np.ones_like(mean), self.taken, mean, mean * self.cached, mean * self.windowed,
            self.ending,
        ))  # fmt: skip

    def _preempt(self, taken: float) -> None:
        """Move the youngest sequences from running to waiting, until the rest fits the room.
        `taken`: room that all of them would take at the end of the bin."""
        each = self.ages * self.taken
        before = np.cumsum(each) - each
        excess = taken - self.load.room
        gone = self.ages * np.clip((excess - before) / np.maximum(each, _LEAST), 0.0, 1.0)
        self.ages, self.waiting = self.ages - gone, self.waiting + gone
        self.held += float(gone.sum())
        self.lost += float(gone.sum())

    def _readmit(self, count: float, taken: float) -> float:
        """Let preempted sequences run again as far as slots and room allow, oldest first; return
        the number of tokens that are read again for them. `count`, `taken`: running sequences and
        their room."""
        waiting = self.waiting
        each = waiting * self.taken
        by_slots = (self.load.slots - count - _behind(waiting)) / np.maximum(waiting, _LEAST)
        by_room = (self.load.room - taken - _behind(each)) / np.maximum(each, _LEAST)
        back = waiting * np.clip(np.minimum(by_slots, by_room), 0.0, 1.0)
        self.ages, self.waiting = self.ages + back, waiting - back
        self.held = float(self.waiting.sum())
        kept = 0.0 if self.load.again else self.load.prompt
        return float(back @ (self.cached - 0.5 * self.width - kept))

    def _fresh(self, count: float, taken: float) -> float:
        """Number of sequences that can be admitted from the queue, as far as slots and room allow.
        `count`, `taken`: running sequences and their room."""
        room = (self.load.room - taken) / self.start
        return max(0.0, min(self.queue, self.load.slots - count, room))

    @property
    def _past(self) -> int:
        """Number of bins over which a flow is averaged: the length of two mean answers. If all
        answers are equally long, that average is exact."""
        return 2 * max(1, round(self.load.lengths.mean / self.width))

    def _is_settled(self, rows: list[tuple[float, ...]]) -> bool:
        """Whether the flow counts as steady: as many sequences run and are admitted as in the
        period before, or the flow has lasted so long that its average is used. `rows`: the bins so
        far."""
        past = self._past
        if len(rows) >= _LONG:
            return True
        if len(rows) < _SETTLED * past or len(rows) % past:
            return False
        now, before = rows[-past:], rows[-2 * past : -past]
        sums = [(sum(row[at] for row in now), sum(row[at] for row in before)) for at in (1, 5)]
        return all(abs(one - other) <= _STILL * max(one, other) for one, other in sums)

    def _skip(self, rows: list[tuple[float, ...]]) -> None:
        """Append the steady part of the flow to `rows` as one wide bin, and take its sequences off
        the queue. In it as many sequences are admitted as end, so the number of running ones
        determines the rate. Does nothing if that part would be shorter than two bins."""
        recent = rows[-self._past :]
        mean = [sum(row[index] for row in recent) / len(recent) for index in range(7)]
        rate = mean[1] / float((self.alive[:-1] + self.alive[1:]).sum() / 2.0)
        wide = math.floor(self.queue / rate) - 1 if rate > 0.0 else 0
        if wide < 2:
            return
        fresh, left = wide * rate, rows[-1][4]
        rows.append((
            wide * self.width, mean[1], mean[2], mean[3], left - fresh / 2.0, fresh,
            wide * mean[6],
        ))  # fmt: skip
        self.queue -= fresh


def _alive(lengths: Lengths, ends: Floats) -> Floats:
    """Share of the samples that are longer than 0 tokens, then than each of `ends`: one value more
    than `ends` has. The last value is 0."""
    reached = np.searchsorted(np.asarray(lengths.tokens), ends * (1.0 + 1e-9), side="right")
    shares = np.concatenate(([0.0], np.cumsum(lengths.shares)))
    alive = np.concatenate(([1.0], 1.0 - shares[reached]))
    alive[-1] = 0.0
    return alive


def _behind(quantity: Floats) -> Floats:
    """For each age, the sum of the quantity over all higher ages."""
    total: Floats = np.cumsum(quantity[::-1])[::-1] - quantity
    return total
