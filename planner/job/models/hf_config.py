"""Hugging Face config.json -> ModelSpec, without importing transformers."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from hardware.files import json_content, read_text, shipped_toml
from planner.job.errors import ModelError, unknown_name, validation_message
from planner.job.models.hf_families import READERS, spec_fields
from planner.job.models.hf_fields import TABLES, Fields
from planner.job.models.hf_vision import read_vision, vision_key
from planner.job.models.unplanned import unplanned_type
from planner.job.specs import ModelSpec

_WRAPPERS: Mapping[str, str] = TABLES["wrappers"]
# Keys that only a module's table has, and words that name a module without such a table.
_SIZES = frozenset({
    "hidden_size", "num_hidden_layers", "depth", "num_layers", "d_model", "embed_dim",
    "encoder_layers", "width", "layers", "architectures", "vt_hidden_size",
})  # fmt: skip
_MODULES = (
    "is_encoder_decoder", "mm_vision_tower", "vision_tower", "audio_tower", "speech_encoder",
)  # fmt: skip
_TEXT, _TIED = "text_config", "tie_word_embeddings"
# A config does not state the length of pretraining sequences. Longer contexts than this come from
# later stages in models with a report (Llama 3, Qwen 2.5, DeepSeek-V3).
_LONGEST_ASSUMED_SEQ = 8192


def supported_model_types() -> tuple[str, ...]:
    """Every `model_type` that can be read."""
    return tuple(sorted({*READERS, *_WRAPPERS}))


def family_of_type(model_type: str) -> str:
    """The family of a language model's type. Types that differ only in positions share a family."""
    found: str = TABLES["families"].get(model_type, model_type)
    return found


def language_key(wrapper: object) -> str:
    """Key of the language model in a multimodal config; empty if its keys are at the top level,
    beside the tower's table."""
    found = TABLES["nested"].get(wrapper, _TEXT) if isinstance(wrapper, str) else _TEXT
    return str(found)


def language_type(wrapper: str) -> str:
    """Default type of the language model in the text_config of a multimodal type."""
    return _WRAPPERS[wrapper]


def read_config_json(path: Path) -> dict[str, object]:
    """The object in a config.json."""
    content = json_content(read_text(path), str(path))
    if not isinstance(content, dict):
        raise ModelError(f"{path}: contains a {type(content).__name__}; expected a JSON object")
    return content


class HfModel(NamedTuple):
    """A parsed config.json. `notes`: assumptions, and keys that are unknown. `left_out`: modules
    besides the language model, which the shape does not count."""

    spec: ModelSpec
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


def model_from_hf_config(config: Mapping[str, object], where: str) -> ModelSpec:
    """The shape of the language model that a config describes; see `read_hf_model`."""
    return read_hf_model(config, where).spec


def read_hf_model(whole: Mapping[str, object], where: str) -> HfModel:
    """The model that a config describes. Missing keys take transformers' class defaults.

    `where` names the file in errors; its folder names the model if the config has no name.
    """
    model_type, config, where_inside = _language_model(whole, where)
    fields = Fields(config, where_inside, class_defaults(model_type))
    try:
        spec = ModelSpec.model_validate(
            {
                "name": _name(where),
                "family": family_of_type(model_type),
                "pretraining_seq": _pretraining_seq(fields),
                "source": f"Hugging Face config: {where}",
                "constants": fields.others(_defaults()["constants"]),
                **spec_fields(model_type, fields),
            }
        )
    except ValidationError as error:
        raise ModelError(validation_message(error, where_inside)) from error
    notes = (*_unknown_keys(config, fields, model_type), *_sizes_by_default(fields))
    vision = read_vision(str(whole.get("model_type")), whole, spec.hidden, where)
    outer = str(whole.get("model_type"))
    seen = {*fields.asked, language_key(outer), *((vision_key(outer),) if vision else ())}
    spec = spec.model_copy(update={"vision": vision}) if vision else spec
    return HfModel(spec, notes, modules_left_out(whole, config, seen))


def modules_left_out(
    whole: Mapping[str, object], config: Mapping[str, object], asked: Collection[str]
) -> tuple[str, ...]:
    """Modules that a config nests beside its language model (a vision tower, an audio encoder) or
    inside it without being read, recognised by their tables of layer sizes."""
    tables = {**whole, **config} if whole is not config else config
    nested = (
        key
        for key, value in tables.items()
        if isinstance(value, Mapping)
        and value is not config
        and key not in asked
        and _SIZES & value.keys()
    )
    # Encoder-decoder configs, and towers that are named by their checkpoint.
    named = (key for key in _MODULES if whole.get(key) or config.get(key))
    return tuple(dict.fromkeys((*nested, *named)))


