"""Distributes the rows of a table over threads, for compiled loops that release the interpreter
lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock

# With fewer rows than this, starting threads takes longer than the work; the same is true of
# calling the core for smaller parts.
_FEWEST = 128
# Parts per thread, so that no thread waits long for the last part, and the most rows of a part:
# Ctrl-C and the deadline take effect between parts.
_PARTS = 4
_MOST_ROWS = 8192

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_most_threads: ContextVar[int | None] = ContextVar("most_threads", default=None)


def limit_threads(count: int) -> None:
    """Limit the threads of `in_threads`, for a process that shares the machine."""
    _most_threads.set(count)


class OutOfTimeError(Exception):
    """The deadline came before the last row."""


@contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """Make `in_threads` raise OutOfTimeError after a deadline (`time.perf_counter`, None: none)."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def in_threads(work: Callable[[slice], None], count: int) -> None:
    """Call `work` on slices that cover `count` rows, on as many threads as there are processors or
    as `limit_threads` allows."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = max(1, min(_most_threads.get() or threads or 1, threads or 1, count // _FEWEST))
    shares = threads * min(_PARTS, count // (_FEWEST * threads)) if threads > 1 else 1
    size = max(1, min(_MOST_ROWS, -(-count // shares)))
    parts = _parts(count, size, _deadline.get())
    if threads == 1:
        for part in parts:
            work(part)
        return
    lock = Lock()

    def take() -> None:
        while True:
            with lock:
                part = next(parts, None)
            if part is None:
                return
            work(part)

    others = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        # If one part fails or is interrupted, the other threads stop after their current part.
        with lock:
            parts.close()
        wait(others)
    for each in others:
        each.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool of threads that are kept, because starting one takes as long as costing hundreds of
    configurations."""
    return ThreadPoolExecutor(threads)


def _parts(count: int, size: int, deadline: float | None) -> Generator[slice]:
    for start in range(0, count, size):
        if deadline is not None and time.perf_counter() > deadline:
            raise OutOfTimeError(f"{start:,} of {count:,} rows are done")
        yield slice(start, min(count, start + size))
