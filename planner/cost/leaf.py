"""Groups that stay below a leaf switch of an oversubscribed network.

With 2:1 oversubscription the spine carries half of what the nodes could send; what stays below one
leaf switch is not thinned. On a rail-optimised fabric the NICs of one rank of many nodes share a
leaf, and what goes to another rail takes NVLink first (PXN, NCCL 2.12), so that many nodes are
neighbours; without rails a leaf serves all NICs of few nodes. NVIDIA, Doubling all2all Performance
with NVIDIA Collective Communication Library 2.12 (technical blog, 2022).

Ignored: congestion, uneven routes, which way jobs are placed below the leaves (assumed: in order).
"""

from __future__ import annotations

from planner.cost._jit import jit
from planner.cost.inputs import LinkInputs
from planner.cost.placement import touched_domains


@jit
def stays_below_leaf(size: float, stride: float, world: float, links: LinkInputs) -> bool:
    """Whether every group of `size` ranks that lie `stride` apart lies below one leaf."""
    if links.leaf_gpus <= 0.0:
        return False
    leaf = int(links.leaf_gpus)
    return touched_domains(int(size), int(max(1.0, stride)), leaf, int(world)) == 1


@jit
def below_leaf(links: LinkInputs) -> LinkInputs:
    """The links with every NIC's full rate. (Compiled code has no `_replace`.)"""
    return LinkInputs(
        links.scale_up_domain,
        links.gpus_per_node,
        links.scale_up_bytes_per_s,
        links.scale_up_latency_s,
        links.scale_up_half_bytes,
        links.scale_out_bytes_per_s * links.oversubscription,
        links.scale_out_latency_s,
        links.scale_out_half_bytes,
        links.scale_up_reduction_gain,
        links.host_bytes_per_s,
        links.collective_launch_s,
        links.scale_up_reduction_latency_s,
        links.scale_up_start_s,
        links.scale_up_mesh_bytes_per_s,
        links.scale_up_exchange_bytes_per_s,
        links.scale_up_pair_bytes_per_s,
        links.root_gpus,
        links.root_bytes_per_s,
        links.scale_out_pair_bytes_per_s * links.oversubscription,
        links.straggler_share,
        links.oversubscription,
        links.leaf_gpus,
        links.in_network_bytes_per_s,
        links.in_network_latency_s,
        links.in_network_tier_s,
        links.in_network_leaf_ports,
        links.in_network_groups,
        links.in_network_gathers,
    )


@jit
def group_links(size: float, stride: float, world: float, links: LinkInputs) -> LinkInputs:
    """What a group of `size` ranks that lie `stride` apart meets of an oversubscribed network."""
    if links.oversubscription > 1.0 and stays_below_leaf(size, stride, world, links):
        return below_leaf(links)
    return links
