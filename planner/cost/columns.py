"""Reductions over a column of a table, as loops: each of numpy's costs a second to compile."""

from __future__ import annotations

import numpy as np

from planner.cost._jit import jit
from planner.cost.tables import Array


@jit
def least(table: Array, column: int) -> float:
    """Smallest value of a column; infinite in an empty table."""
    value = np.inf
    for row in range(table.shape[0]):
        value = min(value, table[row, column])
    return float(value)


@jit
def greatest(table: Array, column: int) -> float:
    """Largest value of a column of positive numbers; 0 in an empty table."""
    value = 0.0
    for row in range(table.shape[0]):
        value = max(value, table[row, column])
    return float(value)


@jit
def least_of(layers: Array, column: int) -> float:
    """Smallest value of a column, over machines and kinds."""
    value = np.inf
    for at in range(layers.shape[0]):
        value = min(value, least(layers[at], column))
    return float(value)


@jit
def greatest_of(layers: Array, column: int) -> float:
    """Largest value of a column of positive numbers, over machines and kinds."""
    value = 0.0
    for at in range(layers.shape[0]):
        value = max(value, greatest(layers[at], column))
    return float(value)


@jit
def weighted(weights: Array, table: Array, column: int) -> float:
    """Sum of a column, each row times its weight."""
    total = 0.0
    for row in range(table.shape[0]):
        total += weights[row] * table[row, column]
    return float(total)
