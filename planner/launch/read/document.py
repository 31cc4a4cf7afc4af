"""TOML, YAML and JSON files as settings: dotted keys with value, line and place; and the base of
their readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from hardware.files import json_content, toml_content
from planner.job.errors import UsageError
from planner.launch.languages.text import Files, Text, digits
from planner.launch.read.beside import MOST_SETTINGS
from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.found import (
    PLACEHOLDER,
    Edit,
    Found,
    Hints,
    Placed,
    Problem,
    Setting,
    is_slip,
    nearest,
    unresolved,
)
from planner.launch.read.yaml_text import YamlError, documents_of, filled, read_yaml

_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
# (start and end of the value, start and end of the entry)
_Places = tuple[int, int, int, int]
_ENTRY = re.compile(r"^(\s*)([A-Za-z0-9_.\"'-]+)(\s*=\s*)")
# A value within a line, without the comment after it.
_VALUE = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'[^']*'|[^\s#"'\[{][^#]*?(?=\s*(?:#|$))""")


@dataclass(frozen=True)
class Source:
    """A configuration as it is passed to a reader.

    `launch`: the command that names the file, None if there is none; `files`: all files opened so
    far; `hints`: facts from the caller. `sharding`: path of a DeepSpeed file given with it;
    `adapter`: path of peft's file for an adapter; each empty if there is none.
    """

    text: Text
    path: str
    launch: LaunchCommand | None
    files: Files
    hints: Hints
    sharding: str = ""
    adapter: str = ""

    @property
    def given(self) -> dict[str, Setting]:
        """The program's options in the command; empty without a command."""
        return {} if self.launch is None else self.launch.given

    @property
    def folder(self) -> Path:
        """The folder of the script with the command; without a command, that of the file."""
        return Path(self.path).parent if self.launch is None else self.launch.folder

    def yaml(self) -> Document:
        """The text parsed as YAML. UsageError if it is not valid."""
        return yaml_document(self.text, self.path, self.hints.environment)

    def document(self) -> Document:
        """The text parsed as JSON if the file's name ends in .json, otherwise as YAML. UsageError
        if it is not valid."""
        if not self.path.endswith(".json"):
            return self.yaml()
        return json_document(self.text, self.path, self.hints.environment)


