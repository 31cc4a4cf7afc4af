"""Rows of the page: what a document says, what the program says by which command, and the verdict.

A figure judges itself: what differs by more than `_CLOSE` must come with an erratum, and an erratum
on what agrees is refused, so that the page cannot claim what is no longer so.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from click.testing import CliRunner

from planner.cli.program import planner_command
from planner.job.written import markdown_table
from tests.documents.data_tables import Column, DataTable

_SCALES = {
    "B": 1.0,
    "GB": 1e9,
    "GB/s": 1e9,
    "GiB": 2.0**30,
    "MiB": 2.0**20,
    "TB": 1e12,
    "TFLOP/s": 1e12,
    "%": 0.01,
}
_CLOSE = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """One formula, table or example; `by` is a command or a function of the program."""

    what: str
    theirs: str
    ours: str
    by: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document by its title and author, with its rows; `letter` begins their numbers."""

    letter: str
    title: str
    by: str
    rows: Sequence[Row]


def number(value: float, unit: str, digits: int) -> str:
    """A figure in a unit, as the documents print it."""
    text = f"{value / _SCALES.get(unit, 1.0):,.{digits}f}"
    return text + (unit if unit == "%" else f" {unit}" if unit else "")


def figure(
    what: str,
    theirs: float,
    ours: float,
    by: str,
    *,
    unit: str = "B",
    digits: int = 0,
    formula: str = "",
    erratum: str = "",
    note: str = "",
) -> Row:
    """A figure, or a formula at an example. ValueError for a verdict that the figures deny."""
    theirs_text, ours_text = number(theirs, unit, digits), number(ours, unit, digits)
    differs = abs(ours / theirs - 1.0)
    if bool(erratum) != (differs > _CLOSE):
        raise ValueError(f"{what}: theirs {theirs_text}, ours {ours_text}; erratum {erratum!r}")
    if erratum:
        verdict = f"**erratum**: {erratum}"
    elif theirs_text == ours_text:
        verdict = "agrees"
    else:
        verdict = f"agrees within {_percent(differs)}"
    verdict += f"; {note}" if note else ""
    shown = f"{formula} = {theirs_text}" if formula else theirs_text
    return Row(what, shown, ours_text, by, verdict)


def within(what: str, theirs: str, low: float, high: float, ours: float, by: str) -> Row:
    """A share that a document gives as a range, or with one digit."""
    verdict = "agrees" if low <= ours <= high else "**differs**"
    return Row(what, theirs, number(ours, "%", 1), by, verdict)


def _percent(share: float) -> str:
    return f"{100 * share:.1g} %" if share < 1e-3 else f"{100 * share:.1f} %"


def command(words: str) -> str:
    """A command as the page shows it."""
    return f"`planner {words}`"


@cache
def run(words: str) -> dict[str, Any]:
    """The JSON document of a command. ValueError with its error if it has none."""
    result = CliRunner().invoke(planner_command, [*shlex.split(words), "--json"])
    if result.exit_code not in (0, 1) or not result.stdout.startswith("{"):
        raise ValueError(f"planner {words}: exit {result.exit_code}: {result.output}")
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def phase(words: str, name: str, step: str = "later") -> dict[str, Any]:
    """A phase of the first pipeline stage under `planner memory`."""
    phases = run(words)["stages"][0]["phases"]
    return next(item for item in phases if item["phase"] == name and item["step"] == step)


def term(words: str, name: str, of_phase: str, step: str = "later") -> float:
    """Bytes of one term in a phase."""
    return float(phase(words, of_phase, step)["terms"].get(name, 0.0))


def layers_bytes(words: str) -> float:
    """Bytes that the layers keep for backward, at its start."""
    kept = run(words)["stages"][0]["peak_kept_tensors"]
    outer = ("head", "embedding")
    return float(
        sum(kept_one["bytes"] for kept_one in kept if not kept_one["name"].startswith(outer))
    )


_COLUMNS = (
    Column("number", "Letter of the text, and number of the row in it.", number=False),
    Column("what", "The formula, the entry of a table, or the example.", number=False),
    Column("theirs", "What the text says.", number=False),
    Column("ours", "What the program says.", number=False),
    Column("by", "The command or the function that says it.", number=False),
    Column("verdict", "Whether they agree, and else who is right and why.", number=False),
)


def table(documents: Sequence[Document]) -> DataTable:
    """All rows as data."""
    rows = [
        (number, row.what, row.theirs, row.ours, row.by, row.verdict.replace("**", ""))
        for number, row in _numbered(documents)
    ]
    return DataTable("documents", "All formulas, tables and examples", _COLUMNS, rows)


def _numbered(documents: Sequence[Document]) -> Iterator[tuple[str, Row]]:
    for document in documents:
        for index, row in enumerate(document.rows, 1):
            yield f"{document.letter}{index}", row


def page(documents: Sequence[Document]) -> str:
    """The Markdown page: the texts, and the rows in which they are wrong."""
    texts = (
        (one.letter, one.title, one.by, str(len(one.rows)), str(len([*_errata(one.rows)])))
        for one in documents
    )
    wrong = (
        (number, row.what, row.verdict.removeprefix("**erratum**").lstrip(": "))
        for number, row in _numbered(documents)
        if row in [*_errata([row])]
    )
    return _PAGE.format(
        texts=markdown_table(("", "text", "by", "rows", "errata"), texts, (3, 4)),
        data=table(documents).link(),
        errata=markdown_table(("", "what", "what is wrong"), wrong),
    )


def _errata(rows: Sequence[Row]) -> Iterator[Row]:
    return (row for row in rows if row.verdict.startswith("**erratum**"))


_PAGE = """# The documents

The memory model started from five texts. The table below lists each formula, table and
worked example in them: what the text says, what the program says, by which command, and who is
right. Most agree; the errata are below. `python -m tests.documents` writes this page and its
table, and a test asserts that they are what the program says today.

{texts}

{data}

## Errata

{errata}
"""
