"""Rows shared out among threads: each once, and no more after an end."""

from __future__ import annotations

import threading
import time
from contextvars import copy_context

import numpy as np
import pytest

from planner.predict.threads import OutOfTimeError, in_threads, limit_threads, until


@pytest.mark.parametrize("count", [0, 1, 127, 1_000, 20_001])
def test_every_row_once(count: int) -> None:
    rows = np.zeros(count, dtype=int)

    def work(part: slice) -> None:
        rows[part] += 1

    in_threads(work, count)
    assert (rows == 1).all()


def test_no_more_threads_than_a_process_may_take() -> None:
    used: set[int] = set()

    def work(_: slice) -> None:
        used.add(threading.get_ident())
        time.sleep(0.001)

    def alone() -> None:
        limit_threads(1)
        in_threads(work, 1_000)

    copy_context().run(alone)
    assert used == {threading.get_ident()}


def test_a_deadline_ends_it_between_parts() -> None:
    done: list[slice] = []

    def work(part: slice) -> None:
        time.sleep(0.02)
        done.append(part)

    with until(time.perf_counter() + 0.05), pytest.raises(OutOfTimeError, match="rows are done"):
        in_threads(work, 1_000_000)
    assert 1 <= len(done) < 20
    in_threads(lambda _: None, 1_000_000)


def test_what_interrupts_one_part_ends_the_others() -> None:
    """As Ctrl-C does, which the main thread gets."""
    done: list[slice] = []

    def work(part: slice) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.02)
        done.append(part)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, 1_000_000)
    assert len(done) < 20
