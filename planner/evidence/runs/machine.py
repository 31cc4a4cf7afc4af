"""The machine of a measured run: GPU, nodes, and the network between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hardware.errors import HardwareError
from hardware.load import cluster_names, gpu_names, load_cluster_shape, load_gpu, parse_gpus
from hardware.schema import Cluster
from hardware.sharp import with_sharp
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named

_GBIT = 1e9 / 8.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network of a run. `kind`: a name or alias in `hardware/efficiency/collectives.toml`;
    `node_bytes_per_s`: bytes/s per node and direction; `nics`: NICs per node. Each is None if it is
    as on the GPU's default nodes. `sharp`: whether the switches reduce."""

    kind: str | None
    node_bytes_per_s: float | None = None
    nics: int | None = None
    sharp: bool = False

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster with this network."""
        changes: dict[str, object] = {}
        if self.kind is not None:
            changes["fabric"] = self.kind
        if self.node_bytes_per_s is not None:
            # A partial node keeps its share of a complete node's NICs.
            share = self.node_bytes_per_s / cluster.node_gpus
            changes["scale_out_bytes_per_s_per_gpu_per_direction"] = share
            nics = max(1, self.nics or cluster.nics_per_node)
            changes["nics_per_node"] = nics
            changes["nic_bytes_per_s"] = self.node_bytes_per_s / nics
        return cluster.model_copy(update=changes)


_GIGABIT = re.compile(r"\s*(Gb/s|Gbit/s|GbE|GBE|Gbits?|Gb|G)\b")

# Gbit/s of a node: NICs times the rate of one, or the whole.
_RATES = (
    r"(?P<nics>\d+)\s*x\s*(?P<rate>\d+)\s*gbps",
    r"(?P<rate>\d+)\s*gbps\s*/\s*node",
    r"inter-node\s+(?P<rate>\d+)\s*gbps",
)


def fabric_of(row: MeasuredRow) -> Fabric | None:
    """Parse the network in the column `fabric` (`roce 8x400Gbps`; the case of the b tells bits from
    bytes). None: that of the GPU's default nodes.

    UnpredictableRowError for a cell that does not name a network.
    """
    cell = row.text("fabric")
    if cell is None:
        return None
    text = re.sub(_GIGABIT, "gbps", cell)
    kind = named("fabric", cell.lower())
    found = next((match for rate in _RATES if (match := re.search(rate, text.lower()))), None)
    # A rate that may be a NIC's or a node's, or one in bytes.
    unread = found is None and re.search(r"\d\s*(gbps|GB)", text) is not None
    sharp = re.search(r"\bsharp(v\d)?\b", cell, re.I) is not None
    if sharp and kind is None:
        kind = "infiniband"
    if unread or (kind is None and found is None):
        raise UnpredictableRowError(
            f"fabric {cell!r} names no network; write it as 'roce 8x400Gbps', '400Gbps/node' or "
            "'infiniband 8x400Gbps sharp'"
        )
    if found is None:
        return Fabric(kind, sharp=sharp)
    nics = found.groupdict().get("nics")
    count = int(nics) if nics else None
    if count == 0 or float(found["rate"]) == 0.0:
        raise UnpredictableRowError(f"fabric {cell!r} has no rate; leave the column empty")
    return Fabric(kind, float(found["rate"]) * (count or 1) * _GBIT, count, sharp)


_GPUS = {
    "A100": "A100-SXM4-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-PCIe": "A100-PCIe-80GB",
    "V100-32GB": "V100-SXM2-32GB",
    "V100-16GB": "V100-SXM2-16GB",
    "H100-80GB": "H100-SXM5-80GB",
    "H100-94/96GB-HBM2e": "H100-96GB-HBM2e-500W",
    "B200-180GB": "B200-SXM-180GB",
    "B200-SXM": "B200-SXM-180GB",
    "GB200-186GB": "GB200",
    "GB200": "GB200",
    "H800-80GB": "H800",
    "GB10-DGX-Spark-128GB": "GB10-128GB",
    "RTX4090-24GB": "RTX4090",
    "RTX5090-32GB": "RTX5090",
}


@cache
def _nodes(gpu: str, kind: str | None) -> str:
    """The node shape with this GPU and this provider's network, if there is exactly one; otherwise
    the GPU itself, which means its default nodes."""
    if kind not in ("efa", "efa-6400", "tcpx", "tcpxo"):
        return gpu
    wanted = load_gpu(gpu).name
    shapes = [
        name
        for name in cluster_names()
        if (shape := load_cluster_shape(name)).fabric == kind and load_gpu(shape.gpu).name == wanted
    ]
    return shapes[0] if len(shapes) == 1 else gpu


@cache
def _parse(name: str, count: int, per_node: int, fabric: Fabric | None) -> Cluster:
    cluster = parse_gpus(f"{count}x{_nodes(name, fabric.kind if fabric else None)}")
    if per_node:
        cluster = _in_nodes_of(cluster, per_node)
    # A stated rate belongs to a node of the stated size.
    return cluster if fabric is None else fabric.applied(cluster)


def _gpu_of(name: str, memory_gb: float | None) -> str:
    """The catalogue's name of a GPU; if it comes in several sizes, the one with the row's
    memory."""
    sized = f"{name}-{memory_gb:g}GB" if memory_gb and not re.search(r"\dGB", name) else name
    if sized in _GPUS:
        return _GPUS[sized]
    try:
        return load_gpu(sized).name
    except HardwareError:
        return _GPUS.get(name, name)


def _in_nodes_of(cluster: Cluster, per_node: int) -> Cluster:
    """The cluster with nodes of the stated size. A smaller node has fewer GPUs behind its switch,
    with the same links each; a larger one (DGX-2's 16 V100) has more if the catalogue's node has
    one switch for all. The 72 GPUs of a GB200 rack are a domain, not a node."""
    domain, usual = cluster.scale_up_domain_gpus, cluster.node_gpus
    if per_node == usual or (domain > usual and per_node > usual):
        return cluster
    whole = domain == usual and per_node > usual
    changes = {
        "gpus_per_node": min(per_node, cluster.num_gpus),
        "scale_up_domain_gpus": per_node if whole else min(domain, per_node),
        "node_gpus": per_node,
    }
    return cluster.model_copy(update=changes)


# GPUs of a node without NVLink: PCIe 4.0 or 5.0 x16 behind a switch, as the catalogue's PCIe nodes.
_OVER_PCIE = r"\bno nvlink\b|^pcie\b"
_BEHIND_PCIE: dict[str, object] = {
    "scale_up_domain_gpus": 1,
    "scale_up_bytes_per_s_per_gpu_per_direction": 31.5e9,
}


def cluster_of(row: MeasuredRow) -> Cluster:
    """GPUs, nodes and network of a row. UnpredictableRowError if they are not known."""
    name = row.text("gpu") or ""
    count = row.integer("num_gpus")
    if not name:
        raise UnpredictableRowError("gpu is not stated")
    if not count:
        raise UnpredictableRowError("num_gpus is not stated")
    over_pcie = re.search(_OVER_PCIE, row.fact("fabric")) is not None
    fabric = None if over_pcie else fabric_of(row)
    known = _gpu_of(name, row.number("gpu_mem_gb"))
    # The variant with the stated power, if the catalogue has it as a separate GPU.
    limited = f"{known}-{row.integer('power_w')}W"
    gpu = limited if limited in gpu_names() else known
    try:
        cluster = _parse(gpu, count, row.integer("gpus_per_node") or 0, fabric)
    except HardwareError as error:
        raise UnpredictableRowError(f"GPU {name!r} is not in the catalogue") from error
    if over_pcie:
        cluster = cluster.model_copy(update=_BEHIND_PCIE)
    try:
        return with_sharp(cluster) if fabric is not None and fabric.sharp else cluster
    except HardwareError as error:
        raise UnpredictableRowError(str(error)) from error
