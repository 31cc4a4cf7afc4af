"""Values of a DeepSpeed file that are not of the type that its classes ask for.

DeepSpeed 0.19.8 builds `zero_optimization` and its tables with pydantic, which takes a few
spellings of a value for another (`"yes"` for true, `5e8` and `"8"` for whole numbers) and refuses
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import Problem, nearest
from planner.launch.read.names import known_names, meanings

_Z = "zero_optimization"
_TRUE = ("1", "on", "t", "true", "y", "yes")
_FALSE = ("0", "off", "f", "false", "n", "no")
_DEVICES = ("none", "cpu", "nvme")
# Left to a Trainer, which fills it in; DeepSpeed alone takes the default.
_AUTO = "auto"
SWITCHES = ("bf16.enabled", "fp16.enabled")
# Tables of the file that are no pydantic classes, and fail where they are no tables.
_TABLES = ("optimizer", "scheduler", "activation_checkpointing")


def as_flag(value: object) -> bool | None:
    """A value as pydantic's bool; None for one that is none."""
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    text = str(value).lower() if isinstance(value, str) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def as_whole(value: object) -> int | None:
    """A value as pydantic's int; None for one that is none."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None


def type_problems(document: Document) -> Iterator[Problem]:
    """Values of the wrong type, and keys of the offload tables that do not exist."""
    for name in _TABLES:
        yield from _no_table(document, name)
    for kind, wanted in (("bool", "true or false"), ("int", "a whole number of at least 0"),
                         ("device", ", ".join(_DEVICES))):  # fmt: skip
        names = [f"{_Z}.{name}" for name in str(meanings("deepspeed-types")[kind]).split()]
        for key in (*names, *(SWITCHES if kind == "bool" else ())):
            setting = document.settings.get(key)
            if setting is None or setting.unknown or setting.value in (None, _AUTO):
                continue
            if not _fits(kind, setting.value):
                text = f"{key}: {setting.value!r} is not {wanted}"
                yield document.wrong(text, key)
    for table in str(meanings("deepspeed-types")["table"]).split():
        yield from _no_table(document, f"{_Z}.{table}")
        known = known_names(f"deepspeed-{table}")
        for name in document.names(f"{_Z}.{table}"):
            if name not in known:
                says = "DeepSpeed has no such key and refuses it"
                key = f"{_Z}.{table}.{name}"
                yield unknown_key(document, key, says, nearest(name, known))


def _fits(kind: str, value: object) -> bool:
    if kind == "bool":
        return as_flag(value) is not None
    if kind == "int":
        number = as_whole(value)
        return number is not None and number >= 0
    return value in _DEVICES


def _no_table(document: Document, key: str) -> Iterator[Problem]:
    setting = document.settings.get(key)
    if setting is None or setting.unknown or setting.value in (None, {}, _AUTO):
        return
    text = f"{key}: {setting.value!r} is no table of settings"
    yield document.wrong(text, key)
