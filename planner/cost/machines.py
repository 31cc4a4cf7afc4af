"""How many machines a step runs on: code that is compiled for one has no loops over them."""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.tables import Array

SEVERAL = True
"""Whether there may be more than one. Code compiled for one machine has False here
(`planner.cost._entry`)."""


@jit
def machine_count(frameworks: Rows) -> int:
    """Machines, of a table that has a row for each."""
    return int(frameworks.shape[0]) if SEVERAL else 1


@jit
def machine_of(group: Row) -> int:
    """The machine of a group of stages."""
    return int(group.machine) if SEVERAL else 0


@jit
def machine_at(place: Array, stage: int) -> int:
    """The machine of a stage; `place`: that of each."""
    return int(place[stage]) if SEVERAL else 0
