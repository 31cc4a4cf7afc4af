"""What an option that no reader knows may do, by its name.

A fork of a framework, or a program of one's own, adds options that nothing here describes. Every
reader asks this module what such an option may change, so that one name means the same in all of
them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from hardware.files import shipped_toml

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
