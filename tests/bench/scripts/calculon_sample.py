"""Calculon's search, its parts one after the other in a random order until some seconds are over.

    python calculon_sample.py SECONDS ARGUMENTS...

Run in a checkout of Calculon with the arguments of its command. It shares its search out among
processes by `multiprocessing.Pool`; the stand-in here runs the parts itself, and says how many.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import runpy
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


class Sample:
    """Runs parts of a search, as `multiprocessing.Pool` would all of them."""

    seconds = 0.0

    def __init__(self, _processes: int) -> None:
        pass

    def __enter__(self) -> Sample:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def starmap(
        self, search: Callable[..., tuple[Any, ...]], parts: Iterable[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """What the parts found that were begun in time."""
        waiting, found, began = list(parts), list[tuple[Any, ...]](), time.process_time()
        random.Random(0).shuffle(waiting)
        for part in waiting:
            if time.process_time() - began > self.seconds:
                break
            found.append(search(*part))
        spent, done = time.process_time() - began, len(found)
        costed = sum(executions for _, executions, *_ in found)
        figures = {"candidates": costed, "cpu_s": spent, "share": done / len(waiting)}
        print(f"Sample: {json.dumps(figures)}", flush=True)
        return found


if __name__ == "__main__":
    Sample.seconds = float(sys.argv[1])
    sys.argv = ["calculon", *sys.argv[2:]]
    logging.disable(logging.DEBUG)
    multiprocessing.Pool = Sample  # type: ignore[assignment, misc]
    runpy.run_path("bin/calculon", run_name="__main__")
