"""What a cluster draws, the racks it fills, and what its owner paid for it, a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hardware import Cluster, Figure, load_economics
from planner.compare.offers import Offer
from planner.compare.settings import Settings

W_PER_MW = 1e6
W_PER_KW = 1e3


@dataclass(frozen=True, slots=True)
class Power:
    """Watts a GPU: `rated` of the node, `drawn` by the facility in training (IT power · PUE).

    `error`: share by which the drawn power may be off. `origin`: what the rated power rests on.
    """

    rated_w: float
    drawn_w: float
    error: float
    origin: Figure


def power_of(cluster: Cluster, settings: Settings) -> Power:
    """Power a GPU of a cluster: rated power of its node, times load, times PUE."""
    rated = load_economics().node_power.get(cluster.gpu.name)
    if rated is None:
        ratio = settings.figure("rated_over_tdp")
        tdp = cluster.gpu.tdp_w
        rated = ratio.model_copy(
            update={
                "value": tdp * ratio.value,
                "unit": "W",
                "note": f"TDP {tdp:g} W x {ratio.value:g}: {ratio.note}",
            }
        )
    drawn = rated.value * settings.value("load") * settings.value("pue")
    return Power(rated.value, drawn, settings.value("load_error"), rated)


def facility_kw(drawn_w: float, num_gpus: int) -> float:
    """Kilowatts that the facility draws for so many GPUs; `drawn_w`: watts a GPU (`Power`)."""
    return drawn_w * num_gpus / W_PER_KW


def racks_of(cluster: Cluster, num_gpus: int, settings: Settings) -> int:
    """Racks for the nodes of so many GPUs: as many nodes each as its power and its height take, at
    least one; a scale-up domain that spans nodes is a rack. Switches and storage are not counted.
    """
    if comes_in(cluster) > 1:
        return ceil(num_gpus / comes_in(cluster))
    height = load_economics().node_height.get(cluster.gpu.name, settings.figure("node_height"))
    node_kw = power_of(cluster, settings).rated_w * cluster.node_gpus / W_PER_KW
    nodes = min(
        settings.value("rack_power") / node_kw, settings.value("rack_height") / height.value
    )
    return ceil(ceil(num_gpus / cluster.node_gpus) / max(1, int(nodes)))


def comes_in(cluster: Cluster) -> int:
    """GPUs that are only sold together: those of a scale-up domain that spans nodes (NVL72)."""
    domain = cluster.scale_up_domain_gpus
    return domain if domain > cluster.node_gpus else 1


@dataclass(frozen=True, slots=True)
class Purchase:
    """US dollars a GPU: `hardware` as it was priced, `around` what that price leaves out."""

    hardware: Figure
    around: Figure


def purchase_of(offer: Offer, cluster: Cluster, settings: Settings) -> Purchase | None:
    """Purchase price of a cluster, a GPU; None if nobody gave one."""
    nothing = Figure(value=0.0, unit="USD", source="", note="part of the purchase price")
    capex_per_gpu = offer.capex_per_gpu
    if capex_per_gpu is not None:
        usd = settings.model_copy(update={"currency": "USD"}).converted(
            capex_per_gpu, offer.currency
        )
        return Purchase(
            Figure(value=usd, unit="USD", source=offer.source, date=offer.date), nothing
        )
    if settings.capex_usd is not None:
        given = Figure(value=settings.capex_usd, unit="USD", source="--capex")
        return Purchase(given, nothing)
    economics = load_economics()
    capex = economics.capex.get(cluster.gpu.name)
    if capex is None:
        return None
    return Purchase(capex.price, economics.around.get(capex.scope, nothing))
