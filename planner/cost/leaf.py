"""Groups that stay below a leaf switch of an oversubscribed network.

With 2:1 oversubscription the spine carries half of the traffic that the nodes could send; traffic
that stays below one leaf switch keeps its full rate. On a rail-optimised fabric the NICs of one
rank of many nodes share a leaf, and traffic to another rail takes NVLink first (PXN, NCCL 2.12), so
that many nodes are neighbours; without rails a leaf serves all NICs of few nodes. NVIDIA, Doubling
all2all Performance with NVIDIA Collective Communication Library 2.12 (technical blog, 2022).

Ignored: congestion, uneven routes, how jobs are placed below the leaves (assumed: in order).
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.inputs import LinkInputs
from planner.cost.placement import touched_domains


@jit
def stays_below_leaf(size: float, stride: float, links: LinkInputs) -> bool:
    """Whether every group of `size` ranks that are `stride` apart is below one leaf switch."""
    if links.leaf_gpus <= 0.0:
        return False
    leaf = int(links.leaf_gpus)
    return touched_domains(int(size), int(max(1.0, stride)), leaf, int(links.job_gpus)) == 1


@jit
def group_links(size: float, stride: float, network: Rows) -> Row:
    """The links that a group of `size` ranks, `stride` apart, has in an oversubscribed network.

    `network`: the links through the spine, and those below one leaf
    (`planner.predict.links.network`).
    """
    links = network[0]
    if links.oversubscription > 1.0 and stays_below_leaf(size, stride, links):
        return network[1]
    return links
