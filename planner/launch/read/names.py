"""Names of settings by dialect, from `names.toml`, and which of them are not modelled, from
`unmodelled.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Literal

from hardware.files import shipped_toml
from planner.launch.registry import dialect_toml


def known_names(dialect: str, table: str) -> frozenset[str]:
    """The settings of a format, or of one of its tables."""
    return frozenset(dialect_toml(dialect, "names.toml")[table]["names"].split())


def is_known(tables: Mapping[str, Collection[str]], key: str) -> bool:
    """Whether a dotted key is among the names of its table ("" for the top level); deeper keys
    count as known."""
    table, _, rest = key.partition(".")
    inside = tables.get(table) if rest else None
    return table in tables[""] if inside is None else rest.split(".")[0] in inside


def meanings(dialect: str, table: str) -> Mapping[str, str]:
    """The meanings of names in a table."""
    found: Mapping[str, str] = dialect_toml(dialect, "names.toml")[table]
    return found


def left_out(dialect: str, whose: str, kind: str = "effects") -> Mapping[str, str]:
    """Settings that a prediction leaves out, each with the effect of that; or another of their
    tables."""
    found: Mapping[str, str] = dialect_toml(dialect, "unmodelled.toml")[whose][kind]
    return found


# `shards`: states or weights are divided or moved to the host; `saves`: less is kept for backward;
# `splits`: the layers of stages change; `parallel`: the model is divided over more GPUs; `trains`:
# a different set of weights is trained.
Effect = Literal["shards", "saves", "splits", "parallel", "trains", ""]
_ORDER: tuple[Effect, ...] = ("shards", "saves", "splits", "parallel", "trains")


def effect_of(name: str) -> Effect:
    """The possible effect of an option, judging by its name; empty if the name says nothing. The
    name may be `--own-option`, `own_option` or `table.own_option`."""
    plain = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
    if _pattern("nothing").search(plain):
        return ""
    return next((effect for effect in _ORDER if _pattern(effect).search(plain)), "")


@cache
def _pattern(effect: str) -> re.Pattern[str]:
    """The words for an effect, one of which a name contains."""
    words = shipped_toml("planner.launch.read", "own_options.toml")[effect]
    return re.compile(rf"(^|_)({words})(_|\d|$)")
