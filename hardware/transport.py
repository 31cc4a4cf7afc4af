"""Effect of a run's environment variables on its links: NCCL's (RCCL reads the same) and
libfabric's.

A variable left over from debugging can send everything over TCP sockets or through host memory, at
a tenth to a hundredth of the rate, and the run gets slower without any error. `TransportSettings`
holds the values of the variables; `transport_changes` says which of them change a cluster and how.

Source: NCCL user guide, "Environment Variables" (docs.nvidia.com/deeplearning/nccl), and NCCL's
transports (src/transport/*.cc, src/graph/paths.cc).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hardware.frozen import Frozen

if TYPE_CHECKING:
    from hardware.schema import Cluster

# Fabrics that NCCL drives through verbs, and those that it reaches through a plugin (libfabric's or
# Google's GPUDirect-TCPX).
_VERBS = ("infiniband", "roce", "omni-path")
_LIBFABRIC = ("efa", "slingshot")
_PLUGIN = (*_LIBFABRIC, "tcpx")
# Assumed rates in bytes/s of the interface that sockets use: a fast port with an IP address (IPoIB,
# RoCE, a cloud's own network), and one named as Ethernet, which is often the management network.
FAST_PORT_BYTES_PER_S = 100e9 / 8
ETHERNET_PORT_BYTES_PER_S = 25e9 / 8
# Share of the wire that NCCL's protocols use for data: 8 of 16 bytes, 120 of 128 (NCCL
# src/device/prims_ll.h and prims_ll128.h, src/graph/tuning.cc).
_PROTOCOLS = {"LL": 0.5, "LL128": 120 / 128}

Protocol = Literal["", "LL", "LL128"]


class TransportSettings(Frozen):
    """Values of the variables as NCCL understands them. The defaults are those of an empty
    environment.

    `interface`: the names in `NCCL_SOCKET_IFNAME`. `nics`: number of NICs that `NCCL_IB_HCA` names;
    0 leaves the choice to NCCL. `network`: value of `NCCL_NET`. `libfabric`: NCCL reaches the NICs
    through libfabric's plugin (EFA, Slingshot). `algorithm`: whether `NCCL_ALGO` still allows
    reductions in the NVLink switches.
    """

    verbs: bool = True
    network: str = ""
    plugin: bool = True
    libfabric: bool = False
    libfabric_tcp: bool = False
    interface: str = ""
    nics: int = 0
    gpu_direct: bool = True
    peer_to_peer: bool = True
    shared_memory: bool = True
    nvlink_reductions: bool = True
    algorithm: bool = True
    protocol: Protocol = ""

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster as the collectives of a run with these settings see it."""
        for change in transport_changes(self, cluster):
            cluster = change.apply(cluster)
        return cluster


@dataclass(frozen=True)
class TransportChange:
    """One effect of variables on a cluster: the variables, the effect in words, and the changed
    cluster."""

    variables: tuple[str, ...]
    words: str
    apply: Callable[[Cluster], Cluster]


# --- reading --------------------------------------------------------------------------------------

# Variables that are modelled here, in display order.
VARIABLES = (
    "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "FI_PROVIDER", "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA", "NCCL_NET_GDR_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO",
    "NCCL_PROTO", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "FI_EFA_SET_CUDA_SYNC_MEMOPS",
)  # fmt: skip
# Variables that only matter on machines with EFA.
_OF_EFA = tuple(name for name in VARIABLES if name.startswith("FI_EFA_"))
_INTEGER = re.compile(r"\s*([+-]?(?:0[xX][0-9a-fA-F]{1,8}|[0-9]{1,18}))")


def _integer(text: str, unset: int) -> int:
    """The integer at the start of a value, as C's strtol reads it; `unset` if there is none."""
    match = _INTEGER.match(text)
    return int(match[1], 16 if "x" in match[1].lower() else 10) if match else unset


