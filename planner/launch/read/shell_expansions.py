"""What the shell makes of a value inside `${...}`, and what `printf` prints."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from planner.launch.read.text import HOLE, Text, digits, join

# Longer values are data, not settings of a launch.
_LONGEST = 1_000
_LENGTH = re.compile(r"\s*(-?\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")
_FORMATS = re.compile(r"%(?:%|0?(\d{0,3})([sd]))|\\n")


def edited(value: Text, operation: str) -> Text | None:
    """`%.sh`, `##*/`, `//a/b`, `^^`, `:2:3` behind a variable's name; None beyond reading.

    A pattern of a replacement is taken as it stands, without wildcards.
    """
    if len(value.value) > _LONGEST or HOLE in value.value or "$" in operation or "`" in operation:
        return None
    sign, pattern = operation[:1], re.sub(r"[\"'\\]", "", operation[1:])
    if sign in ("%", "#"):
        twice = operation[1:2] == sign
        return _cut(value, pattern[1:] if twice else pattern, at_end=sign == "%", longest=twice)
    if sign == "/":
        return _replaced(value, pattern)
    if operation in ("^^", ",,"):
        changed = value.value.upper() if sign == "^" else value.value.lower()
        return Text.made(changed)
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
    match = _LENGTH.fullmatch(range_)
    if match is None:
        return None
    first, size = int(match[1]), len(value.value)
    first = max(0, size + first) if first < 0 else first
    return value[first : size if match[2] is None else first + int(match[2])]


def formatted(words: Sequence[Text]) -> Text | None:
    """What `printf FORMAT ARGUMENTS` prints; None where reading cannot tell.

    Strings and whole numbers; the format is used once.
    """
    if not words or HOLE in words[0].value or "%" in _FORMATS.sub("", words[0].value):
        return None
    pieces = list(_pieces(words[0], iter(words[1:])))
    known = [piece for piece in pieces if piece is not None]
    return join(known) if len(known) == len(pieces) else None


def _pieces(form: Text, given: Iterator[Text]) -> Iterator[Text | None]:
    places = [(match.start(), match.end()) for match in _FORMATS.finditer(form.value)]
    for (_, end), (start, after) in pairwise([(0, 0), *places, (len(form.value),) * 2]):
        yield form[end:start]
        if after > start:
            yield _piece(form.value[start:after], given)


def _piece(conversion: str, given: Iterator[Text]) -> Text | None:
    if conversion in ("\\n", "%%"):
        return Text.made("\n" if conversion == "\\n" else "%")
    word = next(given, Text(""))
    match = _FORMATS.fullmatch(conversion)
    width = digits(match[1] or "0") if match else 0
    if conversion.endswith("s"):
        return word if not width else None
    number = digits(word.value)
    filled = "0" if conversion.startswith("%0") else " "
    return None if number is None else Text.made(str(number).rjust(width or 0, filled))
