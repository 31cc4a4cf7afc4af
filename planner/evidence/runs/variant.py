"""A rule by which facts of a measured row change its framework's profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import load_framework
from planner.job.frameworks.techniques import technique_of

Tables = dict[str, Mapping[str, Any]]

Condition = Callable[[MeasuredRow], bool]


def says(column: str, pattern: str) -> Condition:
    """Rows whose column has words that match."""
    return lambda row: row.says(column, pattern)


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule: under `profiles` (all if empty), rows for which `applies` holds change `tables`."""

    name: str
    profiles: tuple[str, ...]
    applies: Condition
    tables: Tables


def technique_tables(name: str, profile: str = "megatron-core") -> Tables:
    """What a technique of a framework changes (`planner.job.frameworks.techniques`)."""
    technique = technique_of(load_framework(profile), name)
    if technique is None:
        raise KeyError(name)
    return dict(technique.changes(used=True))
