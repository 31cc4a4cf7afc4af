"""Floating-point formats: exponent and mantissa bits, range, and the scales of block formats."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict

from hardware.files import shipped_toml


class NumberFormat(BaseModel):
    """One format, as `catalog/formats.toml` has it.

    `bits` includes the sign. `largest` is the largest finite number. Formats that scale blocks of
    values have `block` values to a scale of `scale_bits`; elsewhere both are 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    source: str
    block: int = 0
    scale_bits: int = 0
    note: str = ""

    @property
    def bytes_per_value(self) -> float:
        """Bytes of one value with its share of the scale."""
        scale = self.scale_bits / self.block if self.block else 0.0
        return (self.bits + scale) / 8


@cache
def load_formats() -> dict[str, NumberFormat]:
    """The formats by name; the names are those of the catalogue's peak rates."""
    entries = shipped_toml("hardware", "catalog/formats.toml")
    return {name: NumberFormat.model_validate(entry) for name, entry in entries.items()}
