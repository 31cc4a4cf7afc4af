"""How long a chain of searches may go on: until a deadline, or until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from planner.search.limit_results import Stopped, stopped_by_signal


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
