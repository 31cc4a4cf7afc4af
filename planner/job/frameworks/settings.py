"""The settings of a profile as people read them: type, unit, default, meaning, source.

All of it is read from the declarations (`hardware.settings`), when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from hardware.settings import declarations
from planner.job.frameworks.tables import SETTINGS

_CAPABILITIES = "constraints", "capabilities.toml"
# Tables of a framework's file that hold settings, in the order in which they are shown.
TABLES = {
    "parallelism": "Parallelism",
    "saved": "Bytes per element kept for backward",
    "state": "Weights, gradients and optimizer",
    "optimizer": "Optimizers: families (none: any), types, kernels, offload",
    "activation_offload": "Activations on the host",
    "recomputing": "Further forms of recomputation",
    "kernels": "How work is issued",
    "overlap": "Share of traffic that may hide behind compute",
    "outside": "Memory outside tensors",
    "full_memory": "Runs near full memory",
}


class DeclaredSetting(NamedTuple):
    """One declared setting. `default`: None where a file must give it or where that is it."""

    table: str
    name: str
    type: str
    unit: str
    default: Any
    meaning: str
    source: str


@cache
def settings_of(table: str) -> tuple[DeclaredSetting, ...]:
    """The settings of one of TABLES, in the order of their declaration."""
    file = _CAPABILITIES if table == "parallelism" else SETTINGS
    rows = declarations(*file)[table].items()
    return tuple(_declared(table, name, row) for name, row in rows)


def _declared(table: str, name: str, row: Mapping[str, Any]) -> DeclaredSetting:
    """A setting of `settings.toml`."""
    unit = row.get("unit", "1" if row["type"].startswith(("number", "integer")) else "")
    default, source = row.get("default"), row.get("source", "")
    return DeclaredSetting(table, name, row["type"], unit, default, row["meaning"], source)