def _unknown_keys(config: Mapping[str, object], fields: Fields, model_type: str) -> Iterator[str]:
    known = known_keys() | fields.asked | {vision_key(str(config.get("model_type")))}
    unknown = [key for key in config if key not in known and not key.startswith("_")]
    if config.get("text_config") is not None:
        return  # a language model's class does not know the keys of its wrapper
    meant = {key: difflib.get_close_matches(key, fields.asked, n=1, cutoff=0.8) for key in unknown}
    for key in (key for key in unknown if meant[key]):
        yield f"{key} is not a key of {model_type}; did you mean {meant[key][0]}?"
    if others := [key for key in unknown if not meant[key]]:
        yield f"keys without a known meaning, which are not read: {', '.join(others)}"


def _sizes_by_default(fields: Fields) -> Iterator[str]:
    if fields.by_default:
        sizes = ", ".join(f"{key} {value:,}" for key, value in fields.by_default.items())
        yield f"not stated, so transformers' defaults are used: {sizes}"


@cache
def known_keys() -> frozenset[str]:
    """Keys that some configuration class uses, or that are known to have no effect."""
    return frozenset(str(shipped_toml("planner.job", "hf_keys.toml")["names"]).split())


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    return shipped_toml("planner.job", "hf_defaults.toml")


def class_defaults(model_type: str) -> dict[str, object]:
    """Defaults of a transformers configuration class for missing keys. None: any value counts as
    the default."""
    stated = dict(_defaults()["classes"][model_type])
    like = stated.pop("like", None)
    base = class_defaults(like) if like else _defaults()["common"]
    return base | {key: None if value == "any" else value for key, value in stated.items()}


def _language_model(
    config: Mapping[str, object], where: str
) -> tuple[str, Mapping[str, object], str]:
    """Type and config of the language model, which multimodal configs nest in text_config."""
    if "peft_type" in config:
        base = config.get("base_model_name_or_path") or "NAME"
        raise ModelError(
            f"{where} is an adapter of {base}, not a model; give its base, --model {base}, and "
            "--train lora"
        )
    outer = config.get("model_type")
    _refuse_unplanned(outer, where)
    unwrapped = _WRAPPERS.get(outer, outer) if isinstance(outer, str) else outer
    key = language_key(outer)
    nested = config.get(key)
    if nested is None or (unwrapped == outer and _is_supported(outer)):
        return _supported(unwrapped, where), config, where
    if not isinstance(nested, dict):
        raise ModelError(f"{where}: {key} is {nested!r}; expected an object")
    inside = f"{where} ({key})"
    fallback = unwrapped if _is_supported(unwrapped) else None
    if key != _TEXT:
        # Its head is untied unless the whole config says otherwise (internvl_chat).
        nested = {**nested, _TIED: config.get(_TIED, False)}
    return _supported(nested.get("model_type", fallback), inside), nested, inside


def _refuse_unplanned(model_type: object, where: str) -> None:
    if isinstance(model_type, str) and (refusal := unplanned_type(model_type)):
        raise ModelError(f"{where}: model_type {model_type!r}: {refusal}")


def _is_supported(model_type: object) -> bool:
    return isinstance(model_type, str) and model_type in READERS


def _supported(model_type: object, where: str) -> str:
    if model_type is None:
        raise ModelError(f"{where}: model_type is missing, so the meaning of its keys is unknown")
    if not isinstance(model_type, str):
        raise ModelError(f"{where}: model_type is {model_type!r}; expected a string")
    _refuse_unplanned(model_type, where)
    if model_type not in READERS:
        hint = "docs/how-to/my-model.md lists all; a model .toml describes other shapes"
        unknown = unknown_name("model_type", model_type, supported_model_types(), hint)
        raise ModelError(f"{where}: {unknown}")
    return model_type


def _pretraining_seq(fields: Fields) -> int:
    """Context length before it was extended, if the config tells; else max_positions with an upper
    limit."""
    for table in ("rope_scaling", "rope_parameters"):
        original = fields.table(table).get("original_max_position_embeddings")
        if isinstance(original, int) and original > 0:
            return original
    longest = fields.optional_positive("original_max_position_embeddings")
    return longest or min(fields.positive("max_position_embeddings"), _LONGEST_ASSUMED_SEQ)


def _name(where: str) -> str:
    path = Path(where).absolute()
    return path.parent.name if path.name == "config.json" else path.stem
