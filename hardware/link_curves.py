"""Fitted coefficients of collectives, and the choice of coefficients for a cluster.

`efficiency/collectives.toml` holds one table for each kind of link. This module reads the tables
and picks those of a cluster; it computes no times.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hardware.curves import FIGURES, Curve, inherit
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from hardware.settings import Coefficient, Provenance, declared

if TYPE_CHECKING:
    from hardware.schema import Cluster

Positive = Annotated[float, Field(gt=0.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


@declared(*FIGURES, "scale_up")
class ScaleUpCurve(Curve):
    """Links inside a scale-up domain. Shares are relative to the nominal rate per GPU and
    direction.

    `root_gpus`: GPUs below one CPU socket; 0 means no such boundary. `staged`: GPUs without
    peer-to-peer access exchange through host memory. A table with `gpus` applies only to those.
    """

    name: str
    gpus: tuple[str, ...] = ()
    staged: bool = False
    nominal_bytes_per_s: Positive
    root_gpus: Annotated[int, Field(ge=0)] = 0
    if TYPE_CHECKING:
        dispatch_share: Coefficient | None = None
        store_share: Coefficient | None = None
        send_s: Coefficient | None = None
        start_s: Coefficient | None = None
        mesh_share: Coefficient | None = None
        root_bytes_per_s: Coefficient | None = None


@declared(*FIGURES, "scale_out")
class ScaleOutCurve(Curve):
    """Network between scale-up domains. Shares are relative to the nominal NIC rate."""

    name: str
    aliases: tuple[str, ...]
    if TYPE_CHECKING:
        exchange_share: Coefficient | None = None
        pair_share: Coefficient | None = None
        dispatch_share: Coefficient | None = None
        exchange_half_bytes: Coefficient | None = None
        message_s: Coefficient | None = None
        most_nic_bytes_per_s: Coefficient | None = None

    def usable(self, nic_bytes_per_s: float) -> float:
        """Share of a NIC's nominal rate that software can use."""
        if self.most_nic_bytes_per_s is None or nic_bytes_per_s <= 0.0:
            return 1.0
        return min(1.0, self.most_nic_bytes_per_s.value / nic_bytes_per_s)


@declared(*FIGURES, "in_network")
class InNetworkCurve(Curve):
    """Reductions in the switches (SHARP)."""

    name: str


class _AnyLink(Frozen):
    launch_s: Coefficient
    host_share: Coefficient
    straggler_share: Coefficient


class LinkCurves(_AnyLink):
    """The curves that apply to one cluster."""

    scale_up: ScaleUpCurve
    scale_out: ScaleOutCurve
    in_network: InNetworkCurve | None = None

    @property
    def provenance(self) -> Provenance:
        """The weakest provenance among the coefficients of both levels."""
        levels = (self.scale_up, self.scale_out)
        found = {
            value.provenance
            for level in levels
            for _, value in level
            if isinstance(value, Coefficient)
        }
        order: tuple[Provenance, ...] = ("assumed", "extrapolated", "measured")
        return next(kind for kind in order if kind in found)


class CurveTable(_AnyLink):
    """The whole file. `channel_bytes_per_s`: rate that one ring channel uses of a GPU's links
    inside a node."""

    channel_bytes_per_s: Coefficient
    scale_up: dict[str, ScaleUpCurve]
    scale_out: dict[str, ScaleOutCurve]
    in_network: dict[str, InNetworkCurve]


@cache
def load_curve_table() -> CurveTable:
    """All curves of `efficiency/collectives.toml`."""
    raw = shipped_toml("hardware", "efficiency/collectives.toml")
    del raw["about"]
    for level in ("scale_up", "scale_out", "in_network"):
        raw[level] = {name: inherit(name, raw[level]) for name in raw[level]}
    return CurveTable.model_validate(raw)


def _nearest(curves: list[ScaleUpCurve], bytes_per_s: float) -> ScaleUpCurve:
    """The curve whose nominal rate is nearest to `bytes_per_s`, by ratio."""

    def ratio(curve: ScaleUpCurve) -> float:
        nominal = curve.nominal_bytes_per_s
        return max(nominal, bytes_per_s) / max(min(nominal, bytes_per_s), 1.0)

    return min(curves, key=ratio)


def is_pcie_box(cluster: Cluster) -> bool:
    """Whether GPUs of a node communicate over PCIe: the node has several scale-up domains, or
    peer-to-peer access is switched off (`hardware.transport`).

    Nodes whose GPUs are bridged in pairs count as PCIe, which makes the pairs too slow.
    """
    return cluster.scale_up_domain_gpus < cluster.gpus_per_node or not cluster.peer_to_peer


def scale_up_curve(cluster: Cluster) -> ScaleUpCurve:
    """Curve of the links inside a node or rack: by GPU name, else the nearest nominal rate."""
    curves = list(load_curve_table().scale_up.values())
    rate = cluster.scale_up_bytes_per_s_per_gpu_per_direction
    if is_pcie_box(cluster):
        curves = [curve for curve in curves if curve.name.startswith("pcie")]
        rate = cluster.gpu.host_link_bytes_per_s_per_direction
    if not cluster.peer_to_peer:
        return _nearest([curve for curve in curves if curve.staged], rate)
    named = [curve for curve in curves if cluster.gpu.name.startswith(curve.gpus)]
    return named[0] if named else _nearest([one for one in curves if not one.staged], rate)


def scale_out_curve(fabric: str) -> ScaleOutCurve:
    """Curve of a fabric, by any of its names. HardwareError lists the known ones."""
    wanted = fabric.strip().lower().replace("_", "-").replace(" ", "-")
    curves = load_curve_table().scale_out
    for curve in curves.values():
        if wanted == curve.name or wanted in curve.aliases:
            return curve
    known = ", ".join(sorted(curves))
    raise HardwareError(
        f"fabric {fabric!r} has no curve in hardware/efficiency/collectives.toml; "
        f"use one of: {known}"
    )


def load_link_curves(cluster: Cluster) -> LinkCurves:
    """The curves of `cluster`, each with its provenance."""
    table = load_curve_table()
    return LinkCurves(
        scale_up=scale_up_curve(cluster),
        scale_out=scale_out_curve(cluster.fabric),
        launch_s=table.launch_s,
        host_share=table.host_share,
        straggler_share=table.straggler_share,
        in_network=table.in_network[cluster.sharp] if cluster.sharp else None,
    )
