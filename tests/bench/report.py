"""The report: tables of Markdown, with columns before and after if there is a version before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Values = Mapping[str, float | str]


@dataclass(frozen=True)
class Metric:
    """A column: the key of its values, its heading, and the decimals they are printed with.

    `compared`: whether it stands before and after, with the ratio of both.
    """

    key: str
    heading: str
    decimals: int = 2
    compared: bool = True

    def text(self, values: Values | None) -> str:
        """A value; a dash where there is none."""
        value = None if values is None else values.get(self.key)
        if value is None:
            return "–"
        return value if isinstance(value, str) else f"{value:,.{self.decimals}f}"

    def ratio(self, before: Values | None, after: Values | None) -> str:
        """After over before; a dash where that says nothing."""
        old, new = (None if item is None else item.get(self.key) for item in (before, after))
        if not isinstance(old, float | int) or not isinstance(new, float | int) or not old * new:
            return "–"
        return f"{new / old:.3g}"


@dataclass(frozen=True)
class Row:
    """A line: what was measured, its values now and, perhaps, of the version before."""

    name: str
    after: Values | None
    before: Values | None = None


def table(name: str, metrics: Sequence[Metric], rows: Sequence[Row]) -> str:
    """A table of Markdown; columns of the version before where any row has it."""
    has_before = any(row.before is not None for row in rows)
    heads = [name]
    for each in metrics:
        heads += (
            [f"{each.heading}, before", "after", "after / before"]
            if has_before and each.compared
            else [each.heading]
        )
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for row in rows:
        cells = [row.name]
        for each in metrics:
            if has_before and each.compared:
                ratio = each.ratio(row.before, row.after)
                cells += [each.text(row.before), each.text(row.after), ratio]
            else:
                cells.append(each.text(row.after))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def section(title: str, text: str, *tables: str) -> str:
    """A heading, what was measured, and its tables."""
    return "\n\n".join([f"## {title}", text, *tables])
