"""Loops over the machines of a job; code that is compiled for one machine has none."""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.tables import Array

SEVERAL = True
"""Whether there may be more than one. Code compiled for one machine has False here
(`planner.cost._entry`)."""


@jit
def machine_count(frameworks: Rows) -> int:
    """Number of machines; `frameworks` has a row for each."""
    return int(frameworks.shape[0]) if SEVERAL else 1


@jit
def machine_of(group: Row) -> int:
    """The machine of a group of stages."""
    return int(group.machine) if SEVERAL else 0


@jit
def machine_at(place: Array, stage: int) -> int:
    """The machine of a stage; `place` holds the machine of each stage."""
    return int(place[stage]) if SEVERAL else 0
