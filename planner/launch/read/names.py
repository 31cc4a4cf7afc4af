"""Names of settings by format, from `names.toml`, and what is not modelled of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from hardware.files import shipped_toml


@cache
def _tables(file: str) -> dict[str, Any]:
    return shipped_toml("planner.launch.read", file)


@cache
def known_names(table: str) -> frozenset[str]:
    """The settings of a format, or of one of its tables."""
    return frozenset(_tables("names.toml")[table]["names"].split())


def is_known(tables: Mapping[str, Collection[str]], key: str) -> bool:
    """Whether a dotted key is among the names of its table, of the file itself under the name "";
    what lies deeper is taken for known."""
    table, _, rest = key.partition(".")
    inside = tables.get(table) if rest else None
    return table in tables[""] if inside is None else rest.split(".")[0] in inside


def meanings(table: str) -> Mapping[str, str]:
    """What the names of a table stand for."""
    found: Mapping[str, str] = _tables("names.toml")[table]
    return found


def left_out(whose: str, kind: str = "effects") -> Mapping[str, str]:
    """Settings that a prediction leaves out, with what that does, or another table of theirs in
    `unmodelled.toml`."""
    found: Mapping[str, str] = _tables("unmodelled.toml")[whose][kind]
    return found
