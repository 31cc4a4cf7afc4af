"""How many plans a search chose its fastest from, as far as that flatters it.

Plans of the same degrees and micro-batch share nearly all of their error, so of these only the
fastest counts (`planner.predict.uncertainty.selection`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.predict.uncertainty.selection import crowding
from planner.search.explorer import Explorer

# What makes plans differ in their errors.
_KEYS = ("tp", "pp", "cp", "ep", "mbs")
# Plans slower than the fastest by a larger factor are not among the near ones.
_FAR = 1.5


def crowding_of(explorers: Iterable[Explorer]) -> float:
    """The crowding of the plans near the fastest that fits, layers split evenly."""
    near = [_near(explorer) for explorer in explorers]
    return crowding(fastest_of_each(*map(np.concatenate, zip(*near, strict=True))))


def _near(explorer: Explorer) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Degrees and micro-batch, a row each, and seconds a sequence, of the near plans that fit."""
    times = explorer.sample_s
    fits = explorer.peak <= explorer.limit_bytes
    least = times.min(where=fits, initial=np.inf)
    rows = np.flatnonzero(fits & (times <= _FAR * least))
    keys = np.array([explorer.columns[name][rows] for name in _KEYS], dtype=np.int64).T
    return keys, np.asarray(times[rows], dtype=np.float64)


def fastest_of_each(keys: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least seconds of the plans of equal keys, a row of them for each plan."""
    order = np.argsort(seconds, kind="stable")
    _, first = np.unique(keys[order], axis=0, return_index=True)
    return np.sort(seconds[order][first])
