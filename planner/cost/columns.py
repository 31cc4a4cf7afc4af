"""Reductions over a column of a table, written as loops: numpy's would each take a second to
compile."""

from __future__ import annotations

import numpy as np

from planner.cost._jit import jit
from planner.cost.tables import Array


@jit
def least(table: Array, column: int) -> float:
    """Smallest value in a column; infinite for an empty table."""
    value = np.inf
    for row in range(table.shape[0]):
        value = min(value, table[row, column])
    return float(value)


@jit
def greatest(table: Array, column: int) -> float:
    """Largest value in a column of positive numbers; 0 for an empty table."""
    value = 0.0
    for row in range(table.shape[0]):
        value = max(value, table[row, column])
    return float(value)


@jit
def least_of(layers: Array, column: int) -> float:
    """Smallest value in a column, over machines and kinds of layers."""
    value = np.inf
    for at in range(layers.shape[0]):
        value = min(value, least(layers[at], column))
    return float(value)


@jit
def greatest_of(layers: Array, column: int) -> float:
    """Largest value in a column of positive numbers, over machines and kinds of layers."""
    value = 0.0
    for at in range(layers.shape[0]):
        value = max(value, greatest(layers[at], column))
    return float(value)


@jit
def weighted(weights: Array, table: Array, column: int) -> float:
    """Weighted sum of a column, with one weight for each row."""
    total = 0.0
    for row in range(table.shape[0]):
        total += weights[row] * table[row, column]
    return float(total)
