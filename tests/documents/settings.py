"""`python -m tests.documents.settings` writes `docs/settings.md` from the declarations."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from hardware.curves import architecture_curves
from hardware.frozen import Frozen
from hardware.settings import Coefficient
from planner.cost.inputs import GpuInputs
from planner.cost.tables import FrameworkInputs
from planner.job.frameworks.tables import TABLES, settings_of
from tests.documents.data_tables import Column, DataTable

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings that the cost core reads

A framework's settings are keys of its TOML file in `planner/job/frameworks`, which has the evidence
for its figures. `planner frameworks NAME --all` shows their values. A default without a source
changes nothing or is an assumption. `python -m tests.documents.settings` makes this page from the
declarations, and a test holds it.
"""
_COLUMNS = (
    Column("table", "Table of the framework's TOML file.", False),
    Column("name", "Its key.", False),
    Column("type", "Type of a value.", False),
    Column("unit", "The unit of a value.", False),
    Column("default", "Value if the file gives none.", False),
    Column("meaning", "What it means.", False),
    Column("source", "Where the default is from.", False),
)
_CURVE_COLUMNS = (
    Column("name", "Its key in the table of the architecture.", False),
    Column("unit", "The unit of a value.", False),
    Column("meaning", "What it means.", False),
)
_DERIVED_COLUMNS = (
    Column("name", "A field of the core's records that no file sets.", False),
    Column("meaning", "What it holds, and where it comes from.", False),
)
_CURVES = """
## Kernels of a GPU

`hardware/efficiency/compute.toml` gives each figure for each architecture, with its own source.
"""
_DERIVED = """
## What is derived

The planner computes these fields of the core's records from settings and the job.
"""


@cache
def meanings(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a class that has one, those of the record it extends first."""
    inherited = meanings(kind.__base__) if issubclass(kind, Frozen) and kind is not Frozen else {}
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    return inherited | {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(body.body if isinstance(body, ast.ClassDef) else ())
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def tables() -> tuple[DataTable, DataTable, DataTable]:
    """Settings of a framework, figures of a GPU's kernels, and what is derived."""
    settings = [
        (
            table,
            item.name,
            item.type,
            item.unit,
            "" if item.default is None else _toml(item.default),
            item.meaning,
            item.source,
        )
        for table in TABLES
        for item in settings_of(table)
    ]
    derived = [pair for record in (FrameworkInputs, GpuInputs) for pair in meanings(record).items()]
    return (
        DataTable("settings", "Settings of a framework", _COLUMNS, settings),
        DataTable("kernels", "Figures of a GPU's kernels", _CURVE_COLUMNS, list(_curve_rows())),
        DataTable("derived", "Derived fields", _DERIVED_COLUMNS, derived),
    )


def page_text() -> str:
    """The page, as it should be."""
    settings, kernels, derived = (f"\n{table.link()}\n" for table in tables())
    titles = "".join(f"* `[{table}]`: {title}\n" for table, title in TABLES.items())
    return f"{_HEAD}\n{titles}{settings}{_CURVES}{kernels}{_DERIVED}{derived}"


def _curve_rows() -> Iterator[tuple[str, str, str]]:
    ampere = architecture_curves()["ampere"]
    for prefix, curve in (("", ampere), ("attention.KERNEL.", ampere.attention["flash2"])):
        said = type(curve).model_fields
        for name, figure in curve:
            if isinstance(figure, Coefficient):
                yield f"{prefix}{name}", figure.unit, said[name].description or ""


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case str():
            return f'"{value}"'
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
    for each in tables():
        each.write(PAGE.parent)
