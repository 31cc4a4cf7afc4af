"""Every table of the site is a CSV file with a schema, and pages say how many rows it has."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "data").glob("*.csv"))


def _rows(table: Path) -> list[list[str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_a_table_is_as_its_schema_says(table: Path) -> None:
    fields = json.loads(table.with_suffix(".schema.json").read_text(encoding="utf-8"))["fields"]
    titles, *rows = _rows(table)
    assert titles == [field["name"] for field in fields]
    assert all(field["description"].endswith((".", ")")) for field in fields)
    assert rows and all(len(row) == len(titles) for row in rows)
    for at in (at for at, field in enumerate(fields) if field["type"] == "number"):
        assert all(float(row[at]) is not None for row in rows if row[at])


def test_pages_count_the_rows_of_the_tables_that_they_show() -> None:
    shown = set()
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, count in re.findall(
            r"^\[[^\]]*\]\([^)]*?([\w-]+)\.csv\): ([\d,]+) rows", text, re.M
        ):
            assert len(_rows(DOCS / "data" / f"{name}.csv")) - 1 == int(count.replace(",", "")), (
                name
            )
            shown.add(name)
    # The list of public launch files is too long to be shown on a page; its page links to it.
    assert shown == {table.stem for table in TABLES} - {"public-launch-files"}
