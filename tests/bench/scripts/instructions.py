"""What costing a candidate takes: instructions of the machine code, operations of the arithmetic.

    python -P instructions.py capture FILE MODEL GPUS TOKENS
    python -P instructions.py repeat FILE TIMES
    python -P instructions.py count FILE

`capture` writes the arguments with which `cost_shapes` costs a sample of a job's shapes: all that
share a frame (degrees and grid), of every n-th frame. `repeat` costs them so many times, to
run under callgrind; `count` costs them in plain Python and counts operations as they run.
"""

from __future__ import annotations

import builtins
import dis
import json
import math
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

# One frame of so many is in the sample.
_FRAMES = 24
_FRAME = ("tp", "cp", "ep", "etp", "dp", "pp", "vpp", "zero", "shard")


def sampled(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Rows of the shapes in the sample, those of one frame after each other."""
    frames = np.column_stack([columns[name] for name in _FRAME if name in columns])
    _, number = np.unique(frames, axis=0, return_inverse=True)
    order = np.argsort(number, kind="stable")
    return np.asarray(order[number[order] % _FRAMES == 0])


def capture(path: Path, name: str, gpus: str, tokens: str) -> None:
    """Write the arguments, and print how many candidates they are."""
    from jobs import cost_model, cost_model_module, legal_columns

    model = cost_model(name, gpus, float(tokens))
    columns = legal_columns(model)
    costed = model.cost_shapes(columns)
    rows = sampled(columns)
    totals = (model.prefix, model.totals)
    arguments: tuple[Any, ...]
    if hasattr(cost_model_module, "work_arrays"):
        told = model.inputs
        if hasattr(model, "machine_inputs"):
            told = (model.job_inputs, *model.machine_inputs)
        *space, stages = cost_model_module.work_arrays(len(model.pieces), int(columns["pp"].max()))
        arguments = (
            costed.shapes, rows.astype(np.float64), costed.keys, costed.costs, *totals,
            *told, False, *space, np.zeros_like(costed.steps), stages,
        )  # fmt: skip
    elif hasattr(model, "inputs"):
        arguments = (
            costed.shapes, rows.astype(np.float64), costed.keys, costed.costs, *totals,
            *model.inputs, np.zeros_like(costed.steps),
        )  # fmt: skip
    else:
        arguments = (
            np.ascontiguousarray(costed.shapes[rows]), costed.keys, costed.costs, *totals,
            model.job_inputs, model.framework_inputs, model.gpu_inputs, model.link_inputs,
        )  # fmt: skip
    path.write_bytes(pickle.dumps(arguments))
    print(len(rows))


def cost_shapes(*, plain: bool) -> Callable[..., object]:
    """`cost_shapes` of these sources; `plain`: as Python runs it (NUMBA_DISABLE_JIT=1 where the
    sources have no such form of it)."""
    try:
        from planner.cost.compiled import cost_shapes as entry
    except ModuleNotFoundError:
        from planner.cost import kernel

        function: Callable[..., object] = kernel.cost_shapes
        return function
    return entry.plain if plain else entry


def repeat(path: Path, times: int) -> None:
    """Cost the sample so many times."""
    arguments = pickle.loads(path.read_bytes())
    function = cost_shapes(plain=False)
    for _ in range(times):
        function(*arguments)


class Operations:
    """Counts operations of functions of the cost core while they run in plain Python.

    Arithmetic: + - * / // % ** of numbers; comparisons; and calls of min, max, abs, roots,
    logarithms and rounding. Reads and branches do not count; some index arithmetic does.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kinds: dict[CodeType, dict[int, str]] = {}

    def operations(self, code: CodeType) -> dict[int, str]:
        """Kind of operation by offset."""
        if code not in self._kinds:
            kinds = {"BINARY_OP": "arithmetic", "UNARY_NEGATIVE": "arithmetic"}
            kinds["COMPARE_OP"] = "comparison"
            self._kinds[code] = {
                each.offset: kinds[each.opname]
                for each in dis.get_instructions(code)
                if each.opname in kinds
            }
        return self._kinds[code]

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """What `sys.settrace` calls."""
        if "planner/cost/" not in frame.f_code.co_filename:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self.trace
        if event == "opcode":
            kind = self.operations(frame.f_code).get(frame.f_lasti)
            if kind:
                self.counts[kind] += 1
        return self.trace

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        """What `sys.setprofile` calls."""
        known = (builtins.min, builtins.max, builtins.abs)
        if event == "c_call" and "planner/cost/" in frame.f_code.co_filename:
            of_maths = getattr(called, "__module__", None) == math.__name__
            if called in known or of_maths:
                self.counts["function"] += 1


def count(path: Path) -> None:
    """Cost the sample in plain Python and print its operations by kind."""
    arguments = pickle.loads(path.read_bytes())
    function = cost_shapes(plain=True)
    counter = Operations()
    sys.setprofile(counter.profile)
    sys.settrace(counter.trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    print(json.dumps(counter.counts))


if __name__ == "__main__":
    what, file, *rest = sys.argv[1:]
    if what == "capture":
        capture(Path(file), *rest)
    elif what == "repeat":
        repeat(Path(file), int(rest[0]))
    else:
        count(Path(file))
