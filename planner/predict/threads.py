"""Rows of a table shared out among threads, for compiled loops that let go of the interpreter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock

# Rows below which starting threads takes longer than the work, and calling the core longer than
# what a part of it costs.
_FEWEST = 128
# Parts for each thread, so that none waits long for the others' last, and rows of a part at most:
# between parts Ctrl-C and the deadline are heard.
_PARTS = 4
_MOST_ROWS = 8192

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_most_threads: ContextVar[int | None] = ContextVar("most_threads", default=None)


def limit_threads(count: int) -> None:
    """Let `in_threads` take so many threads at most, in a process that shares the machine."""
    _most_threads.set(count)


class OutOfTimeError(Exception):
    """The deadline came before the last row."""


@contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """Let `in_threads` raise OutOfTimeError after a deadline (`time.perf_counter`, None: none)."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def in_threads(work: Callable[[slice], None], count: int) -> None:
    """Call `work` on slices that cover `count` rows, on as many threads as there are processors, or
    as `limit_threads` says."""
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
        # Where one fails, or was interrupted, the others end with the part they are at.
        with lock:
            parts.close()
        wait(others)
    for each in others:
        each.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: starting one takes as long as costing hundreds of configurations."""
    return ThreadPoolExecutor(threads)


def _parts(count: int, size: int, deadline: float | None) -> Generator[slice]:
    for start in range(0, count, size):
        if deadline is not None and time.perf_counter() > deadline:
            raise OutOfTimeError(f"{start:,} of {count:,} rows are done")
        yield slice(start, min(count, start + size))
