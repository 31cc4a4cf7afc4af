"""Training scripts that families of vision-language models publish, translated into a Trainer's
settings by `family_scripts.toml`: which parts they train, where they put adapters, how large images
are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from planner.job.models.catalog import catalog_name, load_model
from planner.job.tuning import PROJECTOR, VISION_TOWER
from planner.launch.dialects.hf.arguments import (
    Named,
    Program,
    is_on,
    is_switched,
    known_model,
    value_of,
)
from planner.launch.dialects.hf.python import OTHER_CLASS, PREPARED
from planner.launch.languages.text import digits
from planner.launch.read.found import Setting
from planner.launch.registry import dialect_toml
from planner.launch.sentences import evaluated

# Parts that are trained in full beside adapters; the size of the largest image.
WHOLE_PARTS, LARGEST_IMAGE = "parts_trained_whole", "largest_image"
# What the source of such a script says about adapters; its settings are more reliable.
_OF_SOURCE = ("adapter", PREPARED, "lora_target_modules")
# Model classes that it loads for another task.
_CLASSIFIERS = ("automodelforsequenceclassification",)
# InternVL cuts images into squares with this many pixels a side.
_TILE = 448


@cache
def _families() -> Mapping[str, Mapping[str, Any]]:
    tables = dialect_toml("hf", "family_scripts.toml")
    return {name: table for name, table in tables.items() if isinstance(table, Mapping)}


@cache
def family_names() -> frozenset[str]:
    """Every setting of these scripts."""
    names = (name for table in _families().values() for name in table["names"].split())
    return frozenset((*names, WHOLE_PARTS, LARGEST_IMAGE))


def _family(named: Named) -> str:
    """The family whose script has these settings; empty if there is none."""
    for name, table in _families().items():
        if any(sign in named for sign in table["signs"]):
            return name
    return ""


def of_family(named: Named, program: Program) -> tuple[dict[str, Setting], Program]:
    """A family's settings translated into a Trainer's, and that program; other settings
    unchanged."""
    family = _family(named)
    if not family or program not in ("trainer", "trl"):
        return dict(named), program
    script = _FamilyScript(dict(named), _families()[family])
    script.read()
    return script.named, "trainer"


@dataclass
class _FamilyScript:
    """A script's settings, being translated."""

    named: dict[str, Setting]
    table: Mapping[str, Any]
    has_adapters: bool = field(init=False)

    def __post_init__(self) -> None:
        key = self.table["adapters"]
        self.has_adapters = is_switched(self.named, key)
        self.drop(*_OF_SOURCE)
        if value_of(self.named, OTHER_CLASS) not in _CLASSIFIERS:
            self.drop(OTHER_CLASS)
        if not self.has_adapters:
            self.drop("lora_r", "lora_rank")
        for name, value in self.table["defaults"].items():
            if self.has_adapters or not name.startswith("lora_"):
                self.named.setdefault(name, Setting(name, value, self._file))
        if self.has_adapters:
            self.put("lora_target_modules", self.table["targets"], key)

    @property
    def _file(self) -> str:
        return next((setting.file for setting in self.named.values()), "")

    def put(self, name: str, value: object, like: str) -> None:
        """Add a Trainer's setting, at the place of the script's setting that implies it."""
        where = self.named.get(like) or Setting(like, None, self._file)
        self.named[name] = replace(where, key=where.key, value=value, unknown="", spans=())

    def drop(self, *names: str) -> None:
        """Remove settings that have been translated."""
        for name in names:
            self.named.pop(name, None)

    def read(self) -> None:
        """Translate everything, by the family's table."""
        names: dict[str, Any] = {
            "named": self.named,
            "adapters": self.has_adapters,
            "on": partial(is_switched, self.named),
            "asked": partial(is_on, self.named),
            "value": partial(value_of, self.named),
            "number": lambda name: digits(value_of(self.named, name)),
            "first": lambda listed: next((one for one in listed if one in self.named), listed[0]),
            "llava_model": lambda: _llava_model(self.named),
            "grid": _grid,
        }
        for name, text in self.table["facts"].items():
            names[name] = evaluated(text, names)
        puts = {name: (evaluated(text, names), like)
                for name, (text, like) in self.table.get("put", {}).items()}  # fmt: skip
        if names["tower"] is not None:
            self._parts(names)
        for name in names.get("unsaid", ()):
            self.named.setdefault(name, Setting(name, False, ""))
        for name, (value, like) in puts.items():
            if value is not None:
                self.put(name, value, like)
        self.drop(*names["drop"])

    def _parts(self, names: Mapping[str, Any]) -> None:
        """Freezes or trains each part. Beside adapters the language model is always frozen."""
        states, like = {VISION_TOWER: names["tower"], PROJECTOR: names["projector"]}, names["like"]
        self.put("freeze_vision_tower", states[VISION_TOWER] == "frozen", like)
        self.put("freeze_merger", states[PROJECTOR] == "frozen", like)
        self.put("freeze_llm", names["language"] and not self.has_adapters, like)
        whole = [part for part, state in states.items() if state == "whole"]
        if self.has_adapters and whole:
            self.put(WHOLE_PARTS, ",".join(whole), like)


def _llava_model(named: Named) -> str:
    """The catalogue's model for a combination of language model, vision tower and image handling,
    or the checkpoint that holds both; empty if there is none."""
    name = str(named["model_name_or_path"].value) if "model_name_or_path" in named else ""
    language, tower = known_model(name) or "", value_of(named, "vision_tower")
    if language and load_model(language).spec.vision is not None:
        return name
    cuts = "anyres" in value_of(named, "image_aspect_ratio")
    # Without its publisher and without suffixes for tuning.
    plain = catalog_name(language) or "" if language else ""
    for row in dialect_toml("hf", "family_scripts.toml")["llava-models"]:
        if row["tower"] in tower and re.search(row["language"], plain):
            return str(row.get("tiles" if cuts else "square", ""))
    return ""


def _grid(tiles: int) -> str:
    """The largest image in pixels, `WIDTHxHEIGHT`, for a number of tiles. The tiles form the
    rectangle closest to a square: 6 tiles are 3 wide and 2 high."""
    high = max(one for one in range(1, int(tiles**0.5) + 1) if tiles % one == 0)
    return f"{tiles // high * _TILE}x{high * _TILE}"


def whole_parts(named: Named) -> Iterator[str]:
    """Parts that a family's script trains in full beside adapters."""
    yield from filter(None, value_of(named, WHOLE_PARTS).split(","))
