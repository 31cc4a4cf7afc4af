"""Options written as fields of a TOML table: without their dashes, in values of TOML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click

from planner.job.errors import unknown_name

# Says where a field stands and what is wrong with it: (field, text).
Refuse = Callable[[str, str], NoReturn]


def by_spelling(parameters: Iterable[click.Parameter]) -> dict[str, click.Parameter]:
    """Options by their names without dashes: `gbs-tokens`; of a switch, both spellings."""
    return {
        spelling.removeprefix("--"): parameter
        for parameter in parameters
        for spelling in parameter.opts
    }


def option_of(key: str, known: dict[str, click.Parameter], refuse: Refuse) -> click.Parameter:
    """The option that a field means; `gbs_tokens` is taken, too."""
    found = known.get(key.replace("_", "-"))
    if found is None:
        refuse(key, str(unknown_name("field", key, known, ", ".join(sorted(known)))))
    return found


def option_value(parameter: click.Parameter, key: str, value: Any, refuse: Refuse) -> Any:
    """A value as the command line would have it."""
    if parameter.multiple:
        listed = value if isinstance(value, list) else [value]
        return tuple(_one(parameter, key, item, refuse) for item in listed)
    return _one(parameter, key, value, refuse)


def _one(parameter: click.Parameter, key: str, value: Any, refuse: Refuse) -> Any:
    switch = isinstance(parameter.type, click.types.BoolParamType)
    if isinstance(value, list | dict) or (isinstance(value, bool) and not switch):
        refuse(key, f"{key} = {str(value).lower()}: give a value")
    try:
        return parameter.type.convert(value if switch else str(value), parameter, None)
    except click.UsageError as error:
        refuse(key, f"{key}: {error.message}")
