"""What readers of TOML, YAML and JSON share: values of their types, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from planner.launch.languages.text import digits
from planner.launch.read.document import Document, Source
from planner.launch.read.found import (
    Found,
    Problem,
    Setting,
    nearest,
    unresolved,
)

# Stand for a sequence length that nobody states, and for recomputation that nobody speaks of.
NO_LENGTH, NO_RECOMPUTE = "no --seq", "no --recompute"


class DocumentReader:
    """A file's settings, and what is gathered from them."""

    # Whether the format takes "8" for 8, or 8.0.
    quoted_numbers = False
    plain_floats = False
    # What its messages call the framework, and a value that leaves a setting to something else.
    called = ""
    open_value: str | None = None

    def __init__(self, document: Document, source: Source) -> None:
        self.document, self.launch, self.hints = document, source.launch, source.hints
        self.problems: list[Problem] = []
        self.assumed: list[str] = []
        # As `Found` has them.
        self.unmodelled: tuple[tuple[Setting, str], ...] = ()

    @property
    def world(self) -> int | None:
        """Processes that the command starts."""
        return self.launch.world if self.launch else None

    def unpredictable(self, text: str, *keys: str) -> None:
        """Note what settings ask for and the model does not have."""
        self.problems.append(self.document.unpredictable(text, *keys))

    def refuse(self, rule: str, text: str, *keys: str, **more: Any) -> None:
        """Note a problem of settings."""
        self.problems.append(self.document.problem(rule, text, *keys, **more))

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """A whole number; anything else, or less, is a problem, and the default."""
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
            self.problems.append(self.document.wrong(text, key))
            return default
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1; anything else is a problem, and the default."""
        value = self.document.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.problems.append(self.document.wrong(f"{key}: {value!r} is not from 0 to 1", key))
            return default
        return float(value)

    def choice(self, key: str, default: Any, choices: Iterable[Any], otherwise: Any = None) -> Any:
        """One of some values; any other is a problem, and `otherwise`, or the default."""
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
        """What was found. `known`: whether the format has a key; `keys`: those of `Found`'s
        fields; `script`: where a program's arguments say them."""
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