def read_transport(values: Mapping[str, str]) -> TransportSettings:
    """The settings that result from an environment's variables."""

    def whole(name: str, unset: int) -> int:
        return _integer(values.get(name, ""), unset)

    def word(name: str) -> str:
        return values.get(name, "").strip()

    levels = {word("NCCL_NET_GDR_LEVEL").upper()}
    algorithms = _choices(word("NCCL_ALGO"))
    providers = set(word("FI_PROVIDER").lower().split(","))
    return TransportSettings(
        verbs=whole("NCCL_IB_DISABLE", 0) == 0,
        network=word("NCCL_NET").lower(),
        plugin=word("NCCL_NET_PLUGIN").lower() != "none",
        libfabric=bool({"efa", "cxi"} & providers) or any(word(name) for name in _OF_EFA),
        libfabric_tcp=bool({"tcp", "sockets"} & providers),
        interface=word("NCCL_SOCKET_IFNAME"),
        nics=_named_nics(word("NCCL_IB_HCA")),
        gpu_direct=whole("NCCL_NET_GDR_DISABLE", 0) == 0
        and not levels & {"LOC", "0"}
        and whole("NCCL_IB_CUDA_SUPPORT", 1) != 0,
        peer_to_peer=whole("NCCL_P2P_DISABLE", 0) == 0
        and word("NCCL_P2P_LEVEL").upper() not in ("LOC", "0"),
        shared_memory=whole("NCCL_SHM_DISABLE", 0) == 0,
        nvlink_reductions=whole("NCCL_NVLS_ENABLE", 2) != 0,
        algorithm=not algorithms or any(name.startswith("NVLS") for name in algorithms),
        protocol=_protocol(word("NCCL_PROTO")),
    )


def _choices(text: str) -> set[str]:
    """Algorithms or protocols that a value allows. Empty if it allows all, or uses a form that is
    not modelled (`^Tree`, lists by collective)."""
    if not text or text.startswith("^") or ":" in text:
        return set()
    return {name.strip().upper() for name in text.split(",")}


def _protocol(text: str) -> Protocol:
    names = _choices(text)
    if not names or "SIMPLE" in names:
        return ""
    return "LL128" if "LL128" in names else "LL" if "LL" in names else ""


def _named_nics(text: str) -> int:
    """Number of NICs that a list names one by one: `mlx5_0,mlx5_1:1`. A prefix (`mlx5`) or an
    exclusion (`^mlx5_2`) gives 0, because the number then depends on the node."""
    if not text or text.startswith("^"):
        return 0
    names = {name.partition(":")[0].strip() for name in text.lstrip("=").split(",")} - {""}
    return len(names) if all(re.search(r"_\w*\d$", name) for name in names) else 0


# --- what it changes ------------------------------------------------------------------------------


def transport_changes(settings: TransportSettings, cluster: Cluster) -> tuple[TransportChange, ...]:
    """The changes that settings make to a cluster. Variables without effect are left out."""
    return tuple(_changes(settings, cluster))


def _changes(settings: TransportSettings, cluster: Cluster) -> Iterator[TransportChange]:
    several = cluster.num_gpus > max(cluster.scale_up_domain_gpus, cluster.gpus_per_node)
    if several and cluster.nics_per_node:
        yield from _between_nodes(settings, cluster)
    if cluster.num_gpus > 1:
        yield from _inside_nodes(settings, cluster)
    if settings.protocol and cluster.num_gpus > 1:
        share = _PROTOCOLS[settings.protocol]
        yield TransportChange(
            ("NCCL_PROTO",),
            f"NCCL_PROTO allows only {settings.protocol}: {share * 100:.0f} % of every link's "
            "bytes are data",
            lambda one: one.model_copy(update={"protocol_share": share}),
        )


def _between_nodes(settings: TransportSettings, cluster: Cluster) -> Iterator[TransportChange]:
    if causes := _sockets(settings, cluster):
        rate, port = _port(settings, cluster)
        named = ("NCCL_SOCKET_IFNAME",) if settings.interface else ()
        yield TransportChange(
            (*causes, *named),
            f"traffic between nodes goes over TCP sockets ({port}) instead of "
            f"{cluster.scale_out_phrase()}",
            lambda one: over_sockets(one, rate),
        )
        return
    if 0 < settings.nics < cluster.nics_per_node and cluster.fabric in _VERBS:
        yield TransportChange(
            ("NCCL_IB_HCA",),
            f"NCCL may use {settings.nics} of the {cluster.nics_per_node} NICs of a node",
            lambda one: with_nics(one, settings.nics),
        )
    if not settings.gpu_direct and cluster.fabric not in ("ethernet", "tcpx", "tcpxo"):
        slower = without_gpu_direct(cluster)
        if _scale_out(slower) < _scale_out(cluster):
            yield TransportChange(
                ("NCCL_NET_GDR_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT"),
                "the NICs cannot read the GPUs' memory (GPUDirect RDMA is off): every byte between "
                "nodes passes through the memory of the host",
                without_gpu_direct,
            )


