"""Texts of `templates/` with a plan's values in them: programs and files as they are written."""

from __future__ import annotations

import re
from functools import cache

from hardware.files import shipped_text

# A line that holds one name alone, or a name in a line; the shell's own names are capitals.
_NAME = re.compile(r"(?m)^( *)\$\{([a-z_]+)\}\n|\$\{([a-z_]+)\}")


@cache
def _text(name: str) -> str:
    return shipped_text("planner.launch", f"templates/{name}")


def filled(name: str, /, **values: object) -> str:
    """A template with each `${value}` filled in.

    A line of one name alone becomes the value's lines, indented as the line is, and goes where the
    value has none. KeyError for a name without a value.
    """

    def fill(match: re.Match[str]) -> str:
        if match[3]:
            return str(values[match[3]])
        value = values[match[2]]
        lines = value if isinstance(value, list | tuple) else str(value).splitlines()
        return "".join(f"{match[1]}{line}\n" if line else "\n" for line in lines)

    return _NAME.sub(fill, _text(name))
