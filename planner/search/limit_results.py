"""What a search finds at each limit of a memory ladder, how long it looks, who may end it."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Literal

import numpy as np

from constraints.rule import Layout
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.layout_model import SolverOptions

# What a search does not look for: a plan faster by less. Half of what `optimal` allows, the other
# half is for the solver, and for the lighter of two plans that are as fast.
TIE = 0.5 * OPTIMAL_WITHIN
# Rungs of the memory ladder: each is this share of the one above.
LIMIT_STEP = 0.93
LIMIT_STEPS = 24
# Plans slower than this many times the fastest are not looked for.
SLOWEST = 1.5
# Work for all layouts of one search, in CP-SAT's deterministic seconds, and at most so
# many layouts. A limit takes at most half of what is left, so that the lower ones get their part.
MOST_EFFORT_S = 2.5
MOST_SOLVES = 300

Progress = Callable[[str, int, int], None]
# What ended a search before its limits on work did.
Stopped = Literal["", "time-limit", "interrupted"]


@dataclass(frozen=True)
class Effort:
    """How long to search. Without `time_limit_s` (wall time) the outcome repeats exactly.

    `started_s`: when that time began, in `time.perf_counter`.
    `tie`: a plan is not improved by less than this share. `any_plan`: the first that fits will do.
    """

    options: SolverOptions = field(default_factory=SolverOptions)
    time_limit_s: float | None = None
    most_solves: int = MOST_SOLVES
    most_effort_s: float = MOST_EFFORT_S
    tie: float = TIE
    any_plan: bool = False
    started_s: float = field(default_factory=time.perf_counter, compare=False)

    @property
    def deadline(self) -> float | None:
        """When all searching ends, in `time.perf_counter`; None: never."""
        return None if self.time_limit_s is None else self.started_s + self.time_limit_s


@dataclass(frozen=True)
class Point:
    """A costed layout. `sample_s`: seconds of step time per sequence; `peak`: bytes.

    `source`: whose rows these are, where several costed jobs are searched as one.
    """

    row: int
    layout: Layout
    sample_s: float
    peak: float
    source: int = 0


def gap_to_bound(sample_s: float | None, bound: float) -> float:
    """Share of a time (None: no plan found) that a better plan could save, none beating `bound`."""
    if sample_s is None:
        return 0.0 if np.isinf(bound) else 1.0
    return max(0.0, 1.0 - bound / sample_s)


@dataclass(frozen=True)
class LimitResult:
    """The fastest plan found within a memory limit, and the bound that no plan beats."""

    limit_bytes: float
    point: Point | None
    bound: float

    @property
    def gap(self) -> float:
        """Share of the sample time that a better plan could save at most."""
        return gap_to_bound(None if self.point is None else self.point.sample_s, self.bound)


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until a time of `time.perf_counter`; None: without end."""
    return None if deadline is None else deadline - time.perf_counter()


@dataclass
class Spent:
    """Work done so far, and what ended it; explorers that are searched as one share it."""

    solves: int = 0
    effort_s: float = 0.0
    stopped: Stopped = ""

    def is_over(self, deadline: float | None) -> bool:
        """Whether something ended it; the deadline does once it has passed."""
        if not self.stopped and deadline is not None and time.perf_counter() >= deadline:
            self.stopped = "time-limit"
        return bool(self.stopped)

    def interrupt(self) -> None:
        """Solve no more layouts."""
        self.stopped = "interrupted"


Enough = Callable[[Sequence[LimitResult]], bool]


class LimitSearch(ABC):
    """A search for the fastest plans within falling memory limits."""

    # Rungs of its ladder.
    limit_step, limit_steps = LIMIT_STEP, LIMIT_STEPS

    def __init__(self, effort: Effort, spent: Spent, progress: Progress | None = None) -> None:
        self.effort, self.spent = effort, spent
        self.progress = progress or (lambda _what, _done, _total: None)

    @property
    def stopped(self) -> Stopped:
        """What cut the search short, if anything did."""
        return self.spent.stopped

    @abstractmethod
    def descend(self, limits: Sequence[float]) -> None:
        """Take other memory limits, falling, bytes."""

    @abstractmethod
    def climb(self, index: int, target_sample_s: float = np.inf) -> LimitResult:
        """The fastest plan within one of the limits, and the bound that none beats.

        What is not faster than `target_sample_s` is not looked for, and nothing is proven of it.
        """

    def as_good(self, result: LimitResult) -> LimitResult:
        """The result with the lightest plan known that is as good as its plan."""
        return result

    def ladder(
        self, limit_bytes: float, fastest: float, enough: Enough = lambda _results: False
    ) -> list[LimitResult]:
        """The results from a limit down, until nothing fits, plans take far longer than `fastest`,
        seconds per sequence that are known, or those so far are `enough`."""
        indices = range(self.limit_steps)
        self.descend([limit_bytes * self.limit_step**index for index in indices])
        results: list[LimitResult] = []
        with stopped_by_signal(self.spent.interrupt):
            for index in indices:
                self.progress("solving layouts", index, len(indices))
                result = self.climb(index)
                if result.point is None or result.point.sample_s > SLOWEST * fastest:
                    return results or [result]
                fastest = min(fastest, result.point.sample_s)
                results.append(result)
                if enough(results):
                    break
        return results

    def within(
        self, limits: Sequence[float], target_sample_times: Sequence[float]
    ) -> list[LimitResult]:
        """The fastest plan within each of some falling limits, of those that beat a sample time."""
        self.descend(limits)
        with stopped_by_signal(self.spent.interrupt):
            return list(map(self.climb, range(len(limits)), target_sample_times))


@contextmanager
def stopped_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `stop` instead of raising; a second one raises as usual.

    Signals reach the main thread only; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handler(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    if before is not signal.default_int_handler:
        yield  # somebody else's handler, or none: their decision
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Until:
    """A deadline (`time.perf_counter`, None: none) that all searches of a chain share.

    `untried`: what was asked for after its end, each once.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.stopped: Stopped = ""
        self._untried: dict[str, None] = {}

    @property
    def untried(self) -> tuple[str, ...]:
        """What was cut off."""
        return tuple(self._untried)

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, just above 0 after it; None without one."""
        if self.deadline is None:
            return None
        return max(1e-3, self.deadline - time.perf_counter())

    def effort(self, effort: Effort) -> Effort:
        """An effort that begins now and ends with the chain."""
        return replace(effort, time_limit_s=self.seconds_left(), started_s=time.perf_counter())

    def over(self, what: str) -> bool:
        """Whether no time is left for `what`, which then counts as untried."""
        if not self.stopped and self.deadline is not None and time.perf_counter() > self.deadline:
            self.stopped = "time-limit"
        if self.stopped:
            self._untried[what] = None
        return bool(self.stopped)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a first Ctrl-C end the chain instead of raising."""
        with stopped_by_signal(self._interrupt):
            yield

    def _interrupt(self) -> None:
        self.stopped = "interrupted"
