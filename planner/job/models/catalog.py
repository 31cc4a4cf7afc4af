"""From what a person typed (`70b`, `Llama-3.1-8B`, a path) to a model.

A catalogue name is a file name in this folder, so resolving one reads only `aliases.toml` and that
model's file.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import tomli as tomllib

from hardware.errors import HardwareError
from hardware.files import json_content, read_text
from hardware.frozen import Frozen
from planner.job.errors import ModelError
from planner.job.models.unplanned import unplanned_name
from planner.job.specs import ModelSpec
from planner.job.vision import VisionSpec

_FOLDER = Path(__file__).parent
_ALIAS_FILE = _FOLDER / "aliases.toml"
# Suffixes of Hugging Face names that change weights, not shape.
_SHAPELESS_SUFFIXES = ("instruct", "chat", "it", "base", "hf", "thinking")
_RELEASE = re.compile(r"\d{4}")


class ResolvedModel(Frozen):
    """A model and how it was found.

    `alias_of`: the catalogue name, if something else was typed. `exact_parameters`: counted by the
    reference implementation, without multi-token-prediction layers; None if unknown. `left_out`:
    modules of the described model that the shape does not count, such as a vision tower. `beside`:
    modules of the published checkpoint that the file does not describe. `vision`: the part of these
    that reads images, if known. `vision_vocab`: size of the vocabulary with it, if larger.
    """

    spec: ModelSpec
    name: str
    asked: str
    alias_of: str | None = None
    exact_parameters: int | None = None
    hf_name: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    vision: VisionSpec | None = None
    vision_vocab: int | None = None

    def with_vision(self) -> ResolvedModel:
        """The model with the vision part that its shape leaves out; itself if there is none."""
        if self.vision is None:
            return self
        vocab = self.vision_vocab or self.spec.vocab
        spec = self.spec.model_copy(update={"vision": self.vision, "vocab": vocab})
        return self.model_copy(update={"spec": spec, "beside": (), "exact_parameters": None})


def model_names() -> tuple[str, ...]:
    """All catalogue names, sorted with numbers in numeric order."""
    return tuple(sorted(_names_by_key().values(), key=_natural_order))


def short_names() -> tuple[str, ...]:
    """Other names of catalogue models: 70b, llama-3-405b."""
    return tuple(_alias_tables()["aliases"])


def load_model(name_or_path: str | Path) -> ResolvedModel:
    """The model named by an alias, a catalogue name, a Hugging Face name or a path.

    A path leads to a Hugging Face config.json, a folder that holds one, or a model TOML.
    """
    asked = str(name_or_path)
    name = None if isinstance(name_or_path, Path) else catalog_name(asked)
    if name is not None:
        return _shipped(name, asked)
    path = _existing_path(asked)
    if path is not None:
        try:
            return _from_path(path, asked)
        except HardwareError as error:
            raise ModelError(str(error)) from None
    if asked.endswith((".json", ".toml")):
        raise ModelError(f"model file {asked!r} does not exist")
    if refusal := unplanned_name(_spellings(asked)):
        raise ModelError(f"model {asked!r}: {refusal}")
    raise ModelError(_unknown(asked))


def catalog_name(asked: str) -> str | None:
    """The catalogue name for a name, alias or Hugging Face name; None if unknown."""
    for spelling in _spellings(asked):
        for table in (_names_by_key(), _other_names()):
            if spelling in table:
                return table[spelling]
    return None


def not_in_catalogue(asked: str) -> str:
    """Message that the catalogue has no such model, with the reason if one is known."""
    refusal = unplanned_name(_spellings(asked))
    return f"{asked}: {refusal}" if refusal else f"the catalogue does not know the model {asked}"


def _key(name: str) -> str:
    """Spelling without case and separators: `Llama-3.1_8B` and `llama3.1 8b` are the same name.

    The decimal point stays: gpt3-13b is not gpt3-1.3b.
    """
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _spellings(asked: str) -> list[str]:
    """Keys to look up, most literal first: as typed, without the organisation, without suffix."""
    repository = asked.rsplit("/", maxsplit=1)[-1]
    words = re.split(r"[-_ ]", repository.lower())
    # Qwen3-4B-Instruct-2507.
    if len(words) > 2 and _RELEASE.fullmatch(words[-1]) and words[-2] in _SHAPELESS_SUFFIXES:
        words.pop()
    while len(words) > 1 and words[-1] in _SHAPELESS_SUFFIXES:
        words.pop()
    keys = [_key(asked), _key(repository), _key("-".join(words))]
    return [key for key in dict.fromkeys(keys) if key]


@cache
def _names_by_key() -> dict[str, str]:
    names = (path.stem for path in _FOLDER.glob("*.toml") if path != _ALIAS_FILE)
    return {_key(name): name for name in names}


@cache
def _other_names() -> dict[str, str]:
    """Catalogue name by key of every alias and Hugging Face name, with and without organisation."""
    repositories = _alias_tables()["huggingface"]
    full = {_key(other): name for other, name in repositories.items()}
    bare = {_key(other.split("/")[-1]): name for other, name in repositories.items()}
    aliases = {_key(other): name for other, name in _alias_tables()["aliases"].items()}
    return {**bare, **full, **aliases}


def _repository_of(name: str) -> str:
    """The Hugging Face repository of a catalogue model: the first one that `aliases.toml` lists for
    it."""
    repositories = _alias_tables()["huggingface"].items()
    return next((repository for repository, named in repositories if named == name), "")


@cache
def _alias_tables() -> dict[str, dict[str, str]]:
    with _ALIAS_FILE.open("rb") as stream:
        return tomllib.load(stream)


@cache
def _shipped(name: str, asked: str) -> ResolvedModel:
    """A model of the catalogue, read once per process, because `fit` and tests ask for each many
    times."""
    return _from_toml(_FOLDER / f"{name}.toml", asked, None if asked == name else name)


def family_style(family: str) -> dict[str, Any]:
    """The style that most catalogue models of a family share; empty if the family is unknown."""
    from planner.job.models.toml_file import STYLE

    specs = [load_model(name).spec for name in model_names()] if family != "custom" else []
    members = [spec for spec in specs if spec.family == family]
    return {
        name: Counter(getattr(spec, name) for spec in members).most_common(1)[0][0]
        for name in STYLE
        if members
    }


def _from_toml(path: Path, asked: str, alias_of: str | None = None) -> ResolvedModel:
    from planner.job.models.toml_file import read_model_toml

    shipped = path.parent == _FOLDER
    file, spec = read_model_toml(path, None if shipped else family_style)
    beside = tuple(module.words for module in file.beside)
    return ResolvedModel(
        spec=spec,
        name=spec.name,
        asked=asked,
        alias_of=alias_of,
        exact_parameters=file.exact_parameters,
        hf_name=file.hf_name or (_repository_of(spec.name) if shipped else ""),
        source=file.source,
        notes=(*file.notes, *(f"{note[0].upper()}{note[1:]}." for note in beside_notes(beside))),
        beside=beside,
        vision=file.vision if beside else None,
        vision_vocab=file.vision_vocab,
    )


def beside_notes(beside: tuple[str, ...]) -> tuple[str, ...]:
    """Notes that a published checkpoint has modules besides the language model, and that only the
    latter is counted."""
    if not beside:
        return ()
    more = " and a ".join(beside)
    return (f"the published checkpoint also has a {more}, which is not counted",)


def _existing_path(asked: str) -> Path | None:
    """The path if something exists there; None otherwise, also for text that cannot be a path (too
    long, unknown ~user)."""
    if not asked.strip():
        return None
    try:
        path = Path(asked).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        return None


def _from_path(path: Path, asked: str) -> ResolvedModel:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file() and (path / "adapter_config.json").is_file():
        base = json_content(read_text(path / "adapter_config.json"), asked)
        named = base.get("base_model_name_or_path") if isinstance(base, dict) else None
        raise ModelError(
            f"{asked} contains an adapter, not a model; give its base, --model {named or 'NAME'}, "
            "and --train lora"
        )
    if not file.is_file():
        raise ModelError(
            f"{asked!r} is neither a file nor a folder with a config.json; give a Hugging Face "
            "model folder"
        )
    if file.suffix == ".toml":
        return _from_toml(file, asked)
    if file.suffix == ".json":
        return _from_hf_file(file, asked)
    raise ModelError(f"model file {asked!r} must be a config.json or a model .toml")


def _from_hf_file(path: Path, asked: str) -> ResolvedModel:
    from planner.job.models.hf_config import read_config_json, read_hf_model

    spec, notes, left_out = read_hf_model(read_config_json(path), where=str(path))
    note = (
        f"config.json does not state the pretraining sequence length: {spec.pretraining_seq} "
        "is assumed unless --seq says otherwise"
    )
    beside = f"only the language model is counted, without {', '.join(left_out)}"
    notes = (note, *notes, *([beside] if left_out else []))
    return ResolvedModel(
        spec=spec, name=spec.name, asked=asked, source=spec.source, notes=notes, left_out=left_out
    )


def _unknown(asked: str) -> str:
    candidates = {**_other_names(), **_names_by_key()}
    repository = _key(asked.rsplit("/", maxsplit=1)[-1])
    close = difflib.get_close_matches(repository, candidates, n=8, cutoff=0.5)
    names = list(dict.fromkeys(candidates[key] for key in close))[:4]
    meant = f" Did you mean {' or '.join(names)}?" if names else ""
    return (
        f"unknown model {asked!r}.{meant} Give a catalogue name (list them with: planner models), "
        "a path to a Hugging Face config.json, or a model .toml."
    )


def _natural_order(name: str) -> list[tuple[bool, float, str]]:
    """Sort key under which 8b precedes 70b."""
    parts = re.findall(r"\d+(?:\.\d+)?|[^\d]+", name)
    return [(False, float(p), "") if p[0].isdigit() else (True, 0.0, p) for p in parts]
