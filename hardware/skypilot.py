"""Prices from SkyPilot's catalogue files (`catalogs/v8/CLOUD/vms.csv`) on the user's disk.

Columns are found by name, since their order differs from cloud to cloud. A row prices a whole
instance. Google Cloud alone lists the accelerators of an instance and its host in separate rows,
which are summed here within a zone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hardware.errors import HardwareError, invalid_file
from hardware.files import csv_rows, read_text, shipped_toml
from hardware.load import load_gpu
from hardware.prices import Price, PriceKind

_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
_PRICE_COLUMNS: tuple[tuple[PriceKind, str], ...] = (("on_demand", "Price"), ("spot", "SpotPrice"))
_GCP_LARGEST_A100 = (16, "a2-megagpu-16g")

Row = Mapping[str, str]


@dataclass(frozen=True)
class SkypilotPrices:
    """Prices read, the cheapest region of each instance; `skipped`: accelerators without a GPU
    in the catalogue or without a price, and how many rows they had."""

    prices: tuple[Price, ...]
    skipped: Mapping[str, int]


def load_skypilot(path: Path) -> SkypilotPrices:
    """Prices of a `vms.csv`, of a cloud's folder or of a folder of clouds.

    The provider is the name of the folder that holds the file. HardwareError names file, line and
    column at fault.
    """
    files = [path] if path.is_file() else sorted((*path.glob("vms.csv"), *path.glob("*/vms.csv")))
    if not files:
        raise HardwareError(
            f"{path}: no SkyPilot catalogue there; give a vms.csv, the folder of a cloud, or "
            "catalogs/v8"
        )
    prices: list[Price] = []
    skipped: dict[str, int] = {}
    for file in files:
        prices += _of_file(file, skipped)
    return SkypilotPrices(tuple(prices), skipped)


def _of_file(path: Path, skipped: dict[str, int]) -> list[Price]:
    cloud = path.resolve().parent.name
    lines = csv_rows(read_text(path), str(path))
    header = next(lines, (1, []))[1]
    _check_header(path, header)
    rows = [
        (line, dict(zip_longest(header, cells[: len(header)], fillvalue="")))
        for line, cells in lines
    ]
    best: dict[tuple[str, str, PriceKind], Price] = {}
    for price in _prices(path, cloud, rows, skipped):
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


def _prices(
    path: Path, cloud: str, rows: list[tuple[int, dict[str, str]]], skipped: dict[str, int]
) -> Iterator[Price]:
    hosts = _hosts(path, rows) if cloud == "gcp" else {}
    for line, row in rows:
        accelerator = row["AcceleratorName"]
        if not accelerator:
            continue
        gpu = _gpu(cloud, accelerator)
        found = list(_of_row(path, line, row, hosts, cloud == "gcp")) if gpu else []
        if gpu is None or not found:
            skipped[accelerator] = skipped.get(accelerator, 0) + 1
            continue
        count = _number(path, line, row, "AcceleratorCount")
        if count is None or count < 1 or count != int(count):
            skipped[accelerator] = skipped.get(accelerator, 0) + 1
            continue
        for kind, amount, instance in found:
            try:
                yield Price(
                    gpu=gpu,
                    provider=cloud,
                    kind=kind,
                    price_per_gpu_hour=amount / count,
                    source=str(path),
                    instance=instance,
                    instance_gpus=int(count),
                    note=row["Region"],
                )
            except ValidationError as error:
                raise invalid_file(f"{path}, line {line}", error) from None


def _of_row(
    path: Path,
    line: int,
    row: Row,
    hosts: Mapping[tuple[str, str, str], float],
    is_gcp: bool,
) -> Iterator[tuple[PriceKind, float, str]]:
    """(kind, price of the whole instance, instance) of a row; none where a price is missing."""
    separate = is_gcp and not row["InstanceType"]
    instance = _gcp_host(path, line, row) if separate else row["InstanceType"]
    for kind, column in _PRICE_COLUMNS:
        amount = _number(path, line, row, column)
        if separate and amount is not None:
            host = hosts.get((instance, _place(row), column))
            amount = None if host is None else amount + host
        if amount is not None and amount > 0.0:
            yield kind, amount, instance


def _hosts(path: Path, rows: list[tuple[int, dict[str, str]]]) -> dict[tuple[str, str, str], float]:
    """(instance, place, price column) -> price of a host without accelerators."""
    found: dict[tuple[str, str, str], float] = {}
    for line, row in rows:
        if not row["InstanceType"] or row["AcceleratorName"]:
            continue
        for _, column in _PRICE_COLUMNS:
            amount = _number(path, line, row, column)
            if amount is not None:
                found[row["InstanceType"], _place(row), column] = amount
    return found


def _gcp_host(path: Path, line: int, row: Row) -> str:
    name = row["AcceleratorName"]
    count = int(_number(path, line, row, "AcceleratorCount") or 0)
    if name == "A100" and count == _GCP_LARGEST_A100[0]:
        return _GCP_LARGEST_A100[1]
    return str(_tables()["gcp_hosts"].get(name, "")).format(count)


def _place(row: Row) -> str:
    return row.get("AvailabilityZone") or row["Region"]


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


def _number(path: Path, line: int, row: Row, column: str) -> float | None:
    text = row.get(column) or ""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        place = list(row).index(column) + 1
        raise HardwareError(
            f"{path}, line {line}, column {place}: {column} {text!r} is not a number"
        )
    return number
