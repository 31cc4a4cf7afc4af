"""How reports look on a terminal. Only this module uses rich.

Nothing is cut. A table that is too wide first drops optional columns and names them, then breaks
its `wrap` columns at spaces, and finally becomes cards, one for each row. Without a terminal the
page has 80 columns (or COLUMNS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import Block, Column, Facts, Notes, Report, TableData

PIPE_COLUMNS = 80
# Placeholder for the space between a number and its unit, at which lines are not broken.
_JOINT = "\ue000"
# Range of usable page widths. COLUMNS may contain anything.
_NARROWEST, _WIDEST = 40, 1000


def console(stream: TextIO, no_color: bool = False) -> Console:
    """A console that prints texts as they are; colours only on a terminal without NO_COLOR."""
    width = None if stream.isatty() else _pipe_columns()
    return Console(
        file=stream,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        no_color=True if no_color else None,
    )


def _pipe_columns() -> int:
    """COLUMNS if it is a usable width, else 80."""
    text = os.environ.get("COLUMNS", "")
    columns = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else PIPE_COLUMNS
    return min(max(columns, _NARROWEST), _WIDEST)


def draw(report: Report, onto: Console, wide: bool = False) -> None:
    """Print a report with empty lines between blocks and no trailing blanks. `wide`: show
    all columns of tables, however long the lines get."""
    with onto.capture() as captured:
        for index, block in enumerate(report.blocks):
            if index:
                onto.print()
            _draw_block(block, onto, wide)
    lines = captured.get().replace(_JOINT, " ").splitlines()
    onto.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def _text(words: str, style: str = "") -> Text:
    """Text in which a number and its unit stay on one line."""
    return Text(_joined(words), style=style)


def _joined(words: str) -> str:
    return re.sub(r"(?<=\d) (?=%|[KMGT]i?B\b|m?s\b)", _JOINT, words)


def _draw_block(block: Block, onto: Console, wide: bool) -> None:
    if block.title:
        onto.print(Text(block.title, style="bold"))
    match block:
        case Facts():
            _draw_facts(block, onto)
        case TableData():
            _draw_table(block, onto, wide)
        case Notes():
            for line in block.lines:
                # A command line, indented by four, is never broken.
                if line.startswith("    "):
                    onto.print(Text(line, style="cyan"), soft_wrap=True)
                elif line.startswith("- "):
                    item = Table.grid(padding=(0, 1, 0, 0))
                    item.add_row("-", _text(line[2:]))
                    onto.print(item)
                else:
                    onto.print(_text(line))


def _draw_facts(facts: Facts, onto: Console) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="" if facts.title else "bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.rows:
        grid.add_row(label, _text(text))
    onto.print(grid)


def fitting_columns(data: TableData, page_columns: int) -> list[int]:
    """Indices of the columns to show: required ones, and optional ones while there is room."""
    widths = [_width(data, place) for place in range(len(data.columns))]
    shown = [place for place, column in enumerate(data.columns) if not column.optional]
    optional = [place for place, column in enumerate(data.columns) if column.optional]
    for place in sorted(optional, key=lambda place: data.columns[place].optional):
        if sum(widths[other] + 1 for other in (*shown, place)) - 1 <= page_columns:
            shown.append(place)
    return sorted(shown)


def _width(data: TableData, place: int) -> int:
    """Width of a column without line breaks."""
    texts = (data.columns[place].title, *(row[place] for row in data.rows))
    return max(cell_len(line) for text in texts for line in (text or " ").splitlines())


def _least_width(data: TableData, place: int, whole: bool) -> int:
    """The smallest width of a column, in characters, that breaks no word. If `whole` is set or the
    column may not be broken, the width without any line break."""
    if whole or not data.columns[place].wrap:
        return _width(data, place)
    texts = (data.columns[place].title, *(_joined(row[place]) for row in data.rows))
    return max(cell_len(word) for text in texts for word in (text.split() or " "))


def _hyphens_broken(data: TableData, columns: int) -> TableData:
    """The table with words longer than `columns` broken after hyphens, in `wrap` columns."""

    def word(match: re.Match[str]) -> str:
        return match[0] if cell_len(match[0]) <= columns else _broken_word(match[0], columns)

    def cells(row: tuple[str, ...]) -> tuple[str, ...]:
        pairs = zip(data.columns, row, strict=True)
        return tuple(re.sub(r"\S+", word, text) if one.wrap else text for one, text in pairs)

    return replace(data, rows=tuple(map(cells, data.rows)))


def _broken_word(word: str, columns: int) -> str:
    """A long word broken after hyphens into as few lines as fit."""
    lines = [""]
    for part in re.findall(r"[^-]*-|[^-]+$", word):
        if lines[-1] and cell_len(lines[-1] + part) > columns:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _narrowed(
    data: TableData, places: Sequence[int], page: int
) -> tuple[TableData, list[int]] | None:
    """The table and its column widths in characters, narrowed until it fits the page. Words are
    broken at hyphens; if that is not enough, titles are broken at spaces as well. None if the table
    is still too wide."""
    for table in (data, _stacked(data)):
        broken = [place for place in places if table.columns[place].wrap]
        fixed = sum(_width(table, place) + 1 for place in places if place not in broken)
        data = _hyphens_broken(table, (page + 1 - fixed) // max(1, len(broken)) - 1)
        least = {place: _least_width(data, place, whole=False) for place in places}
        if sum(least.values()) + len(least) - 1 <= page:
            return data, list(least.values())
    return None


def _stacked(data: TableData) -> TableData:
    """The table with titles broken at spaces where they are wider than their cells."""

    def column(place: int, one: Column) -> Column:
        wide = _width(data, place) > max((cell_len(row[place]) for row in data.rows), default=0)
        return replace(one, title=one.title.replace(" ", "\n")) if wide else one

    return replace(data, columns=tuple(column(*pair) for pair in enumerate(data.columns)))


def _draw_table(data: TableData, onto: Console, wide: bool) -> None:
    places = range(len(data.columns)) if wide else fitting_columns(data, onto.width)
    least = [_least_width(data, place, wide) for place in places]
    if sum(least) + len(least) - 1 > onto.width and not wide:
        narrowed = _narrowed(data, places, onto.width)
        if narrowed is None:
            _draw_cards(data, onto)
            return
        data, least = narrowed
    widths = _shared_out(data, places, least, onto.width)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for place, width in zip(places, widths, strict=True):
        column = data.columns[place]
        table.add_column(
            column.title,
            justify=column.align,
            no_wrap=not column.wrap,
            overflow="fold",
            vertical="top",
            width=width,
        )
    for row in data.rows:
        style = "bold" if row[0].startswith("→") else ""
        table.add_row(*(_text(row[place], style) for place in places))
    page = onto.width
    onto.width = max(page, sum(least) + len(least) - 1)
    onto.print(table)
    onto.width = page
    left_out = [_one_line(one.title) for at, one in enumerate(data.columns) if at not in places]
    if left_out:
        onto.print(_text(f"No room for: {', '.join(left_out)}."))


def _shared_out(
    data: TableData, places: Sequence[int], least: Sequence[int], page: int
) -> list[int]:
    """The widths of the columns `places` in characters, at least those in `least`. Room that is
    left on the page goes, one character at a time, to the column that is furthest from its full
    width."""
    wanted = [_width(data, place) for place in places]
    widths = list(least)
    left = page - sum(widths) - len(widths) + 1
    while left > 0:
        missing = [full - width for full, width in zip(wanted, widths, strict=True)]
        furthest = max(range(len(missing)), key=missing.__getitem__, default=0)
        if not missing or missing[furthest] <= 0:
            break
        widths[furthest] += 1
        left -= 1
    return widths


def _draw_cards(data: TableData, onto: Console) -> None:
    """Print each row as labelled lines, if the table is too wide for the page."""
    for number, row in enumerate(data.rows):
        if number:
            onto.print()
        pairs = zip(data.columns, row, strict=True)
        cells = ((_one_line(column.title), _one_line(text)) for column, text in pairs)
        _draw_facts(Facts(tuple(cell for cell in cells if cell[1])), onto)


def _one_line(text: str) -> str:
    return " ".join(text.replace("-\n", "-").split())
