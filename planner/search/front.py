"""Pareto geometry for points whose coordinates should all be small, such as step time and memory.

Pure functions over arrays. Ties go to the lower index, so only the order of the input decides them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A printed front leaves out plans that save less time or memory than these shares: the arguments of
# `thin` and `without_near`.
ALIKE = 0.01
SAVING = 0.05

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def thin(sample_s: Floats, peak: Floats, order: Indices, tie: float, saving: float) -> Indices:
    """A front, fastest first, without uninformative points.

    Going down in memory, a point is kept if it saves the share `saving` of the last kept point's
    peak. If it is also within `tie` of the last kept point's sample time, it replaces that point,
    because nobody would choose the heavier of two equally fast plans. The fastest point always
    stays.
    """
    kept: list[int] = []
    for index in order.tolist():
        if not kept:
            kept.append(index)
            continue
        last = kept[-1]
        if peak[index] > (1.0 - saving) * peak[last]:
            continue
        replaces = len(kept) > 1 and sample_s[index] <= (1.0 + tie) * sample_s[last]
        if replaces:
            kept[-1] = index
        else:
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def nondominated(table: Floats) -> Indices:
    """Rows that no other row dominates, in order of the first column; one of equal rows.

    `table`: [points, dimensions]; smaller is better. No row is at least as good in every column and
    better in one than a kept row.
    """
    keys = tuple(table[:, column] for column in range(table.shape[1] - 1, -1, -1))
    order = np.lexsort((np.arange(len(table)), *keys))
    kept: list[int] = []
    for index in order.tolist():
        # Only rows before it in the order can be at least as good everywhere.
        if not (table[kept] <= table[index]).all(axis=1).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def without_near(table: Floats, order: Indices, tie: float, saving: float) -> Indices:
    """Rows of a front, smallest first column first, without uninformative ones.

    A row is left out if some kept row exceeds it by at most the share `tie` in the first column,
    and it saves less than the share `saving` of that row in every other column.
    """
    kept: list[int] = []
    for index in order.tolist():
        one_table = table[index]
        as_fast = table[kept, 0] <= (1.0 + tie) * one_table[0]
        little = (one_table[1:] > (1.0 - saving) * table[kept, 1:]).all(axis=1)
        if not (as_fast & little).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)
