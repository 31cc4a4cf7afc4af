"""Rates of the compiled core on one job: prints processor seconds of each loop, by threads.

    python -P rates.py MODEL GPUS TOKENS THREADS

Run as a script on the sources that PYTHONPATH names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import numpy as np

# Costing is repeated until it took this long, and at least so often.
_LONG_ENOUGH_S, _LEAST = 1.0, 2


class Stopwatch:
    """Adds up the processor seconds of the compiled loops in each thread.

    Not by the clock: what a thread waits for on a busy machine is not its loop's.
    """

    def __init__(self, module: Any) -> None:
        self.seconds: dict[int, float] = {}
        in_threads = module.in_threads

        def timed(work: Callable[[slice], None], count: int) -> None:
            def part(rows: slice) -> None:
                began, thread = time.thread_time(), get_ident()
                work(rows)
                spent = time.thread_time() - began
                self.seconds[thread] = self.seconds.get(thread, 0.0) + spent

            in_threads(part, count)

        module.in_threads = timed

    def least(self, work: Callable[[], object]) -> dict[str, float]:
        """Fewest seconds inside those loops of several runs of `work`: of all threads together, and
        of the busiest."""
        work()
        together, busiest = [], []
        until = time.perf_counter() + _LONG_ENOUGH_S
        while len(together) < _LEAST or time.perf_counter() < until:
            self.seconds.clear()
            work()
            together.append(sum(self.seconds.values()))
            busiest.append(max(self.seconds.values()))
        return {"cpu_s": min(together), "busiest_s": min(busiest)}


def main(name: str, gpus: str, tokens: str, threads: int) -> None:
    """Measure one job."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    from jobs import cost_model, cost_model_module, legal_columns

    from planner.search import bounded_shapes

    model = cost_model(name, gpus, float(tokens))
    columns = legal_columns(model)
    kernel, bounding = Stopwatch(cost_model_module), Stopwatch(bounded_shapes)
    costed = model.cost_shapes(columns)

    limit = model.job.hbm_limit_bytes
    bounded = bounded_shapes.BoundedShapes(model, costed, columns, limit, 0.01)

    def bound() -> None:
        bounded.__dict__.pop("bounds", None)
        _ = bounded.bounds
        # Bounds come as a search asks for them: for all shapes, from the least memory limit on.
        bounded._bound(np.flatnonzero(bounded._bounded > 0), 0)

    print(
        json.dumps(
            {
                "shapes": len(columns["tp"]),
                "keys": len(costed.keys),
                "bounded": len(bounded.rows),
                "kernel": kernel.least(lambda: model.cost_shapes(columns)),
                "bounds": bounding.least(bound),
            }
        )
    )


if __name__ == "__main__":
    name_, gpus_, tokens_, threads_ = sys.argv[1:]
    main(name_, gpus_, tokens_, int(threads_))
