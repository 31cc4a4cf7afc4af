"""Rental prices per GPU-hour, the host included."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from hardware.errors import HardwareError, did_you_mean
from hardware.files import csv_rows, read_text
from hardware.frozen import Named
from hardware.load import CATALOG, MOST_GPUS, load_gpu
from hardware.ranges import LARGEST_PRICE

PriceKind = Literal["on_demand", "reserved", "spot"]
PRICE_KINDS: tuple[PriceKind, ...] = ("on_demand", "reserved", "spot")
CATALOGUE_CURRENCY = "USD"
# Columns of a price file. A price is in exactly one of the two columns of _AMOUNTS.
_REQUIRED = ("gpu", "provider", "kind")
_AMOUNTS = ("usd_per_gpu_hour", "price_per_gpu_hour")
_OPTIONAL = ("currency", "date", "source", "instance", "instance_gpus", "note")
COLUMNS = (*_REQUIRED, *_AMOUNTS, *_OPTIONAL)
HEADER_RULE = (
    "a price file has the columns gpu, provider, kind, and usd_per_gpu_hour or "
    "price_per_gpu_hour with currency; date, source, instance, instance_gpus and note may follow"
)


# The first year of GPU computing (CUDA).
_FIRST_YEAR = 2007
PriceOfGpu = Annotated[float, Field(ge=1e-6, le=LARGEST_PRICE)]


def _first_day(text: str) -> datetime.date:
    """The date 2026-10-01 for itself and for 2026-10. Raises ValueError for anything else."""
    return datetime.date.fromisoformat(text if text.count("-") == 2 else f"{text}-01")


def age_days(text: str, today: datetime.date) -> int | None:
    """Days since a date; None if the text is empty."""
    return (today - _first_day(text)).days if text else None


def _demand_date(text: str) -> str:
    """Check that the text is empty or a real month or day, at most one year ahead of the clock."""
    if text:
        try:
            day = _first_day(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a date; write 2026-10 or 2026-10-01") from None
        last = datetime.date.today().year + 1
        if not _FIRST_YEAR <= day.year <= last:
            raise ValueError(
                f"{text!r}: give the date on which the price was read, from {_FIRST_YEAR} to {last}"
            )
    return text


Date = Annotated[str, Field(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$"), AfterValidator(_demand_date)]


class Price(Named):
    """One row of `catalog/prices.csv`: price per GPU-hour, including its share of the host.

    `gpu` is a catalogue name; `date` is empty if unknown. The price is that of `instance`, which
    has `instance_gpus` GPUs; None if the source prices single GPUs of an unknown instance.
    """

    gpu: str
    provider: str
    kind: PriceKind
    price_per_gpu_hour: PriceOfGpu
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = CATALOGUE_CURRENCY
    date: Date = ""
    source: str = ""
    instance: str = ""
    instance_gpus: Annotated[int, Field(gt=0, le=MOST_GPUS)] | None = None
    note: str = ""

    @property
    def usd_per_gpu_hour(self) -> float:
        """The price in US dollars. HardwareError if it is in another currency."""
        if self.currency != CATALOGUE_CURRENCY:
            raise HardwareError(f"{self.provider}, {self.gpu}: priced in {self.currency}, not USD")
        return self.price_per_gpu_hour

    def age_days(self, today: datetime.date) -> int | None:
        """Days since the price was read; None if unknown. A month counts from its first day."""
        return age_days(self.date, today)


def load_prices(path: Path | None = None) -> tuple[Price, ...]:
    """Prices of the catalogue, or of a user's CSV file.

    Columns in any order: gpu, provider, kind (on_demand, reserved, spot), and either
    `usd_per_gpu_hour`, or `price_per_gpu_hour` with `currency` (EUR). Optional: date (2026-10 or
    2026-10-01), source, instance, instance_gpus, note. GPU names may be spelled in any way.
    HardwareError names the file, the line, and the wrong column or field.
    """
    origin = path or CATALOG / "prices.csv"
    rows = csv_rows(read_text(origin), str(origin))
    header = [name.strip() for name in next(rows, (1, []))[1]]
    check_header(origin, header)
    return tuple(_price(origin, line, header, cells) for line, cells in rows)


def check_header(origin: Path, header: Sequence[str]) -> None:
    """Raise HardwareError with line and column unless these are the columns of a price file."""
    seen: set[str] = set()
    for column, name in enumerate(header, start=1):
        where = f"{origin}, line 1, column {column}"
        if name in seen:
            raise HardwareError(f"{where}: {name!r} is given twice")
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS)
            raise HardwareError(f"{where}: unknown column {name!r}.{hint} ({HEADER_RULE})")
        seen.add(name)
    missing = [name for name in _REQUIRED if name not in seen]
    if missing:
        raise HardwareError(
            f"{origin}, line 1, column {len(header) + 1}: column {missing[0]!r} is missing "
            f"({HEADER_RULE})"
        )
    amounts = [name for name in _AMOUNTS if name in seen]
    if len(amounts) != 1:
        problem = "both usd_per_gpu_hour and price_per_gpu_hour" if amounts else "no price column"
        raise HardwareError(f"{origin}, line 1: {problem} ({HEADER_RULE})")
    if amounts == ["price_per_gpu_hour"] and "currency" not in seen:
        raise HardwareError(
            f"{origin}, line 1: price_per_gpu_hour needs the column 'currency' ({HEADER_RULE})"
        )


def _price(origin: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> Price:
    where = f"{origin}, line {line}"
    if len(cells) != len(header):
        raise HardwareError(f"{where}: {len(cells)} cells under {len(header)} columns")
    row: dict[str, Any] = {
        name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()
    }
    dollars = row.get("usd_per_gpu_hour")
    if dollars is not None and row.get("currency", "USD") != "USD":
        column = header.index("currency") + 1
        raise HardwareError(
            f"{where}, column {column}: usd_per_gpu_hour is in USD, not in {row['currency']}; name "
            "the column price_per_gpu_hour"
        )
    if dollars is not None:
        row["price_per_gpu_hour"] = row.pop("usd_per_gpu_hour")
    try:
        price = Price.model_validate(row)
        return price.model_copy(update={"gpu": load_gpu(price.gpu).name})
    except ValidationError as error:
        raise _cell_error(where, header, error) from None
    except HardwareError as error:
        raise HardwareError(f"{where}: {error}") from None


def _cell_error(where: str, header: Sequence[str], error: ValidationError) -> HardwareError:
    """Error for the first wrong cell, with its column."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    name = field if field in header else "usd_per_gpu_hour"
    column = f", column {header.index(name) + 1}" if name in header else ""
    message = "is empty" if first["type"] == "missing" else f"{first['input']!r}: {first['msg']}"
    return HardwareError(f"{where}{column}: field '{name}': {message}")


def providers(prices: Iterable[Price]) -> tuple[str, ...]:
    """Names of the providers, in alphabetical order."""
    return tuple(sorted({price.provider for price in prices}))
