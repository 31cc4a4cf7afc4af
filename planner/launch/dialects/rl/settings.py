"""The settings of a reinforcement-learning launch, on top of the defaults of its framework."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from hardware.files import shipped_text
from planner.launch.languages.text import HOLE, Text, digits
from planner.launch.read.found import Placed, Problem, Setting, unresolved

_PACKAGE = "planner.launch.dialects.rl"
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "none", "null", "")
_NOTHING = ("none", "null", "~", "")
# A reference to another setting, `${data.max_prompt_length}`, possibly with a default.
_OTHER = re.compile(r"\$\{(?:oc\.select:)?\s*([a-zA-Z_][\w.]*)\s*(?:,\s*([^}]*))?\}")
_DEEPEST = 8
# More tokens, samples or GPUs than any step has.
MOST = 10_000_000


@cache
def table(name: str) -> Mapping[str, tuple[str, ...]]:
    """The rows of `NAME.tsv`, by the setting in their first column: its default as JSON (empty if
    it is long), and further columns."""
    lines = shipped_text(_PACKAGE, f"{name}.tsv").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: tuple(rest) for key, *rest in rows}


@cache
def defaults(name: str) -> Mapping[str, Any]:
    """The default of each setting of a framework; long defaults are left out."""
    return {key: json.loads(row[0]) for key, row in table(name).items() if row[0]}


@dataclass
class RlSettings(Placed):
    """Settings by their dotted keys, on top of the defaults of their framework.

    `below`: the defaults, and the settings of a base file.
    """

    settings: dict[str, Setting]
    below: Mapping[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def stated(self, *keys: str) -> Setting | None:
        """The first of the settings with these keys that the files or the command state, as written
        there; None if none is stated."""
        self.used.update(keys)
        return next((self.settings[key] for key in keys if key in self.settings), None)

    def get(self, *keys: str) -> Any:
        """The value of the first of these keys that is stated; if none is, the first default that
        is not null. None for null. A value that is unknown adds a problem and also gives None."""
        setting = self.stated(*keys)
        if setting is not None and setting.unknown:
            self._ask(setting)
            return None
        if setting is not None:
            return self._plain(setting.value)
        value = next((self.below[key] for key in keys if self.below.get(key) is not None), None)
        return self._plain(value)

    def _ask(self, setting: Setting) -> None:
        problem = unresolved(setting)
        if problem not in self.problems:
            self.problems.append(problem)

    def _plain(self, value: Any, depth: int = 0) -> Any:
        """A value with references to other settings resolved; None for null."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if (whole := _OTHER.fullmatch(text)) is not None and depth < _DEEPEST:
            return self._named(whole, depth)
        return None if text.lower() in _NOTHING else text

    def _named(self, match: re.Match[str], depth: int) -> Any:
        key = match[1]
        setting = self.settings.get(key)
        self.used.add(key)
        if setting is not None and setting.unknown:
            self._ask(setting)
            return None
        found = setting.value if setting is not None else self.below.get(key)
        return self._plain(match[2] if found is None else found, depth + 1)

    def text(self, *keys: str) -> str:
        """A setting as text; empty if it has no value."""
        value = self.get(*keys)
        return "" if value is None or isinstance(value, list) else str(value)

    def flag(self, *keys: str) -> bool:
        """Whether a switch is on."""
        value = self.get(*keys)
        if isinstance(value, str) and value.lower() not in (*_TRUE, *_FALSE):
            self._wrong("is neither true nor false", keys)
        return str(value).lower() in _TRUE if value is not None else False

    def whole(self, *keys: str, least: int = 1) -> int | None:
        """The value of a setting as a whole number. None if it has no value or is -1, which means
        "all". None and a problem for any other value, and for numbers below `least`."""
        value = self.get(*keys)
        number = _number(value)
        if value is None or number == -1:
            return None  # verl's and NeMo's own word for `all`
        if number is None or not least <= number <= MOST:
            self._wrong(f"is not a whole number from {least} to {MOST:,}", keys)
            return None
        return number

    def share(self, *keys: str) -> float | None:
        """A setting as a number above 0 and up to 1, capped at 0.999; None if it has no value.
        Other values are problems."""
        value = self.get(*keys)
        if value is None:
            return None
        number = decimal(value)
        if number is None or not 0.0 < number <= 1.0:
            self._wrong("is not between 0 and 1", keys)
            return None
        return min(number, 0.999)

    def number(self, *keys: str) -> float:
        """A setting as a number; 0 if it has no value."""
        value = self.get(*keys)
        found = decimal(value)
        if value is not None and found is None:
            self._wrong("is not a number", keys)
        return found or 0.0

    def _wrong(self, what: str, keys: tuple[str, ...]) -> None:
        setting = self.stated(*keys)
        if setting is None:
            return
        text = f"{setting.key}: {setting.value!r} {what}"
        problem = self.problem("option-value", text, *keys)
        if problem not in self.problems:
            self.problems.append(problem)


def decimal(value: object) -> float | None:
    """A value as a number: `0.5`, `1e-3`, `8`; None for other values."""
    if isinstance(value, bool):
        return None
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None


def _number(value: object) -> int | None:
    """A value as a whole number: `8`, `8.0`, `"8"`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and (number := digits(value)) is not None:
        return number
    found = decimal(value)
    return int(found) if found is not None and found.is_integer() else None


def with_its_end(setting: Setting, text: Text) -> Setting:
    """A setting that holds a path. If only the start of the path is unknown (`$MODELS/Qwen/NAME`),
    the value becomes the rest, which names a model; otherwise unchanged."""
    end = text.value.rpartition(HOLE)[2]
    if not setting.unknown or "/" not in end or not end.rstrip("/").rpartition("/")[2]:
        return setting
    return replace(setting, value=end.strip("/"), unknown="")


def renamed(settings: Mapping[str, Setting], names: Mapping[str, str]) -> Iterator[Setting]:
    """Settings under the framework's current names."""
    for key, setting in settings.items():
        yield replace(setting, key=names.get(key, key))
