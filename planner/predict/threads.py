"""Rows of a table shared out among threads, for compiled loops that let go of the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Rows below which starting threads takes longer than the work.
_FEWEST = 128
# Parts for each thread, so that none waits long for the others' last.
_PARTS = 4


def in_threads(work: Callable[[slice], None], count: int) -> None:
    """Call `work` on slices that cover `count` rows, on as many threads as there are processors."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = min(threads or 1, count // _FEWEST)
    if threads <= 1:
        work(slice(0, count))
        return
    size = -(-count // (_PARTS * threads))
    parts = iter([slice(start, start + size) for start in range(0, count, size)])

    def take() -> None:
        for part in parts:
            work(part)

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(take) for _ in range(threads - 1)]
        take()
        for each in others:
            each.result()
