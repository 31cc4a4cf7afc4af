"""Compiles the cost core before its first use: by two processes if possible, with progress.

Machine code goes to the user's cache (`planner.cost._machine_code`), where later processes find it.
Without a cache, each process compiles what it calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner.cost import compiled
from planner.cost import fields as f
from planner.cost._entry import Entry
from planner.cost._jit import as_records
from planner.cost.inputs import GpuInputs, LinkInputs, as_declared
from planner.cost.piece_traffic import TRAFFIC_ROW, TRAFFICS
from planner.cost.tables import FrameworkInputs, JobInputs
from planner.job.errors import CannotTellError

Progress = Callable[[str, int, int], None]
# Seconds between two looks at the clock while the second process compiles.
_LOOKS_UP_S = 0.05

# A second process compiles the second group. Including its own start that takes it about as long as
# the first process needs for the first group.
_HERE = (
    compiled.cost_keys, compiled.cost_shapes, compiled.memory_phases,
)  # fmt: skip
_BESIDE = (
    compiled.bound_shapes, compiled.layout_terms, compiled.least_together,
)  # fmt: skip
ENTRIES = (*_HERE, *_BESIDE)


def missing() -> list[Entry]:
    """Entries of the core that are not in the cache."""
    return [entry for entry in ENTRIES if not entry.is_on_disk()]


def warm_up(progress: Progress | None = None, deadline: float | None = None) -> None:
    """Compile the `missing` entries; `progress` is called with (what, done, total).

    Each entry takes a second or two; Ctrl-C and the `deadline` (`time.perf_counter`,
    CannotTellError) take effect between two entries.
    """
    wanted = missing()
    here = [entry for entry in wanted if entry in _HERE]
    beside = [entry for entry in wanted if entry not in here]
    helper = _start_helper(beside) if here else None
    try:
        for done, entry in enumerate([*here, *beside]):
            _demand_time(deadline)
            if progress:
                progress(_text(entry), done, len(wanted))
            if helper and entry in beside:
                _wait_for(helper, deadline)
            # Entries that the helper compiled are only loaded; if it failed, they are compiled
            # here.
            _compile(entry)
    finally:
        if helper:
            helper.terminate()
    if progress and wanted:
        progress("compiled the cost core", len(wanted), len(wanted))


def _wait_for(helper: subprocess.Popen[bytes], deadline: float | None) -> None:
    while helper.poll() is None:
        _demand_time(deadline)
        time.sleep(_LOOKS_UP_S)


def _demand_time(deadline: float | None) -> None:
    if deadline is not None and time.perf_counter() > deadline:
        raise CannotTellError(
            "the time limit ended while the cost core was being compiled, which is done once; "
            "give more time, or run: planner warmup"
        )


def _text(entry: Entry) -> str:
    return f"compiling the cost core, once: {entry.__name__.replace('_', ' ')}"


def _start_helper(entries: Sequence[Entry]) -> subprocess.Popen[bytes] | None:
    """Start a second process that compiles some entries into the cache; None if there are none, if
    the machine has one processor, or if the process cannot start."""
    if not entries or (os.cpu_count() or 1) < 2:
        return None
    names = [entry.__name__ for entry in entries]
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "planner.predict.warmup", *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def _compile(entry: Entry) -> None:
    entry.compile_for(*_samples()[entry.__name__])


def _zeros(inputs: type[Any]) -> Any:
    values = dict.fromkeys(inputs._fields, 0)
    return as_declared(inputs(**values | inputs._field_defaults))


def _samples() -> dict[str, tuple[Any, ...]]:
    """Arguments of the types with which each entry is called."""
    from planner.predict.kernel_rows import work_arrays
    from planner.predict.links import network

    def table(columns: int, *shape: int) -> Any:
        return np.zeros((*shape, columns))

    vector, matrix, cube = np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1, 1))
    inputs = (
        _zeros(JobInputs), _zeros(FrameworkInputs), _zeros(GpuInputs), network(_zeros(LinkInputs))
    )  # fmt: skip
    rows = (f.OP_ROW, f.PARAM_ROW, f.SAVED_ROW, f.COMM_ROW)
    ops = [table(len(row.names or ()), 1) for row in rows]
    keys, shapes = table(f.KEY_COLUMNS, 1), table(len(f.SHAPE), 1)
    costs, steps = table(f.PIECE_COLUMNS, 1, 1), table(f.STEP_COLUMNS, 1)
    shape = (shapes[0], keys[0], costs[0])
    machines = (
        inputs[0], *(as_records([one]) for one in inputs[1:3]), inputs[3][None], matrix
    )  # fmt: skip
    *space, stages = work_arrays(1, 1)
    cost_shapes = (
        shapes, vector, keys, costs[None], matrix, vector, *machines, False, *space, steps, stages
    )  # fmt: skip
    bound_shapes = (
        shapes, vector, vector, False, keys, costs[None], matrix, vector, *machines, matrix
    )  # fmt: skip
    return {
        "cost_keys": (keys, *ops, *inputs, np.zeros(TRAFFICS, TRAFFIC_ROW), costs),
        "cost_shapes": cost_shapes,
        "bound_shapes": bound_shapes,
        "layout_terms": (*shape, *inputs[:3], inputs[3][None], 0, matrix, vector),
        "memory_phases": (*shape, *inputs[:2], matrix, cube, cube, *[matrix] * 5),
        "least_together": (
            np.zeros((1, 2), np.int64),
            np.zeros(1, np.int64),
            vector,
            False,
            matrix,
            np.zeros(1, np.int64),
        ),
    }


if __name__ == "__main__":
    for each in ENTRIES:
        if each.__name__ in sys.argv[1:]:
            _compile(each)
