"""Record classes whose fields are declared in a TOML table: type, unit, default and meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from hardware.files import shipped_toml
from hardware.frozen import Frozen

Provenance = Literal["measured", "extrapolated", "assumed"]
Kind = TypeVar("Kind", bound=Frozen)
Declarations = Mapping[str, Mapping[str, Any]]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def pairs(table: object) -> object:
    """A table as sorted pairs, nested tables too, because profiles have to be hashable."""
    if not isinstance(table, dict):
        return table
    return tuple((name, pairs(value)) for name, value in sorted(table.items()))


class Coefficient(Frozen):
    """A figure with its unit and provenance. `fitted_on` names the rows that it was fitted on, if
    any."""

    value: Annotated[float, Field(ge=0.0)]
    unit: Literal["1", "s", "1/s", "element", "B", "B/s", "FLOP/s"]
    source: str
    provenance: Provenance
    fitted_on: str = ""


_TYPES: Mapping[str, Any] = {
    "boolean": bool,
    "string": str,
    "table of string": Annotated[tuple[tuple[str, ...], ...], BeforeValidator(pairs)],
    "integer": int,
    "number": float,
    "number ≥ 0": Annotated[float, Field(ge=0.0)],
    "number > 0": Annotated[float, Field(gt=0.0)],
    "number 0..1": Share,
    "coefficient": Coefficient,
}


def _type(words: str) -> Any:
    """The type that a declaration names."""
    if words.startswith("`"):
        return Literal[tuple(word.strip("`") for word in words.split(" or "))]
    if words.startswith("list of "):
        return GenericAlias(tuple, (_type(words.removeprefix("list of ")), ...))
    kind = _TYPES[words.removesuffix(" or none")]
    return kind | None if words.endswith(" or none") else kind


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _field(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Type and default of a field. A field without a default that is not `or none` is required."""
    needed = "default" not in row and not row["type"].endswith(" or none")
    default = ... if needed else _frozen(row.get("default"))
    return _type(row["type"]), Field(default, description=row["meaning"])


@cache
def declarations(package: str, file: str) -> Mapping[str, Declarations]:
    """The tables of a package's TOML file: table -> setting -> declaration."""
    return shipped_toml(package, file)


def declared(package: str, file: str, table: str) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator that adds a field for each setting of a table."""
    rows = declarations(package, file)[table].items()
    fields: dict[str, Any] = {name: _field(row) for name, row in rows}

    def made(kind: type[Kind]) -> type[Kind]:
        return create_model(
            kind.__name__, __base__=kind, __doc__=kind.__doc__, __module__=kind.__module__, **fields
        )

    return made


class Settings(Frozen):
    """A table of settings. Unless a class declares otherwise, a type checker sees numbers."""

    # Each class exists twice, without and with its fields.
    model_config = ConfigDict(defer_build=True)

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, setting: str) -> float: ...
