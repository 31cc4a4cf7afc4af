"""The settings of a profile as people read them: type, unit, default, meaning, source.

All of it is read from the declarations (`planner.job.frameworks.tables`), when somebody asks.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from hardware.frozen import Frozen
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.frameworks.tables import declarations

# Tables of a framework's file that hold settings, in the order in which they are shown.
TABLES = {
    "parallelism": "Parallelism",
    "saved": "Bytes per element kept for backward",
    "state": "Weights, gradients and optimizer",
    "optimizer": "Optimizers: families (none: any), types, kernels, offload",
    "activation_offload": "Activations on the host",
    "recomputing": "Further forms of recomputation",
    "kernels": "How work is issued",
    "overlap": "Share of traffic that may hide behind compute",
    "outside": "Memory outside tensors",
    "full_memory": "Runs near full memory",
}


class DeclaredSetting(NamedTuple):
    """One declared setting. `default`: None where a file must give it or where that is it."""

    table: str
    name: str
    type: str
    unit: str
    default: Any
    meaning: str
    source: str


@cache
def settings_of(table: str) -> tuple[DeclaredSetting, ...]:
    """The settings of one of TABLES, in the order of their declaration."""
    if table in declarations():
        rows = declarations()[table].items()
        return tuple(_declared(table, name, row) for name, row in rows)
    kind: Any = FrameworkProfile.model_fields[table].annotation
    schema, said = kind.model_json_schema()["properties"], meanings(kind)
    return tuple(_setting(table, name, item, said.get(name, "")) for name, item in schema.items())


def _declared(table: str, name: str, row: Mapping[str, Any]) -> DeclaredSetting:
    """A setting of `settings.toml`."""
    unit = row.get("unit", "1" if row["type"].startswith("number") else "")
    default, source = row.get("default"), row.get("source", "")
    return DeclaredSetting(table, name, row["type"], unit, default, row["meaning"], source)


def _setting(table: str, name: str, one_table: Mapping[str, Any], said: str) -> DeclaredSetting:
    meaning, _, source = said.partition(" Source: ")
    shown = _type(one_table)
    unit = _unit(one_table) or ("1" if shown.startswith(("number", "integer")) else "")
    return DeclaredSetting(table, name, shown, unit, one_table.get("default"), meaning, source)


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


def _unit(table: Mapping[str, Any]) -> str:
    """The unit, also of a number that may be left out."""
    return str(table.get("unit") or next((_unit(one) for one in table.get("anyOf", ())), ""))


def _type(table: Mapping[str, Any]) -> str:
    """A JSON schema in words: `number 0..1`, `list of string`, `even or any`."""
    shown = str(table.get("type"))
    match table:
        case {"anyOf": choices}:
            shown = " or ".join(_type(one).replace("null", "none") for one in choices)
        case {"enum": values}:
            shown = " or ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": {"type": "array"}}:
            shown = "table of string"
        case {"type": "array", "items": item}:
            shown = f"list of {_type(item)}"
        case {"minimum": low, "maximum": high}:
            shown += f" {low:g}..{high:g}"
        case {"minimum": low}:
            shown += f" ≥ {low:g}"
        case {"exclusiveMinimum": low}:
            shown += f" > {low:g}"
    return shown
