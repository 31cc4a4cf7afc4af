"""MaxText's settings: their types and defaults, dumped from its configuration parser (`keys.tsv`),
the configurations that it ships (`configs.toml`), and the values that apply in a launch. The order
of precedence is: the command and its environment, the named model, the file, the configuration that
the file builds on, base.yml.

Source: MaxText 0.2.5, configs/pyconfig.py (_initialize_pydantic).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hardware.files import shipped_text, shipped_toml
from planner.launch.languages.text import Text
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.document import Document, Source, unknown_key, yaml_document
from planner.launch.read.found import Problem, Setting, nearest
from planner.launch.read.yaml_text import documents_of

RELEASE = "MaxText 0.2.5"
_PACKAGE = "planner.launch.dialects.maxtext"
# Settings whose values are tables of further settings.
_TABLES = ("lora", "dpo", "rl", "debug")
# Names of types, in the order in which they are tried.
_TYPES: Mapping[str, type] = {
    "bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "table": dict,
}  # fmt: skip


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[name])


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: names of its Python types, its default, and its valid values if they are few."""

    types: frozenset[str]
    default: Any
    values: tuple[str, ...]

    def says(self) -> str:
        """The valid values in words: `one of a, b`, or the names of the setting's types."""
        if self.values:
            return "one of " + ", ".join(value or '""' for value in self.values)
        return " or ".join(sorted(self.types))

    def read(self, value: Any) -> Any:
        """A value as pydantic converts it in its lax mode. ValueError if pydantic refuses it."""
        if isinstance(value, str) and value.lower() == "none":
            value = None
        if "any" in self.types or (value is None and "none" in self.types):
            return value
        if self.values and str(value) in self.values:
            return value
        if value is None or self.values:
            raise ValueError(self.says())
        for name in (name for name in _TYPES if name in self.types):
            with suppress(ValidationError):
                return _adapter(name).validate_python(value)
        raise ValueError(self.says())


@cache
def keys() -> Mapping[str, Key]:
    """Every setting by its name."""
    lines = shipped_text(_PACKAGE, "keys.tsv").splitlines()
    rows = ((*line.split("\t"), "", "")[:4] for line in lines if not line.startswith("#"))
    return {
        name: Key(
            frozenset(types.split("|")),
            json.loads(usual) if usual else None,
            tuple(values.split(",")) if values else (),
        )
        for name, types, usual, values in rows
    }


def is_known(key: str) -> bool:
    """Whether MaxText has the setting; keys inside a table count as known."""
    return key in keys() or key.partition(".")[0] in _TABLES


def default(key: str) -> Any:
    """The default of a setting, from base.yml."""
    return keys()[key].default


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    return shipped_toml(_PACKAGE, "configs.toml")


def shipped_config(path: str) -> Mapping[str, Any] | None:
    """Settings that a configuration shipped with MaxText adds to base.yml, found by its path in a
    checkout or in the package: `.../configs/gpu/models/llama2_7b.yml`. None for other paths;
    base.yml itself adds none."""
    inside = re.sub(r"^.*?\bconfigs/", "", path).removesuffix(".yml")
    return {} if inside.rpartition("/")[2] == "base" else _configs().get(inside)


def model_config(name: str) -> Mapping[str, Any] | None:
    """The settings of a model by its `model_name`; None for a name that MaxText does not have."""
    return _configs().get(f"models/{name.replace('-Instruct', '')}")


def model_names() -> tuple[str, ...]:
    """Every `model_name`."""
    return tuple(name.removeprefix("models/") for name in _configs() if name.startswith("models/"))


# --- as they hold ---------------------------------------------------------------------------------

# Modules that pretrain in releases since 2024, and their files in a checkout.
_MODULE = re.compile(
    r"(?i)^maxtext(\.trainers\.pre_train)?\.train$|(^|/)maxtext/(trainers/pre_train/)?train\.py$"
)
# A file is MaxText's if it has one of these settings and most of its keys are MaxText's.
_SIGNS = (
    "base_emb_dim", "ici_fsdp_parallelism", "ici_tensor_parallelism", "dcn_data_parallelism",
    "dcn_fsdp_parallelism", "per_device_batch_size", "remat_policy", "max_target_length",
)  # fmt: skip
# Prefix of environment variables that state settings.
_PREFIX = "M_"
_BASE = "base_config"


def is_maxtext(content: Mapping[str, object]) -> bool:
    """Whether a table has MaxText's settings."""
    has_sign = any(name in content for name in _SIGNS)
    return has_sign and 2 * sum(name in keys() for name in content) > len(content)


def is_maxtext_command(launch: LaunchCommand) -> bool:
    """Whether a command trains with MaxText."""
    return _MODULE.search(launch.program) is not None


def config_of(launch: LaunchCommand) -> str | None:
    """The configuration file that a command names; None if its first argument is not one."""
    first = launch.arguments[0].text.value if launch.arguments else ""
    return first if re.search(r"\.ya?ml$", first) else None


