"""Commands that fill variables: `read`, `mapfile`, `printf -v`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.launch.read.shell_expansions import formatted
from planner.launch.read.shell_state import Value
from planner.launch.read.text import Text, Word, spaced

FILLING = ("read", "mapfile", "readarray", "printf")
# Options of read and mapfile that take a value.
_VALUED = re.compile(r"-\w*[dinNptuCcOs]")


def filled(
    words: Sequence[Word], given: Text | None, environment: Mapping[str, Text]
) -> dict[str, Value]:
    """Variables as a command leaves them. `given`: what `<<<` hands it, None for another input."""
    texts = [word.text for word in words]
    name = texts[0].value
    if name == "printf":
        return _printed(texts[1:])
    array, names = _names(texts[1:], always=name != "read")
    if given is None or given.unknown:
        why = f"which {name} takes from {'its input' if given is None else given.unknown}"
        return {each: Text.not_known(f"${each}, {why}") for each in names if each.isidentifier()}
    if name != "read":
        return {each: [Text.made(line) for line in given.value.splitlines()] for each in names}
    apart = environment.get("IFS")
    return _shared(list(_parts(given, apart.value if apart else "")), array, names)


def _printed(texts: Sequence[Text]) -> dict[str, Value]:
    """`printf -v NAME FORMAT ...`; without `-v` it only prints."""
    if len(texts) < len(("-v", "name", "format")) or texts[0].value != "-v":
        return {}
    name = texts[1].value
    return {name: formatted(texts[2:]) or Text.not_known(f"${name}, which printf writes")}


def _names(texts: Sequence[Text], *, always: bool) -> tuple[bool, list[str]]:
    """Whether one array takes all, and the variables that are named."""
    array, names, skip = always, [], False
    for text in texts:
        option = text.value
        if skip or not option.startswith("-"):
            names += [] if skip else [option]
            skip = False
            continue
        array = array or "a" in option
        skip = option == "-d" or (not always and _VALUED.fullmatch(option) is not None)
    return array, names


def _parts(given: Text, separators: str) -> list[Text]:
    """Words apart by the characters of IFS, by white space without it."""
    if not separators.strip():
        return list(given.split())
    pattern = f"[{re.escape(separators)}]"
    ends = [*(match.span() for match in re.finditer(pattern, given.value)), (len(given.value),) * 2]
    starts = [0, *(end for _, end in ends)]
    return [given[start:end] for start, (end, _) in zip(starts, ends, strict=False)]


def _shared(parts: list[Text], array: bool, names: Sequence[str]) -> dict[str, Value]:
    """Each name one word, the last the rest; an array all of them."""
    if array:
        return dict.fromkeys(names[:1], parts)
    last = len(names) - 1
    return {
        name: spaced(parts[at:] if at == last else parts[at : at + 1])
        for at, name in enumerate(names)
    }
