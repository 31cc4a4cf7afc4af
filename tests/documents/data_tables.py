"""Tables of the documentation as data: a CSV file with a Table Schema beside it.

A page links to the file (`link`), and the site shows it as a sortable table
(`docs/_hooks/site.py`). The schema follows https://specs.frictionlessdata.io/table-schema/: name,
type and meaning of each column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.job.written import csv_text, write_text

FOLDER = "data"
"""The folder of the files, beside the pages of `docs/`."""
_NO_VALUE = ("-", "")


@dataclass(frozen=True)
class Column:
    """A column: its name in the header, and what it means. `number`: its cells are numbers, and
    `cell` drops the commas and percent signs that are there for people (`1,230`, `4.5 %`)."""

    name: str
    meaning: str
    number: bool = True

    def cell(self, text: str) -> str:
        """A cell as the file has it; empty where nothing is known."""
        if not self.number:
            return text
        text = text.removesuffix(" %").replace(",", "")
        return "" if text in _NO_VALUE else f"{float(text):g}"


@dataclass(frozen=True)
class DataTable:
    """A table of a page; `rows` are texts as a page would show them."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def link(self, up: str = "") -> str:
        """The paragraph that shows it on a page; `up` leads from the page's folder to `docs/`."""
        place = f"{up}{FOLDER}/{self.name}"
        rows = f"{len(self.rows):,} rows, [what the columns mean]({place}.schema.json)"
        return f"[{self.title}]({place}.csv): {rows}."

    def files(self) -> Mapping[str, str]:
        """Content of the files by name."""
        schema = {
            "fields": [
                {
                    "name": column.name,
                    "type": "number" if column.number else "string",
                    "description": column.meaning,
                }
                for column in self.columns
            ]
        }
        names = [column.name for column in self.columns]
        return {
            f"{self.name}.csv": csv_text(names, self._records(), guarded=False),
            f"{self.name}.schema.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n",
        }

    def write(self, pages: Path) -> None:
        """Write both files into the folder of data beside the pages."""
        for name, text in self.files().items():
            write_text(pages / FOLDER / name, text, force=True)

    def _records(self) -> Iterator[Mapping[str, str]]:
        for row in self.rows:
            yield {
                column.name: column.cell(cell)
                for column, cell in zip(self.columns, row, strict=True)
            }
