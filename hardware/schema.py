"""Machines as the planner sees them: immutable, in SI units, without sources.

Sources stay in `hardware.records`, whose classes mirror the catalogue's files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hardware.calibration import Calibration
from hardware.errors import HardwareError
from hardware.facts import Architecture, ArchitectureName, architecture_named
from hardware.files import shipped_toml
from hardware.frozen import Named

Vendor = Literal["nvidia", "amd"]
Positive = Annotated[float, Field(gt=0, le=1e30)]
PositiveInt = Annotated[int, Field(gt=0, le=2**40)]
NonNegative = Annotated[float, Field(ge=0, le=1e30)]

FABRICS = shipped_toml("hardware", "catalog/fabrics.toml")
FABRIC_TITLES: Mapping[str, str] = {name: row["title"] for name, row in FABRICS.items()}


class Gpu(Named):
    """One accelerator as torch sees it: one device, one rank (an MI250X counts as two).

    `peak_flop_per_s`: dense datasheet peak by dtype; a missing dtype is not supported. `hbm_bytes`:
    printed capacity. `hbm_usable_bytes`: torch's total_memory; a process loses `context_bytes` of
    it before its first tensor. `scale_up_pair_bytes_per_s_per_direction`: rate between two GPUs of
    a mesh (xGMI, V100); None behind a switch, where a pair can use the whole rate.
    """

    name: str
    vendor: Vendor
    architecture: ArchitectureName
    aliases: tuple[str, ...] = ()
    default_cluster: str = ""
    peak_flop_per_s: Mapping[str, Positive]
    hbm_bytes: Positive
    hbm_usable_bytes: Positive
    hbm_bytes_per_s: Positive
    l2_bytes: Positive
    sm_count: PositiveInt
    boost_clock_hz: Positive
    host_link_bytes_per_s_per_direction: Positive
    scale_up_bytes_per_s_per_gpu_per_direction: Positive
    scale_up_pair_bytes_per_s_per_direction: Positive | None = None
    scale_up_domain_gpus: PositiveInt
    tdp_w: Positive
    context_bytes: NonNegative
    measured_matmul_flop_per_s: Mapping[str, Positive] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _usable_within_printed(self) -> Gpu:
        if self.hbm_usable_bytes > self.hbm_bytes:
            raise ValueError(
                f"hbm_usable is {self.hbm_usable_bytes / 2**30:.2f} GiB, more than hbm "
                f"({self.hbm_bytes / 2**30:.2f} GiB); datasheets often print GiB as GB"
            )
        return self

    def __hash__(self) -> int:
        return hash((self.name, self.hbm_usable_bytes, self.hbm_bytes_per_s))

    @property
    def traits(self) -> Architecture:
        """Properties of the GPU's generation that software depends on."""
        return architecture_named(self.architecture)

    def peak(self, dtype: str) -> float:
        """Dense datasheet peak in FLOP/s. HardwareError lists the dtypes that this GPU has."""
        try:
            return self.peak_flop_per_s[dtype]
        except KeyError:
            known = ", ".join(self.peak_flop_per_s)
            raise HardwareError(
                f"{self.name} has no {dtype} matrix arithmetic; it has: {known}"
            ) from None


