"""The vision part of a model in the config.json of a transformers type, by the tables of
`vision_config.toml`: the inverse of `planner.job.models.hf_vision`, which knows the types."""

from __future__ import annotations

import math
from collections.abc import Mapping

from planner.job.errors import ModelError
from planner.job.images import image_side
from planner.job.models.hf_config import family_of_type, language_key, language_type
from planner.job.models.hf_vision import read_vision, type_parts, vision_key, vision_types
from planner.job.specs import ModelSpec
from planner.job.vision import VisionSpec
from planner.launch.registry import dialect_toml
from planner.launch.sentences import evaluated

Config = dict[str, object]


def with_vision_config(text: Config, model: ModelSpec) -> Config:
    """The config of the whole vision-language model, around that of its language model; the latter
    alone if no type matches."""
    vision = model.vision
    if vision is None:
        return text
    # Prefer types that have this language model; some differ in nothing else.
    types = sorted(vision_types(), key=lambda one: _own_family(one) != model.family)
    found = (_whole(one, text, model, vision) for one in types)
    return next((config for config in found if _says(config, model)), text)


def _own_family(outer: str) -> str:
    return family_of_type(language_type(outer))


def _says(config: Config, model: ModelSpec) -> bool:
    """Whether a config, when read back, has the model's vision part and type of language model."""
    outer = str(config["model_type"])
    key = language_key(outer)
    text = config[key] if key else {"model_type": language_type(outer)}
    if not isinstance(text, dict) or family_of_type(str(text["model_type"])) != model.family:
        return False
    try:
        return read_vision(outer, config, model.hidden, outer) == model.vision
    except ModelError:
        return False


def _whole(outer: str, text: Config, model: ModelSpec, vision: VisionSpec) -> Config:
    """The config of one type. Its language model has a type of its own if it is the usual one."""
    parts, tables = type_parts(outer), dialect_toml("hf", "vision_config.toml")
    own, key = language_type(outer), language_key(outer)
    language = {**text, "model_type": own if _own_family(outer) == model.family else _type(text)}
    names = _names(outer, vision, model.hidden)
    towers = tables["towers"]
    tower = towers.get(f"{parts.tower} {outer}") or towers.get(parts.tower, towers["usual"])
    return {
        **({key: language} if key else text),
        "model_type": outer,
        vision_key(outer): {
            **_said(tower, names),
            **_said(tables["inside"].get(parts.projector, {}), names),
        },
        **_said(tables["beside"].get(parts.projector, {}), names),
        "tie_word_embeddings": model.tied_embeddings,
    }


def _type(config: Config) -> str:
    return str(config["model_type"])


def _said(table: Mapping[str, str], names: Mapping[str, object]) -> Config:
    """The keys of a table with their values, after those of the tables that it is `like`."""
    shared = dialect_toml("hf", "vision_config.toml")["shared"]
    rows = {
        key: text for name in table.get("like", "").split() for key, text in shared[name].items()
    }
    rows |= {key: text for key, text in table.items() if key != "like"}
    values = {key: evaluated(text, names) for key, text in rows.items()}
    return {key: value for key, value in values.items() if value is not None}


def _names(outer: str, vision: VisionSpec, hidden: int) -> dict[str, object]:
    """Names that the tables may use. `hidden`: the width of the language model."""
    tower = vision.tower
    usual = "clip_vision_model" if tower.class_tokens else "siglip_vision_model"
    return {
        "outer": outer,
        "hidden": hidden,
        "tower": tower,
        "projector": vision.projector,
        "merged": math.isqrt(vision.projector.merged),
        "image_size": _image_side(vision),
        "tower_type": "pixtral" if tower.rotary else usual,
        "isqrt": math.isqrt,
    }


def _image_side(vision: VisionSpec) -> int:
    """Pixels per side of the images that the tower has positions for: the family's usual size if
    the position table fits it."""
    tower, usual = vision.tower, image_side(vision.rule)
    places = tower.positions - tower.class_tokens
    if usual and (places <= 0 or (usual // tower.patch) ** 2 == places):
        return usual
    return math.isqrt(max(1, places)) * tower.patch
