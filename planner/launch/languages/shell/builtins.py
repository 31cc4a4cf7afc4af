"""The shell's own commands that set variables or print: `read`, `mapfile`, `printf`, `set`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.launch.languages.shell.state import Value
from planner.launch.languages.text import HOLE, Text, Word, digits, spaced

FILLING = ("read", "mapfile", "readarray", "printf")
# Options of read and mapfile that take a value.
_VALUED = re.compile(r"-\w*[dinNptuCcOs]")
_CONVERSION = re.compile(r"%(?:%|0?(\d{0,3})([sd]))|\\n")


def ends_on_failure(words: Sequence[Word], *, before: bool) -> bool:
    """Whether a failing command ends the script after a command such as `set -euo pipefail` or `set
    +e`. `before`: whether it did so before."""
    found = re.findall(r"(?<!\S)([-+])(?:\w*e|o errexit)", spaced(w.text for w in words).value)
    return found[-1] == "-" if found else before


def filled(
    words: Sequence[Word], given: Text | None, environment: Mapping[str, Text]
) -> dict[str, Value]:
    """Variables that `read`, `mapfile` or `printf -v` sets. `given`: the text after `<<<`, None for
    any other input."""
    name, *texts = (word.text for word in words)
    if name.value == "printf":
        return _printed_into(texts)
    is_array, names = _names(texts, always=name.value != "read")
    if given is None or given.unknown:
        why = f"which {name.value} takes from {'its input' if given is None else given.unknown}"
        return {each: Text.not_known(f"${each}, {why}") for each in names if each.isidentifier()}
    if name.value != "read":
        return {each: [Text.made(line) for line in given.value.splitlines()] for each in names}
    separators = environment["IFS"].value if "IFS" in environment else ""
    is_apart = bool(separators.strip())
    parts = list(given.between(f"[{re.escape(separators)}]") if is_apart else given.split())
    if is_array:
        return dict.fromkeys(names[:1], parts)
    # Each name takes one word, the last takes the rest.
    last = len(names) - 1
    return {
        each: spaced(parts[at:] if at == last else parts[at : at + 1])
        for at, each in enumerate(names)
    }


def _names(texts: Sequence[Text], *, always: bool) -> tuple[bool, list[str]]:
    """Whether a single array takes all words, and the names of the variables."""
    is_array, names, skip = always, list[str](), False
    for option in (text.value for text in texts):
        if skip or not option.startswith("-"):
            names += [] if skip else [option]
            skip = False
            continue
        is_array = is_array or "a" in option
        skip = option == "-d" or (not always and _VALUED.fullmatch(option) is not None)
    return is_array, names


def _printed_into(texts: Sequence[Text]) -> dict[str, Value]:
    """The variable that `printf -v NAME FORMAT ...` sets; empty without `-v`."""
    if len(texts) < len(("-v", "name", "format")) or texts[0].value != "-v":
        return {}
    name = texts[1].value
    return {name: formatted(texts[2:]) or Text.not_known(f"${name}, which printf writes")}


def formatted(words: Sequence[Text]) -> Text | None:
    """The output of `printf FORMAT ARGUMENTS`; None if reading cannot determine it.

    Only strings and whole numbers are supported; the format is used once.
    """
    if not words or HOLE in words[0].value or "%" in _CONVERSION.sub("", words[0].value):
        return None
    given = iter(words[1:])
    try:
        return words[0].replaced(_CONVERSION, lambda match: _converted(match, given))
    except ValueError:
        return None


def _converted(conversion: re.Match[str], given: Iterator[Text]) -> Text:
    """The next argument as `%s` or `%05d` prints it. ValueError if reading cannot determine it."""
    if conversion[2] is None:
        return Text.made("\n" if conversion[0] == "\\n" else "%")
    word, width = next(given, Text("")), int(conversion[1] or 0)
    if conversion[2] == "s" and not width:
        return word
    number = digits(word.value)
    if conversion[2] == "s" or number is None:
        raise ValueError(conversion[0])
    return Text.made(str(number).rjust(width, "0" if conversion[0].startswith("%0") else " "))
