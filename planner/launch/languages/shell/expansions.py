"""What the shell makes of a variable's value in `${NAME%.sh}` and its like."""

from __future__ import annotations

import fnmatch
import re

from planner.launch.languages.text import HOLE, Text

# Longer values are data, which nobody names a thing by.
_LONGEST = 1_000
_PART = re.compile(r"\s*(-?\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")


def edited(value: Text, operation: str) -> Text | None:
    """`%.sh`, `##*/`, `//a/b`, `^^`, `:2:3` behind a variable's name; None beyond reading.

    A pattern of a replacement is taken as it stands, without wildcards.
    """
    if len(value.value) > _LONGEST or HOLE in value.value or "$" in operation or "`" in operation:
        return None
    sign, pattern = operation[:1], re.sub(r"[\"'\\]", "", operation[1:])
    if sign in ("%", "#"):
        twice = operation[1:2] == sign
        return _cut(value, pattern[twice:], at_end=sign == "%", longest=twice)
    if sign == "/":
        return _replaced(value, pattern)
    if operation in ("^^", ",,"):
        return Text.made(value.value.upper() if sign == "^" else value.value.lower())
    return _part(value, operation[1:]) if sign == ":" else None


def _cut(value: Text, pattern: str, *, at_end: bool, longest: bool) -> Text:
    """Without the shortest or longest end (or start) that matches."""
    size = len(value.value)
    ends = range(size + 1) if longest == at_end else range(size, -1, -1)
    for at in ends:
        part = value.value[at:] if at_end else value.value[:at]
        if fnmatch.fnmatchcase(part, pattern):
            return value[:at] if at_end else value[at:]
    return value


def _replaced(value: Text, pattern: str) -> Text | None:
    every = pattern.startswith("/")
    old, _, new = pattern[every:].partition("/")
    if not old or re.search(r"[*?\[\]#%]", old):
        return None
    return Text.made(value.value.replace(old, new, -1 if every else 1))


def _part(value: Text, range_: str) -> Text | None:
    """`:2`, `:2:3`, `: -2`."""
    match = _PART.fullmatch(range_)
    if match is None:
        return None
    first, size = int(match[1]), len(value.value)
    first = max(0, size + first) if first < 0 else first
    return value[first : size if match[2] is None else first + int(match[2])]
