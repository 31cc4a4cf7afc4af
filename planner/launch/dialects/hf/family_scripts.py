"""The training scripts that families of vision-language models publish (`family_scripts.toml`), in
the settings that a Trainer's scripts are read by: which parts they train, where they put adapters,
how large images are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
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

# Parts that scripts train in full beside adapters; the size of the largest image.
WHOLE_PARTS, LARGEST_IMAGE = "parts_trained_whole", "largest_image"
_TOWER, _MERGER, _LANGUAGE = "freeze_vision_tower", "freeze_merger", "freeze_llm"
# What the source of such a script says of adapters; its settings, which are known, say it better.
_OF_SOURCE = ("adapter", PREPARED, "lora_target_modules")
# Classes that it loads for another task.
_CLASSIFIERS = ("automodelforsequenceclassification",)
_MERGERS = (
    "freeze_merger", "freeze_connector", "freeze_projector", "freeze_img_projector",
)  # fmt: skip
# InternVL cuts images into squares of so many pixels a side.
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
    """Whose script has these settings; empty where it is none of them."""
    for name, table in _families().items():
        if any(sign in named for sign in table["signs"]):
            return name
    return ""


def of_family(named: Named, program: Program) -> tuple[dict[str, Setting], Program]:
    """A family's settings as those that a Trainer's scripts are read by, and that program; those of
    other scripts as they are."""
    family = _family(named)
    if not family or program not in ("trainer", "trl"):
        return dict(named), program
    script = _FamilyScript(dict(named), _families()[family])
    _READ[family](script)
    return script.named, "trainer"


@dataclass
class _FamilyScript:
    """Settings that are being put into other words."""

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
        """A setting in a Trainer's words, at the place of the one that says it."""
        where = self.named.get(like) or Setting(like, None, self._file)
        self.named[name] = replace(where, key=where.key, value=value, unknown="", spans=())

    def drop(self, *names: str) -> None:
        """Settings that are said in other words now."""
        for name in names:
            self.named.pop(name, None)

    def parts(self, tower: str, projector: str, *, language_frozen: bool, like: str) -> None:
        """What is trained of each part: `frozen`, `adapted` or `whole`. Beside adapters the
        language model's own weights are frozen in any case."""
        self.put(_TOWER, tower == "frozen", like)
        self.put(_MERGER, projector == "frozen", like)
        self.put(_LANGUAGE, language_frozen and not self.has_adapters, like)
        states = {VISION_TOWER: tower, PROJECTOR: projector}
        whole = [part for part, state in states.items() if state == "whole"]
        if self.has_adapters and whole:
            self.put(WHOLE_PARTS, ",".join(whole), like)

    def switched(self, name: str) -> bool:
        """Whether a switch is on."""
        return is_switched(self.named, name)

    def switch(self, names: Mapping[str, str]) -> None:
        """Switches of the script that are on, by a Trainer's names."""
        for own, name in names.items():
            if self.switched(own):
                self.put(name, True, own)


def _read_llava(script: _FamilyScript) -> None:
    """LLaVA: the tower is frozen unless it is told otherwise, `tune_mm_mlp_adapter` leaves the
    projector alone to train, `mm_tunable_parts` names what trains; beside adapters on the language
    model the projector is trained in full (initialize_vision_modules makes it after them)."""
    named, tuned = script.named, value_of(script.named, "mm_tunable_parts").split(",")
    like = "mm_tunable_parts" if tuned != [""] else "tune_mm_mlp_adapter"
    if tuned != [""]:
        tower = "mm_vision_tower" in tuned
        projector, language = "mm_mlp_adapter" in tuned, "mm_language_model" in tuned
    else:
        alone = script.switched("tune_mm_mlp_adapter")
        tower = script.switched("unfreeze_mm_vision_tower")
        projector = alone or not script.switched("freeze_mm_mlp_adapter")
        language = not alone and not script.switched("freeze_backbone")
    states = ("frozen", "whole")
    script.parts(states[tower], states[projector], language_frozen=not language, like=like)
    model = _llava_model(named)
    if model:
        script.put("model_name_or_path", model, "model_name_or_path")
        script.drop("vision_tower")
    script.drop("tune_mm_mlp_adapter", "freeze_backbone")


