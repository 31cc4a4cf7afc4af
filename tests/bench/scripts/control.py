"""Wall seconds of plain arithmetic, in one process and in two at once: what a second processor
adds where nothing is shared.

    python -P control.py
"""

from __future__ import annotations

import json
import time
from multiprocessing import get_context

# Additions of a process, and how often it is tried.
_ADDITIONS, _TRIES = 3_000_000, 9


def add(begins_s: float) -> tuple[float, float]:
    """When a sum that starts at a time began and ended."""
    while time.time() < begins_s:
        pass
    began, total = time.time(), 0
    for each in range(_ADDITIONS):
        total += each
    return began, time.time()


def seconds(processes: int) -> float:
    """Fewest seconds in which so many processes add at once."""
    found = []
    with get_context("spawn").Pool(processes) as pool:
        for _ in range(_TRIES):
            spans = pool.map(add, [time.time() + 0.1] * processes, chunksize=1)
            found.append(max(end for _, end in spans) - min(began for began, _ in spans))
    return min(found)


if __name__ == "__main__":
    print(json.dumps(2.0 * seconds(1) / seconds(2)))
