"""Continuous batching as a flow: how many sequences run, step by step, until the longest ends.

An engine lets a queue of samples in as slots (`max_num_seqs`) and room in its cache allow, gives
every running sequence one token a step, and lets the next ones in as others end. Here sequences of
an age (tokens that they have) are a quantity, of which the share ends that the distribution of
lengths says; ages and steps are counted in equal bins. Where the cache is full and running
sequences grow, the youngest lose their place and wait (vLLM, v1/core/sched/scheduler.py: the last
of the running ones is preempted, and first in the queue again); their tokens are read again later.

The flow is the mean over chance. What the chance of a longest answer among many does is exact: the
probability that some sequence still runs at a step follows from the quantity that does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from planner.job.samples import Lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]

# Bins of age up to the longest answer, and of the mean answer at least.
_BINS = 160
_BINS_OF_MEAN = 6
_MOST_BINS = 800
# Stretches of two mean answers after which a flow that is fed from a queue may repeat itself, how
# far it may still move then from one to the next, and bins after which it is averaged in any case.
_SETTLED = 3
_STILL = 0.01
_LONG = 1200
# A flow ends where fewer sequences than this are left.
_LAST = 1e-4
# Bins of steps at most, which no flow reaches, and share of its room beyond which a cache is too
# full.
_MOST_ROWS = 48_000
_FULL = 1.0 + 1e-9
# Below this a quantity is nothing; it divides without overflow.
_LEAST = 1e-30


@dataclass(frozen=True)
class Load:
    """What one rank of an engine is given.

    `samples` answers of `lengths` to prompts of `prompt` tokens, at most `slots` at once. A
    sequence of c cached tokens takes `state + full·c + windowed·min(c, window)` of `room`, in which
    `shared` of its prompt's tokens are counted with another sequence. `again`: whether a prompt is
    read again when its sequence was preempted.
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


@dataclass(frozen=True)
class Flow:
    """Quantities at each bin of steps: `steps` of it, sequences that run (`running`), tokens that
    they have cached (`tokens`; `windowed`: at most a window of each), sequences not yet ended
    (`left`), those let in for the first time (`admitted`), tokens read again (`reread`).

    `preempted`: of all samples, how often one lost its place.
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
    """A load's flow, bin by bin: `ages`, sequences that run, and `waiting`, those that lost their
    place, by the tokens that they have."""

    def __init__(self, load: Load) -> None:
        import numpy as np

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
        self.taken = self._taken(load.prompt + ends)
        self.start = float(self._taken(np.asarray([load.prompt + self.width]))[0])
        self.ages, self.waiting = np.zeros(count), np.zeros(count)
        self.queue, self.held, self.lost = load.samples, 0.0, 0.0

    def _taken(self, cached: Floats) -> Floats:
        """Room of a sequence with so many tokens cached."""
        import numpy as np

        load = self.load
        own = cached - load.shared * load.prompt
        return load.state + load.full * own + load.windowed * np.minimum(own, load.window)

    def run(self) -> Flow:
        """The whole flow: at once where all samples run from the start, else bin by bin."""
        at_once = self.load.samples * self.alive[:-1]
        most = float((at_once * self.taken).max()) if len(at_once) else 0.0
        if self.load.samples <= self.load.slots and most <= self.load.room:
            return self._at_once()
        return self._through_queue()

    def _at_once(self) -> Flow:
        """All samples are of one age."""
        import numpy as np

        samples = self.load.samples
        running = samples * (self.alive[:-1] + self.alive[1:]) / 2.0
        admitted = np.zeros_like(running)
        admitted[0] = samples
        return Flow(
            np.full_like(running, self.width), running, running * self.cached,
            running * self.windowed, running, admitted, np.zeros_like(running), 0.0,
        )  # fmt: skip

    def _through_queue(self) -> Flow:
        """Bin by bin, the steady part in one stride."""
        import numpy as np

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
        """Who runs in the next bin: (sequences let in for the first time, tokens read again).
        `sums`: rows whose products with `ages` are how many run, and their room."""
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
        """What a product with the quantities at each age gives: their number, their room at the
        end of the bin, those that run on average over it, their cached tokens, these within the
        window, and how many end."""
        import numpy as np

        mean = 1.0 - 0.5 * self.ending
        return np.stack((
            np.ones_like(mean), self.taken, mean, mean * self.cached, mean * self.windowed,
            self.ending,
        ))  # fmt: skip

    def _preempt(self, taken: float) -> None:
        """The youngest leave where what runs is about to outgrow its room."""
        import numpy as np

        each = self.ages * self.taken
        before = np.cumsum(each) - each
        excess = taken - self.load.room
        gone = self.ages * np.clip((excess - before) / np.maximum(each, _LEAST), 0.0, 1.0)
        self.ages, self.waiting = self.ages - gone, self.waiting + gone
        self.held += float(gone.sum())
        self.lost += float(gone.sum())

    def _readmit(self, count: float, taken: float) -> float:
        """Those that lost their place come back before any new one, the oldest first; tokens that
        are read again."""
        import numpy as np

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
        """Sequences of the queue that slots and room let in."""
        room = (self.load.room - taken) / self.start
        return max(0.0, min(self.queue, self.load.slots - count, room))

    @property
    def _past(self) -> int:
        """Bins over which a flow is averaged: two mean answers, whole where all are as long."""
        return 2 * max(1, round(self.load.lengths.mean / self.width))

    def _is_settled(self, rows: list[tuple[float, ...]]) -> bool:
        """Whether the flow has become steady: as many run, and are let in, as before, or it has
        gone on for so long that its average will do."""
        past = self._past
        if len(rows) >= _LONG:
            return True
        if len(rows) < _SETTLED * past or len(rows) % past:
            return False
        now, before = rows[-past:], rows[-2 * past : -past]
        sums = [(sum(row[at] for row in now), sum(row[at] for row in before)) for at in (1, 5)]
        return all(abs(one - other) <= _STILL * max(one, other) for one, other in sums)

    def _skip(self, rows: list[tuple[float, ...]]) -> None:
        """Counts the steady part as one wide bin. As many are let in as end: what runs gives each
        its tokens."""
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
    """Share of the samples that are longer than nothing, and than each bin's end."""
    import numpy as np

    reached = np.searchsorted(np.asarray(lengths.tokens), ends * (1.0 + 1e-9), side="right")
    shares = np.concatenate(([0.0], np.cumsum(lengths.shares)))
    alive = np.concatenate(([1.0], 1.0 - shares[reached]))
    alive[-1] = 0.0
    return alive


def _behind(quantity: Floats) -> Floats:
    """Of a quantity by age, what is of higher ages."""
    import numpy as np

    total: Floats = np.cumsum(quantity[::-1])[::-1] - quantity
    return total
