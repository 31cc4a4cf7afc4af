"""List prices of rented GPUs: per GPU of a whole instance, host included."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hardware.errors import HardwareError, invalid_file
from hardware.load import CATALOG, load_gpu

PriceKind = Literal["on_demand", "spot", "reserved"]


class Price(BaseModel):
    """One row of `catalog/prices.csv`. `gpu` is a catalogue name; `date` empty if unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: str
    provider: str
    kind: PriceKind
    usd_per_gpu_hour: Annotated[float, Field(gt=0)]
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$")] = ""
    source: str


def load_prices(path: Path | None = None) -> tuple[Price, ...]:
    """Prices of the catalogue, or of a user's CSV with the same header.

    GPU names may be spelled in any way. HardwareError names file, line and field at fault.
    """
    origin = path or CATALOG / "prices.csv"
    try:
        with origin.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            return tuple(_price(origin, reader.line_num, row) for row in reader)
    except OSError as error:
        raise HardwareError(f"{origin}: cannot be read ({error.strerror})") from None


def _price(origin: Path, line: int, row: dict[str, str]) -> Price:
    try:
        price = Price.model_validate(row)
        return price.model_copy(update={"gpu": load_gpu(price.gpu).name})
    except ValidationError as error:
        raise invalid_file(f"{origin}, line {line}", error) from None
    except HardwareError as error:
        raise HardwareError(f"{origin}, line {line}: {error}") from None
