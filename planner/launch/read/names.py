"""Names of settings by format, from `names.toml`, and what is not modelled of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import tomli as tomllib


@cache
def _tables(file: str) -> dict[str, Any]:
    text = files("planner.launch.read").joinpath(file).read_text("utf-8")
    return tomllib.loads(text)


@cache
def known_names(table: str) -> frozenset[str]:
    """The settings of a format, or of one of its tables."""
    return frozenset(_tables("names.toml")[table]["names"].split())


def meanings(table: str) -> Mapping[str, str]:
    """What the names of a table stand for."""
    found: Mapping[str, str] = _tables("names.toml")[table]
    return found


def left_out(whose: str, kind: str = "effects") -> Mapping[str, str]:
    """Settings that a prediction leaves out, with what that does, or another table of theirs in
    `unmodelled.toml`."""
    found: Mapping[str, str] = _tables("unmodelled.toml")[whose][kind]
    return found
