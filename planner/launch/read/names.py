"""The names of a dialect's settings, from its `names.toml`; and those that are not modelled, from
its `unmodelled.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Literal

from hardware.files import shipped_toml
from planner.launch.registry import dialect_toml


def known_names(dialect: str, table: str) -> frozenset[str]:
    """All names of settings in one table of a dialect's `names.toml`."""
    return frozenset(dialect_toml(dialect, "names.toml")[table]["names"].split())


def is_known(tables: Mapping[str, Collection[str]], key: str) -> bool:
    """Whether a dotted key is among the names of its table (table "" for the top level). Only the
    first two parts of the key are checked. `tables`: names by table."""
    table, _, rest = key.partition(".")
    inside = tables.get(table) if rest else None
    return table in tables[""] if inside is None else rest.split(".")[0] in inside


def meanings(dialect: str, table: str) -> Mapping[str, str]:
    """A table of a dialect's `names.toml`: name of a setting -> its meaning."""
    found: Mapping[str, str] = dialect_toml(dialect, "names.toml")[table]
    return found


def left_out(dialect: str, whose: str, kind: str = "effects") -> Mapping[str, str]:
    """Settings that a prediction leaves out: name -> the effect that is missed. `whose`: the part
    of `unmodelled.toml`; `kind`: its table, if not that of effects."""
    found: Mapping[str, str] = dialect_toml(dialect, "unmodelled.toml")[whose][kind]
    return found


# `shards`: states or weights are divided or moved to the host; `saves`: less is kept for backward;
# `splits`: the layers of stages change; `parallel`: the model is divided over more GPUs; `trains`:
# a different set of weights is trained.
Effect = Literal["shards", "saves", "splits", "parallel", "trains", ""]
_ORDER: tuple[Effect, ...] = ("shards", "saves", "splits", "parallel", "trains")


def effect_of(name: str) -> Effect:
    """The effect that an option may have on memory or the layout, guessed from its name; empty if
    the name suggests none. The name may be `--own-option`, `own_option` or `table.own_option`."""
    plain = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
    if _pattern("nothing").search(plain):
        return ""
    return next((effect for effect in _ORDER if _pattern(effect).search(plain)), "")


@cache
def _pattern(effect: str) -> re.Pattern[str]:
    """A pattern that finds a word for an effect in an option's name."""
    words = shipped_toml("planner.launch.read", "own_options.toml")[effect]
    return re.compile(rf"(^|_)({words})(_|\d|$)")
