"""Valid ranges of numbers that users supply. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hardware.files import shipped_toml

# Above any price per GPU-hour or per GPU of a cluster, in any currency.
LARGEST_PRICE = 1e9

_TABLES = shipped_toml("hardware", "catalog/ranges.toml")
FIGURE_RANGES: Mapping[str, tuple[float, float]] = _TABLES["between"]
FIGURES_ABOVE_LEAST: Sequence[str] = _TABLES["above"]["names"]
