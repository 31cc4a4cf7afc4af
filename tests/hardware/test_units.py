"""Quantities: conversions to SI, shorthand, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from hardware.units import Bandwidth, Count, Quantity


@pytest.mark.parametrize(
    ("value", "unit", "si"),
    [
        (989, "TFLOP/s", 989e12),
        (1.5, "PFLOP/s", 1.5e15),
        (80, "GB", 80e9),
        (80, "GiB", 85_899_345_920),
        (50, "MiB", 52_428_800),
        (126, "MB", 126e6),
        (2, "TiB", 2_199_023_255_552),
        (450, "GB/s", 450e9),
        (3.35, "TB/s", 3.35e12),
        (400, "Gbit/s", 50e9),
        (700, "W", 700),
        (10.2, "kW", 10_200),
        (1830, "MHz", 1.83e9),
        (2.1, "GHz", 2.1e9),
        (132, "1", 132),
    ],
)
def test_conversion_to_si(value: float, unit: str, si: float) -> None:
    assert Quantity(value=value, unit=unit).si == pytest.approx(si, rel=1e-12)


def test_shorthand_of_a_user_file() -> None:
    assert Quantity.model_validate("450 GB/s") == Quantity(value=450, unit="GB/s")
    assert Quantity.model_validate("2TiB").si == 2 * 2**40
    assert Quantity.model_validate(8) == Quantity(value=8, unit="1")
    assert Quantity.model_validate("450 GB/s").source == "user"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("450 GBps", "unit 'GBps' is not one of"),
        ("fast", "'fast' is not a number with a unit"),
        ("1.2.3 GB", "valid number"),
        ({"value": -1, "unit": "GB"}, "greater than or equal to 0"),
        ({"value": float("inf"), "unit": "GB"}, "finite"),
        (True, "Quantity"),
    ],
)
def test_bad_quantities_are_refused(given: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Quantity.model_validate(given)


class _Example(BaseModel):
    rate: Bandwidth = Quantity(value=1, unit="GB/s")
    count: Count = Quantity(value=1, unit="1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": "80 GB"}, "80 GB is not in units of bandwidth; use one of: MB/s, GB/s"),
        ({"rate": 400}, "400 is not in units of bandwidth"),
        ({"rate": "0 GB/s"}, "not positive"),
        ({"count": 7.5}, "7.5 is not a whole number"),
        ({"count": 0}, "not positive"),
    ],
)
def test_a_field_takes_only_its_own_dimension(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _Example.model_validate(fields)
