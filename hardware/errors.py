"""The error type of this package. Messages state the input, the rule and the nearest fix."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

WHERE_TO_LOOK = "list them with: planner hardware"


class HardwareError(ValueError):
    """A GPU, cluster, price or hardware file that the user named is wrong."""


# Letters that are typed instead of digits.
_LOOK_ALIKES = str.maketrans("oil", "011")


def _look(name: str) -> str:
    """A name with look-alike letters made equal: `H1OO` and `h100` give the same text."""
    return name.lower().translate(_LOOK_ALIKES)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` Did you mean 'a' or 'b'?` for the closest names, or nothing."""
    by_look = {_look(name): name for name in sorted(set(known))}
    close = difflib.get_close_matches(_look(given), by_look, n=3, cutoff=0.6)
    matches = [by_look[look] for look in close]
    return f" Did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def unknown_name(what: str, given: str, known: Iterable[str]) -> HardwareError:
    """Error for a name that the catalogue does not have."""
    return HardwareError(f"unknown {what} {given!r}.{did_you_mean(given, known)} ({WHERE_TO_LOOK})")


def first_error(error: ValidationError) -> tuple[str, str]:
    """The first invalid field as a dotted path, and its problem."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return field, first["msg"].removeprefix("Value error, ")


def invalid_file(origin: str, error: ValidationError, known: Collection[str] = ()) -> HardwareError:
    """Error that names the file and every missing or wrong field. `known` lists the valid fields,
    from which a misspelt field gets its suggestion."""
    problems = []
    for entry in error.errors(include_url=False):
        field = ".".join(str(part) for part in entry["loc"]) or "the file"
        if entry["type"] == "missing":
            problems.append(f"field '{field}' is missing")
        elif entry["type"] == "extra_forbidden":
            listed = f" (known: {', '.join(known)})" if known else ""
            meant = f".{close}" if (close := did_you_mean(field, known)) else listed
            problems.append(f"field '{field}' is not known{meant}")
        else:
            problems.append(f"field '{field}': {entry['msg'].removeprefix('Value error, ')}")
    return HardwareError(f"{origin}: {'; '.join(problems)}")
