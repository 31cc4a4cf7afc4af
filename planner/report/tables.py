"""Blocks of a report (facts, tables, notes), not yet laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Literal, ParamSpec


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Only `wrap` columns may be broken at spaces.

    `optional`: shown if there is room, lower numbers first; 0: always shown.
    """

    title: str
    align: Literal["left", "right"] = "right"
    wrap: bool = False
    optional: int = 0


def headings(titles: str) -> tuple[Column, ...]:
    """Columns from titles such as `~cluster | GPUs | <fabric`. Plain titles hold numbers,
    `<` holds names, `~` holds words that may wrap; `?1` at the end makes a column
    `optional`."""
    found = []
    for part in titles.split("|"):
        title, _, optional = part.strip(" ").partition(" ?")
        plain = title.removeprefix("<").removeprefix("~")
        align: Literal["left", "right"] = "right" if plain == title else "left"
        found.append(Column(plain, align, title[:1] == "~", int(optional or 0)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Facts:
    """Statements with labels, one on each line."""

    rows: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class TableData:
    """A titled table; every row has one text per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns")


def table(titles: str, rows: Iterable[tuple[str, ...]], title: str = "") -> TableData:
    """A table by the titles of its columns, as `headings` reads them."""
    return TableData(headings(titles), tuple(rows), title)


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences under a table or at the end of a report."""

    lines: tuple[str, ...]
    title: str = ""


Block = Facts | TableData | Notes


@dataclass(frozen=True, slots=True)
class Report:
    """Blocks in reading order."""

    blocks: tuple[Block, ...]


Given = ParamSpec("Given")


def as_report(blocks: Callable[Given, Iterator[Block]]) -> Callable[Given, Report]:
    """Decorator that collects the blocks of a generator into a report."""

    @wraps(blocks)
    def made(*args: Given.args, **named: Given.kwargs) -> Report:
        return Report(tuple(blocks(*args, **named)))

    return made
