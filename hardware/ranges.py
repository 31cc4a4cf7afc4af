"""Between which ends numbers of users lie; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping

# Beyond any price of a GPU for an hour or a GPU's share of a cluster, in any currency.
LARGEST_PRICE = 1e9

# Least and most that a figure can be, in its unit; some must lie above the least.
FIGURE_RANGES: Mapping[str, tuple[float, float]] = {
    "amortisation_years": (0.0, 100.0),
    "interest": (0.0, 1.0),
    "pue": (1.0, 10.0),
    "electricity": (0.0, 1e4),
    "hosting": (0.0, 1e6),
    "load": (0.0, 1.2),
    "utilisation": (0.0, 1.0),
    "gpu_mtbf": (0.0, 1e9),
    "node_mtbf": (0.0, 1e9),
    "repair": (0.0, 1e5),
    "restart": (0.0, 1e9),
    "write_bandwidth": (0.0, 1e6),
    "rack_power": (0.0, 1e4),
}
FIGURES_ABOVE_LEAST = (
    "amortisation_years", "load", "utilisation", "gpu_mtbf", "node_mtbf", "write_bandwidth",
    "rack_power",
)  # fmt: skip
