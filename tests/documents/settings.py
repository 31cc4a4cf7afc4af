"""`python -m tests.documents.settings` writes `docs/settings.md` from the declarations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hardware.curves import Parameter, architecture_curves
from planner.cost.inputs import GpuInputs
from planner.cost.tables import FrameworkInputs
from planner.job.frameworks.settings import TABLES, meanings, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD = """# Settings that the cost core reads

Made by `python -m tests.documents.settings` from the declarations; a test holds it.

A framework's settings are the fields of the tables in `planner/job/frameworks`, set by its TOML
file, which has the evidence for its figures; `planner frameworks NAME` shows their values. A
default without a source changes nothing or is an assumption.
"""
_COLUMNS = "| name | type | unit | default | meaning | source |\n|---|---|---|---|---|---|\n"
_CURVES = """
## Kernels of a GPU

`hardware/efficiency/compute.toml` gives each figure for each architecture, with its own source.
"""
_DERIVED = """
## What is derived

Fields of the core's records that are no setting as it stands.
"""


def page_text() -> str:
    """The page, as it should be."""
    lines = [_HEAD]
    for table, title in TABLES.items():
        lines += [f"\n## [{table}] {title}\n\n", _COLUMNS]
        for own in settings_of(table):
            default = "" if own.default is None else f"`{_toml(own.default)}`"
            lines.append(
                _row((f"`{own.name}`", own.type, own.unit, default, own.meaning, own.source))
            )
    lines += [_CURVES, "\n| name | unit | meaning |\n|---|---|---|\n"]
    ampere = architecture_curves()["ampere"]
    for prefix, curve in (("", ampere), ("attention.KERNEL.", ampere.attention["flash2"])):
        said = meanings(type(curve))
        for name, figure in curve:
            if isinstance(figure, Parameter):
                lines.append(_row((f"`{prefix}{name}`", figure.unit, said[name])))
    lines += [_DERIVED, "\n| name | meaning |\n|---|---|\n"]
    for record in (FrameworkInputs, GpuInputs):
        lines += [_row((f"`{name}`", text)) for name, text in meanings(record).items()]
    return "".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


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