def named_files(launch: LaunchCommand) -> Iterator[Text]:
    """The configuration that a MaxText command names, as a file that may be found beside the
    command."""
    if is_maxtext_command(launch) and config_of(launch) is not None:
        yield launch.arguments[0].text


@dataclass
class Settings(Document):
    """The settings that a file and its command state. A setting that they leave out has its value
    in `below` (from the named model, or from the configuration that the file builds on), else its
    default in base.yml."""

    below: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 (base.yml has one)
        """The value of a setting as MaxText converts it. If it is not stated, or MaxText refuses
        the stated value: the value that applies without it."""
        self.used.add(key)
        with suppress(ValueError):
            return self.read(key)
        return self._below(key)

    def read(self, key: str) -> Any:
        """The value of a setting as MaxText converts it. ValueError for a stated value that MaxText
        refuses."""
        setting = self.settings.get(key)
        if setting is None or setting.unknown:
            return self._below(key)
        return keys()[key].read(setting.value)

    def _below(self, key: str) -> Any:
        """The value of a setting that is not stated: that in `below`, else the default in
        base.yml."""
        return self.below[key] if key in self.below else default(key)

    def setting(self, key: str) -> Setting:
        """A setting with its place if it is stated, else with the value that applies."""
        return self.settings.get(key) or Setting(key, self.get(key), self.path)


def settled(
    document: Document, source: Source, below: Mapping[str, Any]
) -> tuple[Settings, list[Problem]]:
    """All settings of a launch, and their problems."""
    found = Settings(document.path, document.settings, document.used, dict(below))
    problems = [*_with_base(found, source)]
    stated = _override(found, source.launch) if source.launch else set[str]()
    problems += [*_with_model(found, stated), *_checked(found)]
    return found, problems


def _with_base(found: Settings, source: Source) -> Iterator[Problem]:
    """Add the settings of the file that this one builds on; yields a problem if it is missing."""
    found.used.add(_BASE)
    base = found.settings.get(_BASE)
    if base is None or base.value is None:
        return
    name = str(base.value)
    known, file = shipped_config(name), source_beside(name, source.folder, source.files)
    if file is not None and not name.endswith("base.yml"):
        read = yaml_document(file.as_text(), file.path, source.hints.environment).settings
        known = {key: one.value for key, one in read.items()}
    if known is None:
        text = f"{_BASE} {name} does not ship with {RELEASE}"
        yield found.problem("missing-file", text, _BASE, severity="missing", fix="give it too")
    found.below |= {key: value for key, value in (known or {}).items() if is_known(key)}


def _override(found: Settings, launch: LaunchCommand) -> set[str]:
    """Apply the command's `key=value` and `M_KEY` environment variables over the file. Returns the
    names in the command."""
    for name, text in launch.command.environment.items():
        key = name.removeprefix(_PREFIX).lower()
        if name.startswith(_PREFIX) and key in keys():
            found.override(_valued(setting_of(key, text)), key)
    stated = set[str]()
    for word in launch.arguments[1 if config_of(launch) else 0 :]:
        name, equals, _ = word.text.value.partition("=")
        if not name:
            continue
        value = word.text[len(name) + 1 :] if equals else word.text
        setting = setting_of(name, value, word.used)
        found.override(_valued(setting) if equals else replace(setting, value=None), name)
        stated.add(name)
    return stated


def _valued(setting: Setting) -> Setting:
    """A command line's setting with its text parsed as YAML."""
    if setting.unknown:
        return setting
    read = documents_of(str(setting.value)).contents
    return setting if len(read) > 1 else replace(setting, value=read[0] if read else None)


def _with_model(found: Settings, stated: set[str]) -> Iterator[Problem]:
    """Apply the settings of the named model. They replace the file's; a value that the command
    states must agree unless override_model_config is on."""
    name = str(found.get("model_name") or default("model_name"))
    if name == default("model_name"):
        return
    known = model_config(name)
    if known is None:
        near = nearest(name, model_names())
        text = f"model_name {name}: {RELEASE} has no such model"
        yield found.wrong(text, "model_name", near)
        return
    free = found.get("override_model_config")
    for key, value in known.items():
        if key not in found.settings or found.get(key) == value:
            continue
        if key not in stated:
            text = f"{key}: the model's {value!r} replaces the file's {found.get(key)!r}"
            yield found.problem("model-override", text, key, severity="warning")
            del found.settings[key]
        elif not free:
            text = (
                f"{key} {found.get(key)!r} is not the model's {value!r}: MaxText refuses it "
                "without override_model_config=true"
            )
            yield found.problem("model-override", text, key)
    found.below |= known


def _checked(found: Settings) -> Iterator[Problem]:
    """Problems: settings that do not exist, and values that they do not take."""
    for name, setting in found.settings.items():
        if not is_known(name):
            says = f"{RELEASE} has no such setting and refuses it (another release may have it)"
            yield unknown_key(found, name, says, nearest(name, keys()))
        elif name in keys():
            try:
                found.read(name)
            except ValueError as error:
                near = nearest(str(setting.value), keys()[name].values, 0.3)
                yield found.wrong(f"{name}: {setting.value!r}; MaxText takes {error}", name, near)
