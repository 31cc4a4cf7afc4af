"""Which link or resource a plan's time goes to."""

from __future__ import annotations

from hardware import Cluster
from hardware.schema import FABRIC_TITLES
from planner.compare.results import Share
from planner.predict.plan import Plan


def time_shares(plan: Plan, cluster: Cluster) -> tuple[Share, ...]:
    """Where the step's time goes, by resource, the largest first; the shares add up to one.

    A collective belongs to the scale-up link if its group lies within a domain, else to the
    network; groups are placed in the order tp, cp, ep, dp, pp.
    """
    times, degrees = plan.time, plan.degrees
    total = times.total_s
    inner, dense = degrees.tp * degrees.cp, degrees.tp * degrees.cp * degrees.dp
    entries = [
        ("GPU", "", times.compute_s),
        ("HBM capacity", "recompute", times.recompute_s),
        (_link(cluster, degrees.tp), "TP", times.tp_s),
        (_link(cluster, inner), "CP", times.cp_s),
        (_link(cluster, degrees.etp * degrees.ep), "EP", times.ep_s),
        (_link(cluster, dense), "ZeRO-3", times.fsdp_s),
        (_link(cluster, dense), "DP", times.dp_s),
        (_link(cluster, degrees.gpus), "PP", times.pp_s),
        ("pipeline bubble", "", times.bubble_s),
        ("HBM", "optimizer", times.optimizer_s),
        ("host", "", times.host_s),
    ]
    shares = [
        Share(
            resource=name,
            traffic=traffic,
            share=time / total,
            text=f"{name}{f' ({traffic})' if traffic else ''} {time / total * 100:.0f} %",
        )
        for name, traffic, time in entries
        if time
    ]
    return tuple(sorted(shares, key=lambda share: -share.share))


def _link(cluster: Cluster, group: int) -> str:
    """The link that a group of consecutive ranks meets at its widest."""
    if group <= cluster.scale_up_domain_gpus:
        return "NVLink" if cluster.gpu.vendor == "nvidia" else "xGMI"
    if group <= cluster.gpus_per_node:
        return "PCIe"
    return FABRIC_TITLES.get(cluster.fabric, cluster.fabric)
