"""MaxText's settings: which there are, of which types, with which defaults, as its configuration
parser has them (`keys.tsv`, dumped), and the configurations that it ships (`configs.toml`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hardware.files import shipped_text, shipped_toml
from planner.launch.read.yaml_text import documents_of

RELEASE = "MaxText 0.2.5"
_PACKAGE = "planner.launch.dialects.maxtext"
# Settings whose values are tables of their own settings.
_TABLES = ("lora", "dpo", "rl", "debug")
# What pydantic takes for a bool, apart from one.
_BOOLS = dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True)
_BOOLS |= dict.fromkeys(("false", "no", "off", "n", "f", "0"), False)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: names of Python types, its default, and its values where it has few."""

    types: frozenset[str]
    default: Any
    values: tuple[str, ...]

    def says(self) -> str:
        """What it takes, in words."""
        if self.values:
            return "one of " + ", ".join(value or '""' for value in self.values)
        return " or ".join(sorted(self.types))

    def read(self, value: Any) -> Any:
        """A value as pydantic takes it, in its lax mode. ValueError for one that it refuses."""
        if isinstance(value, str) and value.lower() == "none":
            value = None
        if "any" in self.types or value is None:
            return self._nothing(value)
        if self.values:
            return self._chosen(value)
        for kind in ("bool", "int", "float", "str", "list", "dict", "table"):
            if kind in self.types and (found := _READ[kind](value)) is not None:
                return found
        raise ValueError(self.says())

    def _nothing(self, value: Any) -> Any:
        if value is None and not self.types & {"none", "any"}:
            raise ValueError(self.says())
        return value

    def _chosen(self, value: Any) -> Any:
        if str(value) not in self.values:
            raise ValueError(self.says())
        return value


def _bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return _BOOLS.get(str(value).lower())


def _int(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(_\d+)*", value.strip()):
        return int(value)
    if isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    return None


def _float(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _of(kind: type) -> Any:
    return lambda value: value if isinstance(value, kind) else None


_READ: Mapping[str, Any] = {
    "bool": _bool, "int": _int, "float": _float, "str": _of(str), "list": _of(list),
    "dict": _of(dict), "table": _of(dict),
}  # fmt: skip


@cache
def keys() -> Mapping[str, Key]:
    """Every setting by its name."""
    rows = (line.split("\t") for line in shipped_text(_PACKAGE, "keys.tsv").splitlines())
    return {
        name: Key(
            frozenset(types.split("|")),
            json.loads(rest[0]) if rest and rest[0] else None,
            tuple(rest[1].split(",")) if len(rest) > 1 else (),
        )
        for name, types, *rest in (row for row in rows if not row[0].startswith("#"))
    }


def is_known(key: str) -> bool:
    """Whether there is such a setting; what lies deeper in a table is taken for known."""
    return key in keys() or key.partition(".")[0] in _TABLES


def default(key: str) -> Any:
    """What base.yml says."""
    return keys()[key].default


@cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    return shipped_toml(_PACKAGE, "configs.toml")


def shipped_config(path: str) -> Mapping[str, Any] | None:
    """What a configuration that MaxText ships says beside base.yml, by its path in a checkout or in
    the package: `.../configs/gpu/models/llama2_7b.yml`. None for others; base.yml says nothing."""
    inside = re.sub(r"^.*?\bconfigs/", "", path).removesuffix(".yml")
    return {} if inside.rpartition("/")[2] == "base" else _configs().get(inside)


def model_config(name: str) -> Mapping[str, Any] | None:
    """The settings of a model by its `model_name`; None for a name that MaxText has not."""
    return _configs().get(f"models/{name.replace('-Instruct', '')}")


def model_names() -> tuple[str, ...]:
    """Every `model_name`."""
    return tuple(name.removeprefix("models/") for name in _configs() if name.startswith("models/"))


def parsed(text: str) -> Any:
    """The value of `key=value` on a command line, read as YAML. ValueError for what is none."""
    read = documents_of(text).contents
    if len(read) > 1:
        raise ValueError("several YAML documents")
    return read[0] if read else None
