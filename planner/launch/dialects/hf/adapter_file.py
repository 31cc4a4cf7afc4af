"""peft's adapter_config.json: which adapters a checkpoint holds, and for which base model.

Keys: peft 5d602fdbf, src/peft/config.py and src/peft/tuners/lora/config.py. The file says neither
how the base was stored nor how the adapters were trained; a script or options say that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.job.models.catalog import load_model
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import is_on, known_model
from planner.launch.dialects.hf.modules import adapter_table
from planner.launch.dialects.hf.python import KEYWORDS
from planner.launch.read.beside import beside, source_beside
from planner.launch.read.document import Document, Source, json_document
from planner.launch.read.found import Problem, Setting, not_predictable

ADAPTER_FILE = "adapter_config.json"
_MODEL = "base_model_name_or_path"
# Settings that an existing adapter decides, whatever the program is told.
_REPLACED = ("rank", "alpha", "dropout", "targets", "whole", "dora")
_MODELS = ("model_name_or_path", "base_model", "model")


def is_adapter(content: Mapping[str, object]) -> bool:
    """Whether a table describes an adapter."""
    return "peft_type" in content and _MODEL in content


def adapter_settings(document: Document) -> dict[str, Setting]:
    """The content of an adapter's file, as settings of a program that trains the adapter."""
    kind = document.settings["peft_type"]
    said = {"adapter": replace(kind, value=str(kind.value).lower().replace("_", "-"))}
    for key, name in KEYWORDS["lora"].items():
        setting = document.settings.get(key)
        if setting is not None and setting.value not in (None, [], {}):
            said[name] = replace(setting, key=key)
    return said


def base_setting(document: Document) -> dict[str, Setting]:
    """The base model of an adapter, as the setting `model_name_or_path`; empty if the file names
    none."""
    setting = document.settings.get(_MODEL)
    return {} if setting is None or not setting.value else {"model_name_or_path": setting}


def with_adapter(
    named: Mapping[str, Setting], source: Source
) -> tuple[dict[str, Setting], tuple[Problem, ...]]:
    """A program's settings completed by those in the file of an adapter that the program continues
    to train, and the problems of that adapter: another base model, or weights that its rank and
    targets do not imply.

    The file is the one that was given, or one beside the program's file. Without one, or if the
    program creates a new adapter, the settings are unchanged.
    """
    document = None if is_on(named, "create_new_adapter") else _file_of(named, source)
    if document is None:
        return dict(named), ()
    listed = adapter_table("names")
    replaced = {name for what in _REPLACED for name in listed[what]}
    kept = {name: one for name, one in named.items() if name not in replaced}
    said = {**base_setting(document), **kept, **adapter_settings(document)}
    return said, (*other_base(named, document, source), *other_weights(document))


def other_weights(document: Document) -> tuple[Problem, ...]:
    """Keys of an adapter's file that give it other weights than its rank and targets suggest (`own`
    in `adapters.toml`)."""
    said = {
        name.partition(".")[0]: setting
        for name, setting in document.settings.items()
        if setting.value not in (None, [], {}, "", False)
    }
    return tuple(
        not_predictable(f"{key}: {why}", said[key].place)
        for key, why in adapter_table("own").items()
        if key in said
    )


def _file_of(named: Mapping[str, Setting], source: Source) -> Document | None:
    path = source.adapter or _beside(named, source.folder)
    file = source_beside(path, Path(path).parent, source.files) if path else None
    return None if file is None else json_document(file.as_text(), file.path)


_FOLDERS = ("adapter_name_or_path", "lora_model_dir", "adapters", "peft_path")


def _beside(named: Mapping[str, Setting], folder: Path) -> str:
    for name in _FOLDERS:
        setting = named.get(name)
        value = None if setting is None else setting.value
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and (path := beside(f"{value}/{ADAPTER_FILE}", folder)):
            return str(path)
    return ""


def other_base(
    named: Mapping[str, Setting], document: Document, source: Source
) -> tuple[Problem, ...]:
    """A problem if the adapter's weights do not fit the model being trained, which is the one the
    caller names (`--model`), else the one in the program's settings."""
    base, asked = document.settings.get(_MODEL), source.hints.model
    stated = next((named[name] for name in _MODELS if name in named), None)
    if asked is not None:
        stated = Setting("--model", asked)
    if stated is None or base is None or stated.unknown or not isinstance(base.value, str):
        return ()
    ours, theirs = known_model(str(stated.value)), known_model(base.value)
    if ours is None or theirs is None:
        return ()
    one, other = load_model(ours).spec, load_model(theirs).spec
    widths = ("hidden", "layers", "heads", "kv_heads")
    if all(getattr(one, width) == getattr(other, width) for width in widths):
        return ()
    return said(
        "other_base", stated.place, base.place, document=document, base=base, stated=stated,
        one=one, other=other, joint="" if asked is not None else f"{stated.key}: ",
    )  # fmt: skip
