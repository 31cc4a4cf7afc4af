"""Facts about machines: GPUs, node shapes and prices, each number with unit and source.

This package knows nothing of models or plans. `hardware.link_curves` and
`hardware.efficiency` hold what was fitted on measurements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardware.economics import Economics, Figure, load_economics
    from hardware.errors import HardwareError
    from hardware.load import (
        Fact,
        Source,
        cluster_facts,
        cluster_names,
        gpu_facts,
        gpu_names,
        load_cluster_file,
        load_cluster_shape,
        load_gpu,
        load_sources,
        parse_gpus,
    )
    from hardware.prices import PRICE_KINDS, Price, PriceKind, load_prices
    from hardware.records import ClusterShape
    from hardware.schema import Cluster, Gpu
    from hardware.sharp import with_sharp
    from hardware.skypilot import load_skypilot
    from hardware.units import Quantity

# `hardware` is a name that other distributions use too; `planner` checks whose this one is.
__distribution__ = "trainplan"

__all__ = [
    "PRICE_KINDS",
    "Cluster",
    "ClusterShape",
    "Economics",
    "Fact",
    "Figure",
    "Gpu",
    "HardwareError",
    "Price",
    "PriceKind",
    "Quantity",
    "Source",
    "cluster_facts",
    "cluster_names",
    "gpu_facts",
    "gpu_names",
    "load_cluster_file",
    "load_cluster_shape",
    "load_economics",
    "load_gpu",
    "load_prices",
    "load_skypilot",
    "load_sources",
    "parse_gpus",
    "with_sharp",
]

# Imported when first asked for: `planner --help` needs none of it.
_LATER = {
    "hardware.economics": ("Economics", "Figure", "load_economics"),
    "hardware.errors": ("HardwareError",),
    "hardware.load": (
        "Fact", "Source", "cluster_facts", "cluster_names", "gpu_facts", "gpu_names",
        "load_cluster_file", "load_cluster_shape", "load_gpu", "load_sources", "parse_gpus",
    ),
    "hardware.prices": ("PRICE_KINDS", "Price", "PriceKind", "load_prices"),
    "hardware.records": ("ClusterShape",),
    "hardware.schema": ("Cluster", "Gpu"),
    "hardware.sharp": ("with_sharp",),
    "hardware.skypilot": ("load_skypilot",),
    "hardware.units": ("Quantity",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'hardware' has no attribute {name!r}")
