"""Names of settings by format, from `names.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def known_names(table: str) -> frozenset[str]:
    """The settings of a format, or of one of its tables."""
    text = files("planner.launch.read").joinpath("names.toml").read_text("utf-8")
    return frozenset(tomllib.loads(text)[table]["names"].split())
