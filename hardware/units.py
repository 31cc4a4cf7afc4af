"""A number with its unit and source. This is the only place where units are converted to SI."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from hardware.files import shipped_toml
from hardware.frozen import Frozen

ASSUMPTION = "assumption"
USER = "user"

# unit -> (its dimension, its size in SI units)
UNITS: Mapping[str, tuple[str, float]] = shipped_toml("hardware", "catalog/units.toml")
_SHORTHAND = re.compile(r"^\s*([0-9.eE+_]+)\s*([A-Za-z/]+)\s*$")


class Quantity(Frozen):
    """`{ value = 450, unit = "GB/s", source = "..." }`. A user's file may also say "450 GB/s"
    or 8."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    unit: str
    source: str = USER
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, data: Any) -> Any:
        if isinstance(data, bool) or not isinstance(data, int | float | str):
            return data
        if not isinstance(data, str):
            return {"value": data, "unit": "1"}
        if match := _SHORTHAND.match(data):
            return {"value": match[1], "unit": match[2]}
        raise ValueError(f"{data!r} is not a number with a unit; write for example '450 GB/s'")

    @model_validator(mode="after")
    def _unit_is_known(self) -> Quantity:
        if self.unit not in UNITS:
            raise ValueError(f"unit {self.unit!r} is not one of {', '.join(UNITS)}")
        return self

    def __str__(self) -> str:
        return f"{self.value:g}" if self.unit == "1" else f"{self.value:g} {self.unit}"

    @property
    def dimension(self) -> str:
        """The dimension of the unit, such as bandwidth."""
        return UNITS[self.unit][0]

    @property
    def si(self) -> float:
        """Value in SI units: bytes, bytes/s, FLOP/s, W, Hz."""
        return self.value * UNITS[self.unit][1]


def _measures(dimension: str) -> Callable[[Quantity], Quantity]:
    def check(quantity: Quantity) -> Quantity:
        if quantity.dimension != dimension:
            units = ", ".join(unit for unit, (kind, _) in UNITS.items() if kind == dimension)
            raise ValueError(f"{quantity} is not in units of {dimension}; use one of: {units}")
        return quantity

    return check


def _positive(quantity: Quantity) -> Quantity:
    if quantity.value <= 0:
        raise ValueError(f"{quantity} is not positive")
    return quantity


def _whole(quantity: Quantity) -> Quantity:
    if quantity.value != int(quantity.value):
        raise ValueError(f"{quantity.value:g} is not a whole number")
    return quantity


ArithmeticRate = Annotated[
    Quantity, AfterValidator(_measures("arithmetic rate")), AfterValidator(_positive)
]
Size = Annotated[Quantity, AfterValidator(_measures("size")), AfterValidator(_positive)]
Bandwidth = Annotated[Quantity, AfterValidator(_measures("bandwidth")), AfterValidator(_positive)]
Power = Annotated[Quantity, AfterValidator(_measures("power")), AfterValidator(_positive)]
Frequency = Annotated[Quantity, AfterValidator(_measures("frequency")), AfterValidator(_positive)]
CountOrNone = Annotated[Quantity, AfterValidator(_measures("count")), AfterValidator(_whole)]
Count = Annotated[CountOrNone, AfterValidator(_positive)]
Ratio = Annotated[Quantity, AfterValidator(_measures("count")), AfterValidator(_positive)]
