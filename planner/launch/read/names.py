"""Names of settings by dialect, from its `names.toml`, and what is not modelled of them, from its
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


# `shards`: states or weights are divided, or moved to the host; `saves`: less is kept for backward;
# `splits`: stages have other layers; `parallel`: the model is divided over more GPUs;
# `trains`: other weights are trained, or a part of them.
Effect = Literal["shards", "saves", "splits", "parallel", "trains", ""]
_ORDER: tuple[Effect, ...] = ("shards", "saves", "splits", "parallel", "trains")


def effect_of(name: str) -> Effect:
    """What the option may do; empty where its name says nothing. The name may be spelled
    `--own-option`, `own_option` or `table.own_option`."""
    plain = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
    if _pattern("nothing").search(plain):
        return ""
    return next((effect for effect in _ORDER if _pattern(effect).search(plain)), "")


@cache
def _pattern(effect: str) -> re.Pattern[str]:
    """The words of an effect, of which a name has one."""
    words = shipped_toml("planner.launch.read", "own_options.toml")[effect]
    return re.compile(rf"(^|_)({words})(_|\d|$)")
