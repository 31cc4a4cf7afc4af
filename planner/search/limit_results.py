"""Results of a search at each limit of a memory ladder, its effort, and what may end it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Literal

import numpy as np

from constraints.rule import Layout
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.layout_model import SolverOptions

# Smaller improvements are not sought. It is half of the gap that `optimal` allows; the other half
# is for the solver, and for the lighter one of two equally fast plans.
TIE = 0.5 * OPTIMAL_WITHIN
# Ratio of two neighbouring limits of the memory ladder.
LIMIT_STEP = 0.93
LIMIT_STEPS = 24
# Plans slower than this multiple of the fastest are not sought.
SLOWEST = 1.5
# Work for all layouts of one search (`Spent.work_s`); with a time limit, this share of its seconds.
MOST_WORK_S = 24.0
WORK_OF_TIME = 0.8
# Plans that are better by this share are sought first.
COARSE = 0.01
# Shares of the remaining work for the first limit and for each other limit: for a first result of
# each choice, for plans better by COARSE, and for all others.
FIRST_SHARES, LATER_SHARES = (0.1, 0.25, 0.2), (0.04, 0.15, 0.15)
# Work of one more solve, to build and read its model, and of one deterministic second of CP-SAT.
SOLVE_S, CP_SAT_S = 0.03, 1.5

Progress = Callable[[str, int, int], None]
# Seconds between two progress reports.
SAY_EVERY_S = 0.25
# Events that end a search before its limits on work do.
Stopped = Literal["", "time-limit", "interrupted"]


@dataclass(frozen=True)
class Effort:
    """How long to search. Without `time_limit_s` (wall time) the result is repeatable.

    `started_s`: start of that time, in `time.perf_counter`. `most_work_s`: limit on `Spent.work_s`.
    `tie`: improvements smaller than this share are not sought. `any_plan`: stop at the first plan
    that fits.
    """

    options: SolverOptions = field(default_factory=SolverOptions)
    time_limit_s: float | None = None
    most_solves: int | None = None
    most_work_s: float = MOST_WORK_S
    tie: float = TIE
    any_plan: bool = False
    started_s: float = field(default_factory=time.perf_counter, compare=False)

    @property
    def deadline(self) -> float | None:
        """When all searching ends, in `time.perf_counter`; None for never."""
        return None if self.time_limit_s is None else self.started_s + self.time_limit_s


@dataclass(frozen=True)
class Point:
    """A costed layout. `sample_s`: seconds of step time per sequence. `peak`: bytes; on several
    machines, the fullest GPU's share times the largest memory.

    `source`: the job that it belongs to, if several costed jobs are searched as one.
    """

    row: int
    layout: Layout
    sample_s: float
    peak: float
    source: int = 0


@dataclass(frozen=True)
class LimitResult:
    """The fastest plan found within a memory limit, and a bound that no plan beats."""

    limit_bytes: float
    point: Point | None
    bound: float

    @property
    def gap(self) -> float:
        """The largest share of the sample time that a better plan could save. Without a plan: 0 if
        it is proven that none exists, else 1."""
        if self.point is None:
            return 0.0 if np.isinf(self.bound) else 1.0
        return max(0.0, 1.0 - self.bound / self.point.sample_s)


@dataclass
class Ending:
    """The end of searches that share it: a deadline (`time.perf_counter`, None for none) or Ctrl-C.
    `stopped`: which one came."""

    deadline: float | None = None
    stopped: Stopped = ""

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, slightly above 0 after it; None without one."""
        return None if self.deadline is None else max(1e-3, self.deadline - time.perf_counter())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed or Ctrl-C was pressed."""
        late = self.deadline is not None and time.perf_counter() >= self.deadline
        if late and not self.stopped:
            self.stopped = "time-limit"
        return bool(self.stopped)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a first Ctrl-C end the searches instead of raising; a second one raises as usual.

        Only the main thread receives signals, and another program's handler is kept. In those cases
        this does nothing.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def handler(_number: int, _frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.stopped = "interrupted"

        signal.signal(signal.SIGINT, handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Spent(Ending):
    """Work done so far by explorers that are searched as one.

    `work_s`: counted rather than measured, so that a search is repeatable; roughly processor
    seconds. `limits`: limits examined. `held`: what stages may hold, as far as it was counted.
    """

    solves: int = 0
    work_s: float = 0.0
    limits: int = 0
    held: set[object] = field(default_factory=set)

    def add_solve(self, deterministic_s: float) -> None:
        """Count one solve of CP-SAT."""
        self.solves += 1
        self.work_s += SOLVE_S + CP_SAT_S * deterministic_s


@dataclass(frozen=True)
class Look:
    """One round over the shapes that may beat a plan by more than `tie`, until a total amount of
    work is done. `again`: retry what was undecided."""

    tie: float
    until_s: float
    again: bool = False

    def part(self, spent: Spent, left: int) -> Look:
        """The share of this round for one of `left` remaining jobs that share the work."""
        return replace(self, until_s=spent.work_s + (self.until_s - spent.work_s) / left)


def looks(effort: Effort, spent: Spent) -> Iterator[Look]:
    """The rounds at one limit. The first seeks much better plans, so that a good one is known soon;
    later ones seek slightly better plans with a share of the work that leaves some for other
    limits."""
    quick, coarse, fine = FIRST_SHARES if spent.limits == 0 else LATER_SHARES
    spent.limits += 1
    for tie, share, again in (
        (COARSE, quick, False), (COARSE, coarse, False), (effort.tie, fine, True)
    ):  # fmt: skip
        left_s = max(0.0, effort.most_work_s - spent.work_s)
        yield Look(max(tie, effort.tie), spent.work_s + share * left_s, again)


@dataclass
class Until(Ending):
    """The end of a chain of searches. It remembers what was requested after that, each thing
    once."""

    _untried: dict[str, None] = field(default_factory=dict)

    @property
    def untried(self) -> tuple[str, ...]:
        """Everything that was cut off."""
        return tuple(self._untried)

    def effort(self, effort: Effort) -> Effort:
        """An effort that begins now and ends with the chain."""
        return replace(effort, time_limit_s=self.seconds_left, started_s=time.perf_counter())

    def over(self, what: str) -> bool:
        """Whether no time is left for `what`, which is then recorded as untried."""
        if self.is_over:
            self._untried[what] = None
        return bool(self.stopped)
