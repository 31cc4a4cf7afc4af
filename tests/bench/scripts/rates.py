"""Rates of the compiled core on one job: prints CPU and wall seconds of each loop, by threads.

    python -P rates.py MODEL GPUS TOKENS THREADS

Run as a script on the sources that PYTHONPATH names; knows the loops of both versions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

# Costing is repeated until it took this long, and at least so often.
_LONG_ENOUGH_S, _LEAST = 1.0, 2


class Stopwatch:
    """Adds up the CPU and wall seconds of functions that it stands in for."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    def around(self, module: Any, name: str) -> None:
        """Measure every call of a module's function."""
        function = getattr(module, name)

        def timed(*arguments: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            result = function(*arguments)
            self.cpu_s += time.process_time() - cpu
            self.wall_s += time.perf_counter() - wall
            return result

        setattr(module, name, timed)

    def least(self, work: Callable[[], object]) -> dict[str, float]:
        """Fewest CPU and wall seconds inside those functions of several runs of `work`."""
        work()
        cpu, wall, runs = [], [], 0
        until = time.perf_counter() + _LONG_ENOUGH_S
        while runs < _LEAST or time.perf_counter() < until:
            self.cpu_s = self.wall_s = 0.0
            work()
            cpu.append(self.cpu_s)
            wall.append(self.wall_s)
            runs += 1
        return {"cpu_s": min(cpu), "wall_s": min(wall)}


def watch_kernel(watch: Stopwatch) -> None:
    """Measure the loops over keys and shapes."""
    from jobs import cost_model_module as cost_model

    if hasattr(cost_model, "in_threads"):
        watch.around(cost_model, "in_threads")
    else:
        watch.around(cost_model.kernel, "cost_keys")
        watch.around(cost_model.kernel, "cost_shapes")


def watch_bounds(watch: Stopwatch) -> None:
    """Measure the loop over bounds."""
    bounded_shapes = import_module("planner.search.bounded_shapes")
    if hasattr(bounded_shapes, "in_threads"):
        watch.around(bounded_shapes, "in_threads")
    else:
        watch.around(bounded_shapes.bounds, "bound_shapes")


def main(name: str, gpus: str, tokens: str, threads: int) -> None:
    """Measure one job."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    from jobs import cost_model, legal_columns

    from planner.search.bounded_shapes import BoundedShapes

    model = cost_model(name, gpus, float(tokens))
    columns = legal_columns(model)
    kernel, bounding = Stopwatch(), Stopwatch()
    watch_kernel(kernel)
    watch_bounds(bounding)
    costed = model.cost_shapes(columns)

    bounded = BoundedShapes(model, costed, columns, model.job.hbm_limit_bytes, 0.01)

    def bound() -> None:
        bounded.__dict__.pop("bounds", None)
        _ = bounded.bounds
        if hasattr(bounded, "_bound"):
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