def _inside_nodes(settings: TransportSettings, cluster: Cluster) -> Iterator[TransportChange]:
    if cluster.gpus_per_node > 1 and not settings.peer_to_peer:
        path = "through the memory of the host"
        if not settings.shared_memory:
            path = "through the network or its loopback (counted as through the host's memory)"
        yield TransportChange(
            ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"),
            f"GPUs of a node exchange data {path} instead of {cluster.scale_up_phrase()}",
            lambda one: one.model_copy(update={"peer_to_peer": False}),
        )
        return
    reduces = settings.nvlink_reductions and settings.algorithm
    if not reduces and cluster.gpu.traits.switches_reduce:
        yield TransportChange(
            ("NCCL_NVLS_ENABLE", "NCCL_ALGO"),
            "the NVLink switches reduce nothing (NVLS is off)",
            lambda one: one.model_copy(update={"nvlink_reductions": False}),
        )


def _sockets(settings: TransportSettings, cluster: Cluster) -> tuple[str, ...]:
    """The variables that make traffic between nodes use TCP sockets; empty if none does."""
    fabric = cluster.fabric
    causes = {
        # NCCL's own verbs carry no traffic if libfabric's plugin does.
        "NCCL_IB_DISABLE": not settings.verbs and fabric in _VERBS and not settings.libfabric,
        "NCCL_NET": settings.network == "socket" and fabric != "ethernet",
        "NCCL_NET_PLUGIN": not settings.plugin and fabric.startswith(_PLUGIN),
        "FI_PROVIDER": settings.libfabric_tcp and fabric.startswith(_LIBFABRIC),
    }
    return tuple(name for name, holds in causes.items() if holds)


def is_loopback(settings: TransportSettings) -> bool:
    """Whether NCCL may use only the loopback interface, which reaches no other node."""
    names = settings.interface.lstrip("=").split(",")
    return not settings.interface.startswith("^") and names == ["lo"]


def _port(settings: TransportSettings, cluster: Cluster) -> tuple[float, str]:
    """Assumed rate of the port that sockets use, in bytes/s per node, and its name."""
    text = settings.interface
    named = [] if text.startswith("^") else [name for name in text.lstrip("=").split(",") if name]
    slow = bool(named) and not any(name.startswith("ib") for name in named)
    slow = slow and cluster.fabric in ("infiniband", "omni-path")
    rate = ETHERNET_PORT_BYTES_PER_S if slow else FAST_PORT_BYTES_PER_S
    count = len(named) if text.startswith("=") and named else 1
    ports = f"{', '.join(named)}, " if named else ""
    what = "one port" if count == 1 else f"{count} ports"
    return rate * count, f"{ports}taken as {what} of {rate * 8 / 1e9:g} Gb/s a node"


# --- clusters -------------------------------------------------------------------------------------

_SCALE_OUT = "scale_out_bytes_per_s_per_gpu_per_direction"


def _scale_out(cluster: Cluster) -> float:
    return cluster.scale_out_bytes_per_s_per_gpu_per_direction


def over_sockets(cluster: Cluster, node_bytes_per_s: float) -> Cluster:
    """The cluster with TCP sockets between its nodes, at `node_bytes_per_s` per node and direction,
    spread over as many fast ports as that takes."""
    ports = max(1, round(node_bytes_per_s / FAST_PORT_BYTES_PER_S))
    return cluster.model_copy(
        update={
            "fabric": "ethernet",
            "nics_per_node": ports,
            "nic_bytes_per_s": node_bytes_per_s / ports,
            _SCALE_OUT: node_bytes_per_s / cluster.node_gpus,
            "oversubscription": 1.0,
            "sharp": "",
        }
    )


def with_nics(cluster: Cluster, nics: int) -> Cluster:
    """The cluster with fewer NICs in use."""
    share = nics / cluster.nics_per_node
    return cluster.model_copy(
        update={"nics_per_node": nics, _SCALE_OUT: _scale_out(cluster) * share}
    )


def without_gpu_direct(cluster: Cluster) -> Cluster:
    """The cluster without GPUDirect RDMA. Data from a GPU goes up its host link and down the NIC's,
    so each direction of a link carries every byte sent and every byte received. GPU and NIC share
    the link below one PCIe switch."""
    link = cluster.gpu.host_link_bytes_per_s_per_direction / cluster.gpus_per_host_link
    return cluster.model_copy(update={_SCALE_OUT: min(_scale_out(cluster), link / 2.0)})
