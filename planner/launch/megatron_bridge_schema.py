"""Own check of Megatron-Bridge overrides: Bridge only warns about a field it does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from hardware.files import shipped_toml

_KINDS = {
    "int": r"\d+|\$\{[A-Z_]+\}",
    "number": r"\d+(\.\d+)?(e-?\d+)?",
    "bool": r"true|false",
    "list": r"\[[\w,]+\]",
    "layout": r'"[Etm*()|\dL]+"',
    "path": r"\S+",
    "null": r"null",
}


@cache
def schema() -> Mapping[str, str]:
    """`section.field` -> pattern of its values, of all that is ever written."""
    return {
        f"{section}.{field}": _pattern(kind)
        for section, fields in shipped_toml("planner.launch", "megatron_bridge.toml").items()
        for field, kind in fields.items()
    }


# Where a field stands that several sections have; the others say the same.
_FIRST_SECTIONS = ("model", "ddp")


def fields_of(flag: str) -> list[str]:
    """The fields of the name of one of Megatron's flags, in every section that has one."""
    name = flag.removeprefix("--").replace("-", "_")
    return [key for key in schema() if key.partition(".")[2] == name]


def field_of(flag: str) -> str:
    """The field that says what a flag says; empty if there is none."""
    fields = fields_of(flag)
    return min(fields, key=lambda key: key.partition(".")[0] not in _FIRST_SECTIONS, default="")


def _pattern(kind: str | Sequence[str]) -> str:
    if isinstance(kind, str):
        return "|".join(_KINDS[name] for name in kind.split(" or "))
    return "|".join(re.escape(word) for word in kind)


def wrong_overrides(overrides: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each override whose name or value Megatron-Bridge does not have."""
    known = schema()
    for key, value in overrides.items():
        if key not in known:
            yield f"Megatron-Bridge has no setting {key}"
        elif not re.fullmatch(known[key], value):
            yield f"{key}={value}: not a value that Megatron-Bridge takes"
