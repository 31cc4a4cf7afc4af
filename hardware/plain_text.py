"""Checks on text that reaches terminals, scripts and spreadsheets."""

from __future__ import annotations

import re

# Line breaks, other control characters, and those that change the direction of text. In a name they
# are a mistake or an attack, on the terminal as well as in a script.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def demand_plain(text: str, what: str) -> None:
    """Raise ValueError if a name contains a line break or another control character."""
    if not text.isprintable() and (found := CONTROL.search(text)):
        raise ValueError(
            f"{what} {text!a} contains a control character ({found[0]!a}), which no name may; "
            "leave it out"
        )


# Start of a cell that a spreadsheet would run as a formula.
_FORMULA = re.compile(r"[=+\-@\t\r].")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def guarded_cell(cell: object) -> object:
    """A cell for a CSV file. Text that a spreadsheet would run as a formula gets a leading
    apostrophe; numbers stay numbers."""
    is_text = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_text else cell


def unguarded_cell(cell: str) -> str:
    """The original text of a cell that `guarded_cell` wrote."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell
