"""Layouts solved ahead, in threads: work that the search will want next unless its target moves.

The search takes its steps one after the other, as with one worker. While it solves one shape, the
others solve those that come next if nothing better is found; a step whose question was answered
ahead takes that answer, and answers to questions that it never asks are thrown away. Every question
goes to a solver of one thread, so the outcome is the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from planner.search.block_bound import Bound
from planner.search.layout_model import LayoutSolution

# Row, memory limit in bytes, step times in seconds between which an answer is wanted, the bound
# from which to start.
Question = tuple[int, float, tuple[float, float], Bound]
Solve = Callable[[], LayoutSolution]


class Ahead:
    """Solves asked ahead of time by up to `workers` - 1 threads."""

    def __init__(self, workers: int) -> None:
        self.threads = workers - 1
        self._pool: ThreadPoolExecutor | None = None
        self._started: dict[Question, Future[LayoutSolution]] = {}

    @property
    def idle_workers(self) -> int:
        """Questions that a thread is free for."""
        return self.threads - sum(not future.done() for future in self._started.values())

    def has(self, question: Question) -> bool:
        """Whether a question is being answered, or was."""
        return question in self._started

    def start(self, question: Question, solve: Solve) -> None:
        """Begin to answer a question in a thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads)
        self._started[question] = self._pool.submit(solve)

    def answer(self, question: Question) -> LayoutSolution | None:
        """The answer to a question that was started; None for any other."""
        future = self._started.pop(question, None)
        return None if future is None else future.result()

    def forget(self) -> None:
        """Drop what was not asked for after all."""
        self._started.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