class Cluster(Named):
    """A number of GPUs in nodes of one shape.

    A job on fewer GPUs than a node holds (`2xH100`) uses a partial node: `gpus_per_node` is what
    the job sees, `node_gpus` what a complete node holds, and each GPU keeps its share of the
    complete node's NICs. A scale-up domain may be smaller than a node (bridged pairs; PCIe: 1) or
    span nodes (NVL72: nodes of 4, domains of 72).

    `leaf_nodes`: nodes that reach each other without an oversubscribed spine; 0 if unknown.
    `sharp`: generation of InfiniBand switches that reduce for the job (`hardware.sharp`); empty if
    none do. `host_speed`: speed at which one core of the host issues kernels (Python, autograd,
    launches), relative to a DGX A100 (EPYC 7742); `host_launch_speed`: the same for launches from
    compiled code. `calibration`: what its runs taught.

    Settings that NCCL's variables can switch off (`hardware.transport`): `peer_to_peer`, exchange
    between GPUs without host memory; `nvlink_reductions`, reductions in the NVLink switches.
    `protocol_share`: share of the bytes on a link that carries data, after the protocol's overhead.
    """

    name: str
    gpu: Gpu
    num_gpus: PositiveInt
    gpus_per_node: PositiveInt
    node_gpus: PositiveInt
    scale_up_domain_gpus: PositiveInt
    scale_up_bytes_per_s_per_gpu_per_direction: Positive
    nics_per_node: Annotated[int, Field(ge=0, le=1024)]
    nic_bytes_per_s: NonNegative
    scale_out_bytes_per_s_per_gpu_per_direction: NonNegative
    fabric: str
    rail_optimised: bool = True
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0
    leaf_nodes: Annotated[int, Field(ge=0, le=2**20)] = 0
    sharp: str = ""
    host_memory_bytes_per_node: Positive
    gpus_per_host_link: PositiveInt = 1
    host_speed: Positive = 1.0
    host_launch_speed: Positive = 1.0
    calibration: Calibration | None = None
    peer_to_peer: bool = True
    nvlink_reductions: bool = True
    protocol_share: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def num_nodes(self) -> int:
        """Nodes in use. The last one may be partial."""
        return math.ceil(self.num_gpus / self.gpus_per_node)

    def with_gpus(self, num_gpus: int) -> Cluster:
        """The same kind of nodes with another number of GPUs."""
        if num_gpus < 1:
            raise HardwareError(f"{num_gpus} GPUs: a cluster has at least 1")
        self.demand_network(num_gpus)
        return self.model_copy(
            update={"num_gpus": num_gpus, "gpus_per_node": min(self.node_gpus, num_gpus)}
        )

    def with_nodes(self, nodes: int, per_node: int) -> Cluster:
        """The cluster with `nodes` nodes and `per_node` GPUs in each. A domain that spans nodes
        shrinks accordingly; each GPU keeps its share of its node's NICs."""
        domain = self.scale_up_domain_gpus
        if domain > self.gpus_per_node:
            domain = max(1, domain // self.gpus_per_node) * per_node
        elif nodes > 1:
            domain = min(domain, per_node)
        return self.model_copy(
            update={
                "num_gpus": nodes * per_node,
                "gpus_per_node": per_node,
                "scale_up_domain_gpus": domain,
            }
        )

    def connects(self, num_gpus: int) -> bool:
        """Whether this many GPUs reach each other: over a network, or inside one node or rack."""
        inside = max(self.node_gpus, self.scale_up_domain_gpus)
        return self.nics_per_node > 0 or num_gpus <= inside

    def demand_network(self, num_gpus: int) -> None:
        """Raise HardwareError if this many GPUs cannot reach each other."""
        connected = max(self.node_gpus, self.scale_up_domain_gpus)
        if not self.connects(num_gpus):
            raise HardwareError(
                f"{self.name}: there is no network between nodes, and at most {connected:,} of "
                f"{num_gpus:,} GPUs reach each other; state a fabric, nics_per_node and nic_rate, "
                'such as fabric = "ethernet", nics_per_node = 1, nic_rate = "100 Gbit/s"'
            )

    def describe(self) -> str:
        """`8 nodes of 8×H100-SXM5-80GB, NVLink 450 GB/s, 8×400 Gb/s InfiniBand`."""
        nodes = "1 node" if self.num_nodes == 1 else f"{self.num_nodes} nodes"
        last = self.num_gpus % self.gpus_per_node
        partial = f" (the last has {last})" if last else ""
        calibrated = f", calibrated {self.calibration.date}" if self.calibration else ""
        if self.num_gpus == 1:  # a single GPU uses no network and no neighbours
            host = self.gpu.host_link_bytes_per_s_per_direction
            return f"1×{self.gpu.name}, host link {host / 1e9:g} GB/s{calibrated}"
        return (
            f"{nodes} of {self.gpus_per_node}×{self.gpu.name}{partial}, "
            f"{self.scale_up_phrase()}, {self.scale_out_phrase()}{calibrated}"
        )

    def scale_up_phrase(self) -> str:
        """The link between GPUs of a node or rack: `NVLink 450 GB/s`."""
        host_link = f"{self.gpu.host_link_bytes_per_s_per_direction / 1e9:g} GB/s"
        domain = self.scale_up_domain_gpus
        if not self.peer_to_peer:
            return f"host memory over PCIe {host_link}"
        if domain == 1:
            return f"PCIe {host_link}" if self.node_gpus > 1 else f"host link {host_link}"
        link = "NVLink" if self.gpu.vendor == "nvidia" else "xGMI"
        rate = self.scale_up_bytes_per_s_per_gpu_per_direction / 1e9
        scope = "" if domain == self.node_gpus else f" in domains of {domain}"
        return f"{link} {rate:g} GB/s{scope}"

    def scale_out_phrase(self) -> str:
        """The network between nodes: `8×400 Gb/s InfiniBand`."""
        title = FABRIC_TITLES.get(self.fabric, self.fabric)
        if self.nics_per_node == 0:
            return FABRIC_TITLES["none"]
        thinned = "" if self.oversubscription == 1 else f" {self.oversubscription:g}:1"
        reducing = f", SHARP{self.sharp}" if self.sharp else ""
        rate = self.nic_bytes_per_s * 8 / 1e9
        return f"{self.nics_per_node}×{rate:g} Gb/s {title}{thinned}{reducing}"
