"""Typed access to the keys of a Hugging Face config.json, falling back to class defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardware.files import shipped_toml
from planner.job.bounds import MOST_LAYERS
from planner.job.errors import ModelError

TABLES = shipped_toml("planner.job", "hf_readers.toml")
SPELLINGS: Mapping[str, Sequence[str]] = TABLES["spellings"]
ROWS: Mapping[str, Any] = TABLES["readers"]
_MISSING = object()


class Fields:
    """A config's keys. A missing key takes the family's class default.

    A key that is present and null counts as stated: `"sliding_window": null` means no window even
    if the class default has one.
    """

    def __init__(
        self, config: Mapping[str, object], where: str, defaults: Mapping[str, object]
    ) -> None:
        self._config = config
        self._defaults = defaults
        self.where = where
        # Keys that were looked up, in every spelling, and the sizes that came from a default.
        self.asked: set[str] = set()
        self.by_default: dict[str, int] = {}

    def positive(self, key: str) -> int:
        """A positive integer that is stated or has a class default."""
        found, value = self._find(key)
        if value is _MISSING:
            raise self.error(f"{found} is missing; expected a positive integer")
        number = self._integer(found, value, minimum=1)
        if key == "num_hidden_layers" and number > MOST_LAYERS:
            raise self._wrong(found, value, f"at most {MOST_LAYERS:,} layers")
        return number

    def side(self, key: str) -> int:
        """A positive integer, or a list of two equal ones, such as the sides of a square."""
        found, value = self._find(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is _MISSING:
            raise self.error(f"{found} is missing; expected a positive integer")
        return self._integer(found, value, minimum=1)

    def kind(self) -> str:
        """The `model_type`; empty if not stated."""
        value = self._config.get("model_type")
        return value if isinstance(value, str) else ""

    def optional_positive(self, key: str) -> int | None:
        """A positive integer, or None if it is null, or missing without a default."""
        found, value = self._known(key)
        return None if value is None else self._integer(found, value, minimum=1)

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None if it is null, or missing without a default."""
        found, value = self._known(key)
        if value is not None and not (_is_number(value) and value > 0):
            raise self._wrong(found, value, "a positive number")
        return None if value is None else float(value)

    def number(self, key: str, default: float = 0.0) -> float:
        """A number of at least zero; `default` if null or missing."""
        found, value = self._known(key)
        if value is not None and not (_is_number(value) and value >= 0):
            raise self._wrong(found, value, "a number of at least 0")
        return default if value is None else float(value)

    def non_negative(self, key: str, default: int = 0) -> int:
        """An integer of at least zero; `default` if null or missing."""
        found, value = self._known(key)
        return default if value is None else self._integer(found, value, minimum=0)

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean; `default` if null or missing."""
        found, value = self._known(key, default)
        if not isinstance(value, bool):
            raise self._wrong(found, value, "true or false")
        return value

    def text(self, key: str) -> str:
        """A string that is stated or has a class default."""
        found, value = self._known(key)
        if not isinstance(value, str):
            raise self._wrong(found, value, "a string")
        return value

    def strings(self, key: str, length: int) -> list[str] | None:
        """A list of `length` strings, or None if null or missing."""
        found, value = self._known(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(found, value, "a list of strings")
        if len(value) != length:
            raise self.error(f"{found} has {len(value)} entries; expected one per layer, {length}")
        return value

    def names(self, key: str) -> list[str] | None:
        """A list of strings of any length, or None if null or missing."""
        _, value = self._find(key)
        return self.strings(key, len(value) if isinstance(value, list) else 0)

    def optional_rank(self, key: str) -> int | None:
        """A positive integer, or None if `auto`, null or missing."""
        _, value = self._find(key)
        return None if value == "auto" else self.optional_positive(key)

    def indices(self, key: str, below: int) -> list[int] | None:
        """A list of layer indices, each less than `below`, or None if null or missing."""
        found, value = self._known(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(found, value, "a list of layer indices")
        indices = [self._integer(found, item, minimum=0) for item in value]
        if any(index >= below for index in indices):
            raise self.error(f"{found} names layer {max(indices)}, but there are {below} layers")
        return indices

    def index(self, key: str, default: int) -> int:
        """An index, counted from the end if negative; `default` if null or missing."""
        found, value = self._known(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(found, value, "the index of a layer")
        return value

    def pairs(self, key: str) -> list[list[int]] | None:
        """A list of pairs of positive integers, or None if null or missing."""
        found, value = self._known(key)
        if value is None:
            return None
        fine = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value)
        if not fine:
            raise self._wrong(found, value, "a list of pairs, such as [[1, 1], [1, 2]]")
        return [[self._integer(found, side, minimum=1) for side in pair] for pair in value]

    def binary(self, key: str, length: int) -> list[int] | None:
        """A list of `length` zeros and ones, or None if null, empty or missing."""
        found, value = self._known(key)
        if value is None or value == []:
            return None
        is_binary = isinstance(value, list) and all(item in (0, 1) for item in value)
        if not isinstance(value, list) or not is_binary or len(value) != length:
            raise self._wrong(found, value, f"a list of {length} zeros and ones, one per layer")
        return [int(item) for item in value]

    def table(self, key: str) -> Mapping[str, object]:
        """A nested object; empty if null or missing."""
        found, value = self._known(key, {})
        if not isinstance(value, dict):
            raise self._wrong(found, value, "an object")
        return value

    def nested(self, key: str, inner: str) -> Mapping[str, object]:
        """A table within a table; empty if null or missing."""
        value = self.table(key).get(inner)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(f"{key}.{inner}", value, "an object")
        return value or {}

    def others(self, defaults: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
        """Keys whose value differs from the family's class default, or from `defaults` if the class
        has none."""
        known = {key: self._defaults.get(key, default) for key, default in defaults.items()}
        stated = {key: self._config.get(key) for key in known}
        return tuple(
            (key, value)
            for key, value in stated.items()
            if None not in (value, known[key]) and value != known[key]
        )

    def keyed(self, table: str) -> dict[str, Any]:
        """ModelSpec fields, read from the keys that a table of `hf_readers.toml` names."""
        rows = TABLES["keys"][table].items()
        return {name: getattr(self, how)(key) for name, (how, key) in rows}

    def refuse(self, key: str, reason: str) -> None:
        """Raise ModelError if a flag asks for a variant that ModelSpec cannot describe."""
        if self.flag(key):
            raise self.error(f"{key}=true is not supported: {reason}")

    def error(self, text: str) -> ModelError:
        """A ModelError that names the file."""
        return ModelError(f"{self.where}: {text}")

    def _find(self, key: str) -> tuple[str, object]:
        spellings = SPELLINGS.get(key, (key,))
        self.asked.update(spellings)
        present = [name for name in spellings if name in self._config]
        for spelling in present:
            if self._config[spelling] is not None:
                return spelling, self._config[spelling]
        if present:
            return present[0], None
        value = self._defaults.get(key, _MISSING)
        if isinstance(value, int) and not isinstance(value, bool):
            self.by_default[key] = value
        return key, value

    def _known(self, key: str, default: object = None) -> tuple[str, Any]:
        """The key as written, and its value; `default` if null or missing."""
        found, value = self._find(key)
        return found, default if value is _MISSING or value is None else value

    def _integer(self, found: str, value: object, minimum: int) -> int:
        expected = "a positive integer" if minimum else "an integer of at least 0"
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(found, value, expected)
        return value

    def _wrong(self, found: str, value: object, expected: str) -> ModelError:
        shown = repr(value) if len(repr(value)) < 60 else f"a {type(value).__name__}"
        return self.error(f"{found} is {shown}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