@dataclass
class Document(Placed):
    """A configuration file. `settings`: every scalar and list by dotted key, in order; `path`: the
    file."""

    path: str
    settings: dict[str, Setting] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key; `default` if it is absent, null or unknown. The key counts as
        used."""
        self.used.add(key)
        setting = self.settings.get(key)
        if setting is None or setting.unknown or setting.value is None:
            return default
        return setting.value

    def has(self, key: str) -> bool:
        """Whether a key, or a table of that name, exists. The key counts as used."""
        self.used.add(key)
        return any(f"{one}.".startswith(f"{key}.") for one in self.settings)

    def names(self, table: str = "") -> list[str]:
        """Names directly in a table, or at the top level."""
        inside = below(self.settings, table) if table else self.settings
        return list(dict.fromkeys(key.partition(".")[0] for key in inside))

    def override(self, setting: Setting, key: str) -> None:
        """Set a key of the document to a setting from the command line."""
        self.settings[key] = setting


# Values for the placeholders of a file.
Variables = Mapping[str, str]
_NONE: Variables = {}


def toml_document(text: Text, path: str, variables: Variables = _NONE) -> Document:
    """The settings of a TOML text. UsageError with the line if it is not valid."""
    places = dict(_toml_places(text))
    return _marked(toml_content(text.value, path), places, text, path, variables)


def yaml_document(
    text: Text, path: str, variables: Variables = _NONE, *, fill: bool = True
) -> Document:
    """The settings of a YAML text. `fill`: replace placeholders by settings of the same file and by
    `variables`; otherwise they stay, since another file may fill them in. UsageError with line and
    column if it is not valid."""
    try:
        read = read_yaml(text.value)
        content = read.content
    except YamlError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from None
    places = dict(_yaml_places(read.nodes[:1]))
    return _marked(content, places, text, path, variables, fill=fill)


def json_document(text: Text, path: str, variables: Variables = _NONE) -> Document:
    """The settings of a JSON text. UsageError with the line if it is not valid."""
    # Except for tabs, JSON is YAML, with the same places.
    nodes = documents_of(text.value.replace("\t", " ")).nodes[:1]
    places = dict(_yaml_places(nodes))
    return _marked(json_content(text.value, path), places, text, path, variables)


def _marked(
    content: Any,
    places: Mapping[str, _Places],
    text: Text,
    path: str,
    variables: Variables,
    *,
    fill: bool = True,
) -> Document:
    """The settings of a parsed file with their places. Placeholders are replaced by variables and
    by other settings of the file. UsageError if the file is no table or has too many settings."""
    if not isinstance(content, dict):
        raise UsageError(f"{path}: holds no table of settings")
    found = list(islice(leaves(content), MOST_SETTINGS + 1))
    if len(found) > MOST_SETTINGS:
        raise UsageError(f"{path}: more than {MOST_SETTINGS:,} settings: no launch has as many")
    # `${model.hidden_size}` refers to another setting of the file.
    told = {key: value for key, value in found if isinstance(value, str | int | float)}
    told |= variables
    settings = [_setting(key, value, places.get(key), text, path) for key, value in found]
    if not fill:
        return Document(path, {one.key: one for one in settings})
    return Document(path, {one.key: _filled(one, told) for one in settings})


def _filled(setting: Setting, told: Mapping[str, object]) -> Setting:
    """A setting with its placeholders filled in, or marked as unknown if one remains."""
    if not isinstance(setting.value, str):
        return setting
    result = filled(setting.value, told)
    if result.unknown:
        why = f"{PLACEHOLDER} ({result.unknown})"
        return replace(setting, value=None, unknown=why, variable=result.name)
    if result.value == setting.value:
        return setting
    # Convert the value as YAML would; filled-in values are not edited.
    read = documents_of(result.value).contents
    value = read[0] if len(read) == 1 and isinstance(read[0], int | float | bool) else result.value
    return replace(setting, value=value, spans=())


def below(settings: Mapping[str, Setting], table: str) -> dict[str, Setting]:
    """The settings in a table, by their names inside it."""
    start = f"{table}."
    return {key.removeprefix(start): one for key, one in settings.items() if key.startswith(start)}


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves (scalars, lists, empty tables) by dotted key."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from leaves({str(name): inner for name, inner in value.items()}, f"{key}.")
        else:
            yield key, value


def _setting(key: str, value: object, places: _Places | None, text: Text, path: str) -> Setting:
    if places is None:
        top = text.first()
        return Setting(key, value, top.file.path if top else path)
    start, end, first, last = places
    entry = text[first:last]
    setting = setting_of(key, text[start:end], None, entry.span())
    at = entry.first()
    if not setting.file and at is not None:
        setting = replace(setting, file=at.file.path, line=at.line)
    return replace(setting, value=value)


def _yaml_places(nodes: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, _Places]]:
    """Key and place of every setting in YAML nodes: offsets of the value and of the whole entry."""
    for name, value in (pair for node in nodes if node.id == "mapping" for pair in node.value):
        key = f"{prefix}{name.value}"
        if value.id == "mapping" and value.value:
            yield from _yaml_places([value], f"{key}.")
        else:
            start, end = value.start_mark.index, value.end_mark.index
            yield key, (start, end, name.start_mark.index, end)


def _toml_places(text: Text) -> Iterator[tuple[str, _Places]]:
    """Key and place of every `key = value` line: offsets of the value and of the whole entry, which
    extends to the end of the line."""
    table, at = "", 0
    for line in text.value.splitlines(keepends=True):
        if header := _TABLE.match(line.rstrip("\n")):
            table = re.sub(r"\s|[\"']", "", header[1]) + "."
        elif entry := _ENTRY.match(line):
            key = table + re.sub(r"[\"']", "", entry[2])
            start, end = at + entry.end(), at + len(line.rstrip())
            value = _VALUE.match(line.rstrip(), entry.end())
            yield key, (start, at + value.end() if value else end, at, end)
        at += len(line)


def unknown_key(document: Document, key: str, says: str, close: str, **more: Any) -> Problem:
    """The problem with a key that the framework does not know. `says`: the framework's reaction to
    it; `close`: the most similar known key, or empty."""
    below = (o.place for name, o in document.settings.items() if f"{name}.".startswith(f"{key}."))
    more |= {"places": tuple(below)[:1], "edits": _respelt(document, key, close) if close else ()}
    return Problem("unknown-option", f"{key}: {says}", fix=close, **more)


def _respelt(document: Document, key: str, close: str) -> tuple[Edit, ...]:
    """The edit that corrects the spelling of a key; empty unless the key is certainly a slip and
    the correct one is not set."""
    table, _, name = key.rpartition(".")
    place, _, meant = close.rpartition(".")
    whole = f"{table}.{meant}" if table else meant
    taken = document.has(whole) or key not in document.settings
    sure = is_slip(name, meant) and place in ("", table) and not taken
    return (Edit(key, None, whole),) if sure else ()


# Stand for a sequence length, and for recomputation, that nothing states.
NO_LENGTH, NO_RECOMPUTE = "no --seq", "no --recompute"
# Stands for samples with only a limit, if they are padded to the longest of a micro-batch.
LIMIT_ALONE = "samples below the limit"


class DocumentReader:
    """Base of the readers: looks up settings in a file, checks them, and gathers problems and the
    result."""

    # Whether the format accepts "8" or 8.0 for 8.
    quoted_numbers = False
    plain_floats = False
    # The framework's name in messages, and a value that leaves a setting to others.
    called = ""
    open_value: str | None = None

    def __init__(self, document: Document, source: Source) -> None:
        self.document, self.launch, self.hints = document, source.launch, source.hints
        self.problems: list[Problem] = []
        self.assumed: list[str] = []
        # As in `Found`.
        self.unmodelled: tuple[tuple[Setting, str], ...] = ()

    @property
    def world(self) -> int | None:
        """Number of processes that the command starts; None if unknown or without a command."""
        return self.launch.world if self.launch else None

    def unpredictable(self, text: str, *keys: str) -> None:
        """Note that the settings ask for a feature that is not modelled, so that there is no
        prediction."""
        self.problems.append(self.document.unpredictable(text, *keys))

    def refuse(self, rule: str, text: str, *keys: str, **more: Any) -> None:
        """Note a problem with settings."""
        self.problems.append(self.document.problem(rule, text, *keys, **more))

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """A setting's value as a whole number of at least `least`; `default` if it is not set. For
        any other value a problem is noted and the default returned."""
        value = self.document.get(key)
        if value in (None, self.open_value):
            return default
        if self.quoted_numbers and isinstance(value, str):
            number = digits(value)
            value = value if number is None else number
        if self.plain_floats and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            text = f"{key}: {value!r} is not a whole number of at least {least}"
            self.refuse("option-value", text, key)
            return default
        return value

    def share(self, key: str, default: float) -> float:
        """A setting's value as a number from 0 to 1; `default` if it is not set. For any other
        value a problem is noted and the default returned."""
        value = self.document.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.problems.append(self.document.wrong(f"{key}: {value!r} is not from 0 to 1", key))
            return default
        return float(value)

    def choice(self, key: str, default: Any, choices: Iterable[Any], otherwise: Any = None) -> Any:
        """A setting's value, which must be one of `choices`; `default` if it is not set. For any
        other value a problem is noted, and `otherwise` returned, or the default if that is None."""
        value = self.document.get(key, default)
        if value in choices:
            return value
        named = [str(choice) for choice in choices]
        text = f"{key}: {value!r}; {self.called} has {', '.join(named)}"
        self.problems.append(self.document.wrong(text, key, nearest(str(value), named, 0.3)))
        return default if otherwise is None else otherwise

    def gathered(
        self,
        known: Callable[[str], bool],
        keys: Mapping[str, str],
        script: Mapping[str, Setting] | None = None,
        /,
        **fields: Any,
    ) -> Found:
        """The launch that was read, with its settings and problems. `known`: whether the format has
        a key; `keys`: field of `Found` -> key that states it; `script`: field of `Found` ->
        argument of the program that states it; `fields`: further fields of `Found`."""
        settings = self.document.settings
        unknown = tuple(setting for setting in settings.values() if not known(setting.key))
        asked = (settings[key] for key in settings if key in self.document.used)
        self.problems += [unresolved(setting) for setting in asked if setting.unknown]
        stated = {name: settings[key] for name, key in keys.items() if key in settings}
        return Found(
            main_file=self.document.path,
            where={**(script or {}), **stated},
            settings=tuple(settings.values()),
            unused=tuple(setting for setting in self.document.rest() if setting not in unknown),
            unknown=unknown,
            problems=tuple(self.problems),
            assumed=tuple(self.assumed),
            unmodelled=(*self.unmodelled, *fields.pop("unmodelled", ())),
            **fields,
        )
