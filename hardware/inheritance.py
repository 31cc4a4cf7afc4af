"""Curves that one table takes from another (`like = "..."`), labelled as what they then are."""

from __future__ import annotations

from typing import Any


def as_extrapolated(entry: Any, origin: str) -> Any:
    """A copied figure, labelled as taken from another table (`like`); an assumption stays one."""
    if not isinstance(entry, dict):
        return entry
    if "value" not in entry:
        return {key: as_extrapolated(value, origin) for key, value in entry.items()}
    provenance = "assumed" if entry["provenance"] == "assumed" else "extrapolated"
    return {**entry, "provenance": provenance, "fitted_on": f"as {origin}"}