def _llava_model(named: Named) -> str:
    """The catalogue's model of a language model, a tower and what is done with images, or the
    checkpoint that has them both; empty where it has none."""
    name = str(named["model_name_or_path"].value) if "model_name_or_path" in named else ""
    language, tower = known_model(name) or "", value_of(named, "vision_tower")
    if language and load_model(language).spec.vision is not None:
        return name
    cuts = "anyres" in value_of(named, "image_aspect_ratio")
    # Without its publisher and how it was tuned.
    plain = catalog_name(language) or "" if language else ""
    for row in dialect_toml("hf", "family_scripts.toml")["llava-models"]:
        if row["tower"] in tower and re.search(row["language"], plain):
            return str(row.get("tiles" if cuts else "square", ""))
    return ""


def _read_merger(script: _FamilyScript) -> None:
    """2U1's: beside adapters `freeze_llm` says what they stand beside, a tower and a merger that
    are not frozen are trained in full, and `vision_lora` puts adapters on both; adapters on all
    linear layers but those that `lora_namespan_exclude` names."""
    named = script.named
    merger = next((name for name in _MERGERS if name in named), _MERGERS[0])
    adapted = script.has_adapters and script.switched("vision_lora")
    frozen = "adapted" if adapted else "frozen"
    tower = frozen if script.switched(_TOWER) or adapted else "whole"
    projector = frozen if script.switched(merger) else "whole"
    script.parts(tower, projector, language_frozen=script.switched(_LANGUAGE), like=merger)
    script.drop("vision_lora", *(name for name in _MERGERS if name != _MERGER))
    if "image_max_pixels" in named:
        script.put("max_pixels", named["image_max_pixels"].value, "image_max_pixels")
    script.switch({"use_liger": "use_liger_kernel"})
    script.drop("use_liger")


def _read_tuned_parts(script: _FamilyScript) -> None:
    """Qwen's own: beside adapters on the language model's attention nothing else is trained; what
    it flattens is a micro-batch without padding."""
    tunes = ("tune_mm_vision", "tune_mm_mlp", "tune_mm_llm")
    if script.has_adapters:
        script.parts("frozen", "frozen", language_frozen=False, like="lora_enable")
        script.drop(*tunes)
    else:
        for name in tunes:
            script.named.setdefault(name, Setting(name, False, ""))
    script.switch({"data_flatten": "padding_free", "data_packing": "sample_packing"})


def _read_internvl(script: _FamilyScript) -> None:
    """InternVL's: adapters of the rank that `use_llm_lora` and `use_backbone_lora` say, on all
    linear layers of what they name; tower and MLP that are not frozen beside them are trained in
    full. The tower checkpoints its layers in any case."""
    named = script.named
    rank = digits(value_of(named, "use_llm_lora")) or 0
    tower = "frozen" if script.switched("freeze_backbone") else "whole"
    if script.has_adapters and is_on(named, "use_backbone_lora"):
        tower = "adapted"
    projector = "frozen" if script.switched("freeze_mlp") else "whole"
    language = script.switched("freeze_llm")
    script.parts(tower, projector, language_frozen=language, like="freeze_backbone")
    if script.has_adapters:
        script.put("use_peft", True, "use_llm_lora")
        script.put("lora_r", rank, "use_llm_lora")
        script.put("lora_alpha", 2 * rank, "use_llm_lora")
    script.switch({"grad_checkpoint": "gradient_checkpointing", "use_packed_ds": "sample_packing"})
    tiles = digits(value_of(named, "max_dynamic_patch"))
    if tiles and value_of(named, "dynamic_image_size") != "false":
        wide, high = _grid(tiles)
        script.put(LARGEST_IMAGE, f"{wide * _TILE}x{high * _TILE}", "max_dynamic_patch")
    script.drop("freeze_backbone", "freeze_mlp", "use_llm_lora")
    if script.has_adapters:
        script.drop("use_backbone_lora")


def _grid(tiles: int) -> tuple[int, int]:
    """So many squares in two rows that differ least: 3 by 2 of 6."""
    high = max(one for one in range(1, int(tiles**0.5) + 1) if tiles % one == 0)
    return tiles // high, high


_READ: Mapping[str, Callable[[_FamilyScript], None]] = {
    "llava": _read_llava,
    "merger": _read_merger,
    "tuned_parts": _read_tuned_parts,
    "internvl": _read_internvl,
}


def whole_parts(named: Named) -> Iterator[str]:
    """Parts that a family's script trains in full beside adapters."""
    yield from filter(None, value_of(named, WHOLE_PARTS).split(","))
