"""From a cluster of the catalogue to the link inputs of the compiled core."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.link_curves import (
    InNetworkCurve,
    LinkCurves,
    is_pcie_box,
    load_curve_table,
    load_link_curves,
)
from hardware.schema import Cluster
from hardware.settings import Coefficient
from planner.cost._jit import record
from planner.cost.inputs import LinkInputs, as_declared

# Rate of a network that does not exist: transfers never end.
_NO_LINK = sys.float_info.min


def _rate(nominal_bytes_per_s: float, share: Coefficient | None) -> float:
    """A nominal rate times a share of it, bytes/s; infinite if there is no share or if the nominal
    rate is zero (no such link)."""
    return nominal_bytes_per_s * share.value or math.inf if share else math.inf


def _value(coefficient: Coefficient | None, unset: float) -> float:
    return unset if coefficient is None else coefficient.value


def assemble(
    curves: LinkCurves,
    *,
    job_gpus: int,
    domain_gpus: int,
    scale_up_bytes_per_s: float,
    scale_out_bytes_per_s: float,
    host_bytes_per_s: float,
    pair_bytes_per_s: float | None = None,
    nic_bytes_per_s: float | None = None,
    nic_per_gpu: bool = True,
    nic_sharers: float = 1.0,
    leaf_gpus: int = 0,
    stores: bool = False,
) -> LinkInputs:
    """Link inputs from curves and *nominal* rates per GPU and direction, bytes/s.

    `pair_bytes_per_s`: the link between two GPUs of a full mesh; `nic_bytes_per_s`: rate up to the
    leaf switch, if the network beyond it is oversubscribed; `leaf_gpus`: GPUs below one leaf switch
    (0: unknown); `nic_per_gpu`: a node has at least as many NICs as GPUs; `nic_sharers`: GPUs that
    share a NIC; `stores`: tokens reach experts by loads and stores, as in DeepEP.
    """
    up, out = curves.scale_up, curves.scale_out
    nominal = scale_out_bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s
    root = up.root_bytes_per_s
    pair = out.pair_share or out.share
    stored = up.store_share if stores else None
    # Infinite if GPUs are connected by a switch.
    mesh = math.inf
    if pair_bytes_per_s is not None and up.mesh_share is not None:
        mesh = pair_bytes_per_s * up.mesh_share.value
    links = as_declared(
        LinkInputs(
            job_gpus=float(job_gpus),
            scale_up_domain=float(domain_gpus),
            scale_up_bytes_per_s=scale_up_bytes_per_s * up.share.value,
            scale_up_latency_s=up.latency_s.value,
            scale_up_half_bytes=up.half_bytes.value,
            scale_out_bytes_per_s=scale_out_bytes_per_s * out.share.value or _NO_LINK,
            scale_out_latency_s=out.latency_s.value,
            scale_out_half_bytes=out.half_bytes.value,
            scale_up_reduction_gain=up.reduction_gain.value,
            host_bytes_per_s=host_bytes_per_s * curves.host_share.value,
            collective_launch_s=curves.launch_s.value,
            scale_up_reduction_latency_s=up.reduction_latency_s.value,
            scale_up_start_s=up.start_s.value if up.start_s else 0.0,
            scale_up_mesh_bytes_per_s=mesh,
            scale_up_exchange_bytes_per_s=scale_up_bytes_per_s * up.exchange_share.value,
            scale_up_pair_bytes_per_s=scale_up_bytes_per_s * up.pair_share.value,
            scale_up_dispatch_bytes_per_s=_rate(scale_up_bytes_per_s, stored or up.dispatch_share),
            scale_out_exchange_bytes_per_s=_rate(scale_out_bytes_per_s, out.exchange_share),
            scale_out_exchange_half_bytes=_value(out.exchange_half_bytes, 0.0),
            scale_out_dispatch_bytes_per_s=_rate(scale_out_bytes_per_s, out.dispatch_share),
            scale_out_message_s=_value(out.message_s, 0.0),
            scale_up_send_s=_value(up.send_s if stores else None, 0.0),
            root_gpus=float(up.root_gpus),
            root_bytes_per_s=math.inf if root is None else root.value,
            scale_out_pair_bytes_per_s=scale_out_bytes_per_s * pair.value or _NO_LINK,
            straggler_share=curves.straggler_share.value,
            oversubscription=nominal / scale_out_bytes_per_s if scale_out_bytes_per_s else 1.0,
            leaf_gpus=float(leaf_gpus),
            nic_sharers=nic_sharers,
        )
    )
    if curves.in_network is None:
        return links
    return with_in_network(links, curves.in_network, nominal, nic_per_gpu)


def with_in_network(
    links: LinkInputs, curve: InNetworkCurve, nominal_bytes_per_s: float, nic_per_gpu: bool
) -> LinkInputs:
    """The links with reductions in the switches, for `nominal_bytes_per_s` of NIC rate per GPU.
    Gathers and scatters need a NIC for each GPU (NCCL 2.21, tuning.cc)."""
    return links._replace(
        in_network_bytes_per_s=nominal_bytes_per_s * curve.share.value,
        in_network_latency_s=curve.latency_s.value,
        in_network_tier_s=curve.tier_s.value,
        in_network_leaf_ports=float(curve.leaf_ports.value),
        in_network_groups=float(curve.groups.value),
        in_network_gathers=1.0 if nic_per_gpu else 0.0,
    )


def network(links: LinkInputs) -> NDArray[Any]:
    """The links in the form that the core reads: [2] records, of groups that cross the spine and of
    groups below one leaf switch, which get every NIC's full rate."""
    kinds = ("", "pair_", "exchange_", "dispatch_")
    rates = [f"scale_out_{kind}bytes_per_s" for kind in kinds]
    full = links._replace(**{name: getattr(links, name) * links.oversubscription for name in rates})
    both: NDArray[Any] = np.array([record(links)[()], record(full)[()]], record(links).dtype)
    return both


