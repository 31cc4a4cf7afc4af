"""Prices from SkyPilot's catalogue files (`catalogs/v8/CLOUD/vms.csv`) on the user's disk.

Columns are found by name, since their order differs from cloud to cloud. A row prices a whole
instance. Only Google Cloud lists the accelerators of an instance and its host in separate rows,
which are summed here within a zone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from hardware.errors import HardwareError, invalid_file
from hardware.files import csv_rows, read_text, shipped_toml
from hardware.load import load_gpu
from hardware.prices import Price, PriceKind

_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_PRICE_COLUMNS: tuple[tuple[PriceKind, str], ...] = (("on_demand", "Price"), ("spot", "SpotPrice"))
_GCP_LARGEST_A100 = (16, "a2-megagpu-16g")


class _Row(NamedTuple):
    """One row of a cloud's price file."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def number(self, column: str) -> float | None:
        text = self.cells.get(column) or ""
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            place = list(self.cells).index(column) + 1
            raise HardwareError(
                f"{self.path}, line {self.line}, column {place}: {column} {text!r} is not a number"
            )
        return number

    @property
    def place(self) -> str:
        return self.cells.get("AvailabilityZone") or self.cells["Region"]

    def gcp_host(self) -> str:
        """The Google Cloud host type of this row's accelerators."""
        name, count = self.cells["AcceleratorName"], int(self.number("AcceleratorCount") or 0)
        if name == "A100" and count == _GCP_LARGEST_A100[0]:
            return _GCP_LARGEST_A100[1]
        return str(_tables()["gcp_hosts"].get(name, "")).format(count)


@dataclass(frozen=True)
class SkypilotPrices:
    """The prices read, in the cheapest region of each instance. `skipped`: accelerators that are
    not in the catalogue or have no price, with their numbers of rows."""

    prices: tuple[Price, ...]
    skipped: Mapping[str, int]


def load_skypilot(path: Path) -> SkypilotPrices:
    """Prices of a `vms.csv` file, of a cloud's folder or of a folder of clouds.

    The folder that holds the file names the provider. HardwareError names the file, line and
    column.
    """
    files = [path] if path.is_file() else sorted((*path.glob("vms.csv"), *path.glob("*/vms.csv")))
    if not files:
        raise HardwareError(
            f"{path}: no SkyPilot catalogue there; give a vms.csv, the folder of a cloud, or "
            "catalogs/v8"
        )
    prices: list[Price] = []
    skipped = Counter[str]()
    for file in files:
        prices += _of_file(file, skipped)
    return SkypilotPrices(tuple(prices), skipped)


def _of_file(path: Path, skipped: Counter[str]) -> list[Price]:
    cloud = path.resolve().parent.name
    lines = csv_rows(read_text(path), str(path))
    header = next(lines, (1, []))[1]
    _check_header(path, header)
    rows = [
        _Row(path, line, dict(zip_longest(header, cells[: len(header)], fillvalue="")))
        for line, cells in lines
    ]
    best: dict[tuple[str, str, PriceKind], Price] = {}
    for price in _prices(cloud, rows, skipped):
        key = (price.gpu, price.instance, price.kind)
        if key not in best or price.price_per_gpu_hour < best[key].price_per_gpu_hour:
            best[key] = price
    return list(best.values())


def _check_header(path: Path, header: Iterable[str]) -> None:
    names = list(header)
    for needed in _NEEDED:
        if needed not in names:
            raise HardwareError(
                f"{path}, line 1, column {len(names) + 1}: column {needed!r} is missing; a "
                f"SkyPilot catalogue has {', '.join(_NEEDED)}"
            )


def _prices(cloud: str, rows: Sequence[_Row], skipped: Counter[str]) -> Iterator[Price]:
    hosts = _hosts(rows) if cloud == "gcp" else {}
    for row in rows:
        accelerator = row.cells["AcceleratorName"]
        if not accelerator:
            continue
        gpu = _gpu(cloud, accelerator)
        found = list(_of_row(row, hosts, cloud == "gcp")) if gpu else []
        count = row.number("AcceleratorCount") if found else None
        if gpu is None or count is None or count < 1 or count != int(count):
            skipped[accelerator] += 1
            continue
        for kind, amount, instance in found:
            try:
                yield Price(
                    gpu=gpu,
                    provider=cloud,
                    kind=kind,
                    price_per_gpu_hour=amount / count,
                    source=str(row.path),
                    instance=instance,
                    instance_gpus=int(count),
                    note=row.cells["Region"],
                )
            except ValidationError as error:
                raise invalid_file(f"{row.path}, line {row.line}", error) from None


def _of_row(
    row: _Row, hosts: Mapping[tuple[str, str, str], float], is_gcp: bool
) -> Iterator[tuple[PriceKind, float, str]]:
    """Yield (kind, price of the whole instance, instance) for each price of a row."""
    separate = is_gcp and not row.cells["InstanceType"]
    instance = row.gcp_host() if separate else row.cells["InstanceType"]
    for kind, column in _PRICE_COLUMNS:
        amount = row.number(column)
        if separate and amount is not None:
            host = hosts.get((instance, row.place, column))
            amount = None if host is None else amount + host
        if amount is not None and amount > 0.0:
            yield kind, amount, instance


def _hosts(rows: Sequence[_Row]) -> dict[tuple[str, str, str], float]:
    """Prices of hosts without accelerators, by (instance, place, price column)."""
    return {
        (row.cells["InstanceType"], row.place, column): amount
        for row in rows
        if row.cells["InstanceType"] and not row.cells["AcceleratorName"]
        for _, column in _PRICE_COLUMNS
        if (amount := row.number(column)) is not None
    }


@cache
def _tables() -> dict[str, Any]:
    return shipped_toml("hardware", "catalog/skypilot.toml")


def _gpu(cloud: str, accelerator: str) -> str | None:
    names = _tables()["names"] | _tables()["names_of_cloud"].get(cloud, {})
    name = names.get(accelerator, accelerator)
    try:
        return load_gpu(name).name
    except HardwareError:
        return None
