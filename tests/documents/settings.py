"""`python -m tests.documents.settings` writes `docs/settings.md` from the declarations."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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
from planner.job.written import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings that the cost core reads

Made by `python -m tests.documents.settings` from the declarations; a test holds it.

A framework's settings are the fields of the tables in `planner/job/frameworks`, set by its TOML
file, which has the evidence for its figures; `planner frameworks NAME --all` shows their values. A
default without a source changes nothing or is an assumption.
"""
_COLUMNS = ("name", "type", "unit", "default", "meaning", "source")
_CURVES = """
## Kernels of a GPU

`hardware/efficiency/compute.toml` gives each figure for each architecture, with its own source.
"""
_DERIVED = """
## What is derived

Fields of the core's records that are no setting as it stands.
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


def page_text() -> str:
    """The page, as it should be."""
    parts = [_HEAD]
    for table, title in TABLES.items():
        rows = (
            (
                f"`{item.name}`",
                item.type,
                item.unit,
                "" if item.default is None else f"`{_toml(item.default)}`",
                item.meaning,
                item.source,
            )
            for item in settings_of(table)
        )
        parts += [f"\n## [{table}] {title}\n\n", _table(_COLUMNS, rows)]
    parts += [_CURVES, "\n", _table(("name", "unit", "meaning"), _curve_rows())]
    derived = (
        (f"`{name}`", text)
        for record in (FrameworkInputs, GpuInputs)
        for name, text in meanings(record).items()
    )
    return "".join((*parts, _DERIVED, "\n", _table(("name", "meaning"), derived)))


def _curve_rows() -> Iterator[tuple[str, str, str]]:
    ampere = architecture_curves()["ampere"]
    for prefix, curve in (("", ampere), ("attention.KERNEL.", ampere.attention["flash2"])):
        said = type(curve).model_fields
        for name, figure in curve:
            if isinstance(figure, Coefficient):
                yield f"`{prefix}{name}`", figure.unit, said[name].description or ""


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(titles, rows) + "\n"


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
