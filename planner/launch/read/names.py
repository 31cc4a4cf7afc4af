"""Names of settings by dialect, from its `names.toml`, and what is not modelled of them, from its
`unmodelled.toml`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from planner.launch.registry import dialect_toml


def known_names(dialect: str, table: str) -> frozenset[str]:
    """The settings of a format, or of one of its tables."""
    return frozenset(dialect_toml(dialect, "names.toml")[table]["names"].split())


def is_known(tables: Mapping[str, Collection[str]], key: str) -> bool:
    """Whether a dotted key is among the names of its table, of the file itself under the name "";
    what lies deeper is taken for known."""
    table, _, rest = key.partition(".")
    inside = tables.get(table) if rest else None
    return table in tables[""] if inside is None else rest.split(".")[0] in inside


def meanings(dialect: str, table: str) -> Mapping[str, str]:
    """What the names of a table stand for."""
    found: Mapping[str, str] = dialect_toml(dialect, "names.toml")[table]
    return found


def left_out(dialect: str, whose: str, kind: str = "effects") -> Mapping[str, str]:
    """Settings that a prediction leaves out, with what that does, or another of their tables."""
    found: Mapping[str, str] = dialect_toml(dialect, "unmodelled.toml")[whose][kind]
    return found