def placed_domain_gpus(num_gpus: int, domain_gpus: int, gpus_per_node: int) -> int:
    """Number of GPUs of each scale-up domain that one job can use. If the job fits into one domain,
    this is the size of the domain, even if the job is smaller.

    A job larger than a domain takes whole nodes, equally many in each domain and more than half of
    the domain: 256 GPUs on racks of 72 run as 4 × 64, so that groups of 32 stay inside (schedulers
    call these segments). If no such split exists, the job fills the domains, and the result is the
    size of a domain.
    """
    if num_gpus <= domain_gpus:
        return domain_gpus
    for size in range(domain_gpus, domain_gpus // 2, -1):
        if num_gpus % size == 0 and size % gpus_per_node == 0:
            return size
    return domain_gpus


_MOST_CHANNELS = 24
_LEAST_CHANNELS = 2


def channels(cluster: Cluster) -> int:
    """Number of channels of a communicator (NCCL, RCCL): as many as the links inside a node can
    use."""
    return channels_at(_scale_up_bytes_per_s(cluster))


def channels_at(bytes_per_s: float) -> int:
    """Number of channels that a link of this rate can use."""
    rings = int(bytes_per_s / load_curve_table().channel_bytes_per_s.value)
    return min(_MOST_CHANNELS, max(_LEAST_CHANNELS, rings))


# NCCL 2.29, src/graph/paths.cc: twice as many channels as NVLink links join two GPUs, as a power of
# two and at most 32; two channels for all pairs of a group that leaves its domain.
_MOST_PEER_CHANNELS, FAR_PEER_CHANNELS = 32, 2


def peer_channels(cluster: Cluster) -> int:
    """Number of channels that join each pair of ranks of an all-to-all inside a scale-up domain."""
    most: int = 2 ** (channels(cluster) - 1).bit_length()
    return min(_MOST_PEER_CHANNELS, most)


def job_domain_gpus(cluster: Cluster) -> int:
    """GPUs of each scale-up domain that the job is placed on; a box of PCIe links counts as one."""
    if is_pcie_box(cluster):
        return cluster.gpus_per_node
    return placed_domain_gpus(cluster.num_gpus, cluster.scale_up_domain_gpus, cluster.gpus_per_node)


def _scale_up_bytes_per_s(cluster: Cluster) -> float:
    """Link rate of a GPU inside its node: that of PCIe if no scale-up domain covers the node."""
    if is_pcie_box(cluster):
        return cluster.gpu.host_link_bytes_per_s_per_direction
    return cluster.scale_up_bytes_per_s_per_gpu_per_direction


def link_inputs(cluster: Cluster, *, stores: bool = False) -> LinkInputs:
    """Link inputs of a cluster with its transports (`hardware.transport`); `stores`: see
    `assemble`.

    A node without a scale-up domain over all its GPUs becomes one domain of PCIe links at the GPUs'
    host-link rate. Oversubscription divides each GPU's NIC share: traffic that leaves a domain is
    assumed to cross the spine.
    """
    curves = load_link_curves(cluster)
    usable = curves.scale_out.usable(cluster.nic_bytes_per_s)
    nic = cluster.scale_out_bytes_per_s_per_gpu_per_direction * usable
    host_bytes_per_s = cluster.gpu.host_link_bytes_per_s_per_direction
    links = assemble(
        curves,
        job_gpus=cluster.num_gpus,
        domain_gpus=job_domain_gpus(cluster),
        scale_up_bytes_per_s=_scale_up_bytes_per_s(cluster),
        scale_out_bytes_per_s=nic / cluster.oversubscription,
        # All GPUs copy at the same time.
        host_bytes_per_s=host_bytes_per_s / cluster.gpus_per_host_link,
        pair_bytes_per_s=cluster.gpu.scale_up_pair_bytes_per_s_per_direction,
        nic_bytes_per_s=nic,
        leaf_gpus=cluster.leaf_nodes * cluster.gpus_per_node,
        nic_per_gpu=cluster.nics_per_node >= cluster.node_gpus,
        nic_sharers=max(1.0, cluster.node_gpus / max(1, cluster.nics_per_node)),
        stores=stores,
    )
    return _as_switched(links, cluster)


def _as_switched(links: LinkInputs, cluster: Cluster) -> LinkInputs:
    """The links, changed as NCCL's environment variables of the cluster demand: without reductions
    in NVLink switches, or at the lower rates of a protocol that sends flags with the data.
    Unchanged if neither applies."""
    if not cluster.nvlink_reductions:
        links = links._replace(scale_up_reduction_gain=1.0, scale_up_reduction_latency_s=math.inf)
    if cluster.protocol_share < 1.0:
        rates = {name: getattr(links, name) * cluster.protocol_share for name in _COLLECTIVE_RATES}
        links = links._replace(**rates)
    return links


# Rates of NCCL's collectives; its sends and receives, and expert dispatch, use other protocols.
_COLLECTIVE_RATES = ("scale_up_bytes_per_s", "scale_up_mesh_bytes_per_s", "scale_out_bytes_per_s")
