"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def markdown_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> str:
    """A table without a line break at its end; `right`: columns that are aligned to the right.

    A `|` inside a cell is escaped, a line break becomes a blank.
    """
    rule = ("--:" if index in right else "---" for index in range(len(titles)))
    return "\n".join((_line(titles), f"|{'|'.join(rule)}|", *(_line(row) for row in rows)))


def _line(cells: Sequence[str]) -> str:
    inner = (" ".join(cell.replace("|", "\\|").split("\n")) for cell in cells)
    return f"| {' | '.join(inner)} |"
