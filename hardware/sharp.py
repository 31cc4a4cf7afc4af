"""SHARP: reductions in the switches of an InfiniBand network, and which clusters can have them.

An aggregation tree of switches adds up what its leaves send and multicasts the sum (Graham et al.,
SHARP Streaming-Aggregation, ISC 2020, doi 10.1007/978-3-030-50743-5_3). NCCL reaches it through
the CollNet plugin (nccl-rdma-sharp-plugins). Rates and limits of each generation:
`efficiency/collectives.toml`, table `in_network`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hardware.errors import HardwareError, did_you_mean

if TYPE_CHECKING:
    from hardware.schema import Cluster


class Generation(NamedTuple):
    """A generation of switches that reduce large messages, the NIC rate it is made for, and the
    number of ports of one switch at that rate (QM8700, QM9700, Q3400)."""

    name: str
    switches: str
    nic_bytes_per_s: float
    ports: int


# SHARPv1 (EDR switches) only reduces short messages. NVIDIA SHARP 3.9, "Using NVIDIA SHARP with
# NVIDIA NCCL": ConnectX-6 HDR and Quantum HDR switches or above.
GENERATIONS = (
    Generation("v2", "Quantum, HDR", 25e9, 40),
    Generation("v3", "Quantum-2, NDR", 50e9, 64),
    Generation("v4", "Quantum-X800, XDR", 100e9, 144),
)
# Most simultaneous streaming reductions on one switch (NVIDIA HPC-X 2.26, NCCL-RDMA-SHARP plugins).
# NCCL makes one for each NIC, so nodes with more NICs need a leaf switch for each rail.
STREAMS_PER_SWITCH = 2


def generation(name: str) -> Generation:
    """A generation by name. HardwareError lists the known ones."""
    wanted = name.strip().lower().removeprefix("sharp").lstrip("-")
    for one_generation in GENERATIONS:
        if one_generation.name == wanted:
            return one_generation
    known = [generation.name for generation in GENERATIONS]
    listed = ", ".join(f"{generation.name} ({generation.switches})" for generation in GENERATIONS)
    raise HardwareError(f"sharp {name!r} is not one of {listed}.{did_you_mean(name, known)}")


def generation_of(cluster: Cluster) -> Generation | None:
    """The switch generation that matches the cluster's NICs; None if no matching one can reduce."""
    fitting = [
        generation
        for generation in GENERATIONS
        if generation.nic_bytes_per_s <= cluster.nic_bytes_per_s * 1.01
    ]
    return fitting[-1] if fitting and cluster.fabric == "infiniband" else None


def why_not(cluster: Cluster) -> str:
    """Why the cluster's switches cannot reduce, with the fix; empty if they can."""
    if cluster.gpu.vendor != "nvidia":
        return f"{cluster.gpu.name}: NCCL's plugin for SHARP supports only NVIDIA GPUs"
    if cluster.fabric != "infiniband":
        return (
            f"the nodes are connected by {cluster.fabric}; only InfiniBand switches reduce. If "
            'yours do, write fabric = "infiniband" in a --cluster file'
        )
    if cluster.nics_per_node == 0:
        return "the nodes have no network"
    if generation_of(cluster) is None:
        rate = cluster.nic_bytes_per_s * 8 / 1e9
        return f"NICs of {rate:g} Gb/s; SHARP needs NICs and switches of HDR (200 Gb/s) or faster"
    if cluster.nics_per_node > STREAMS_PER_SWITCH and not cluster.rail_optimised:
        return (
            f"{cluster.nics_per_node} NICs per node without rails: a switch has "
            f"{STREAMS_PER_SWITCH} streams of reductions, so each NIC needs a leaf switch of its "
            "rail (rail_optimised = true)"
        )
    return ""


def with_sharp(cluster: Cluster, name: str = "") -> Cluster:
    """The cluster with reductions in its switches, of the named generation or the one that matches
    its NICs. HardwareError if its switches cannot reduce."""
    reason = why_not(cluster)
    if reason:
        raise HardwareError(f"no SHARP: {reason}")
    one_generation = generation(name) if name else generation_of(cluster)
    return cluster.model_copy(update={"sharp": one_generation.name if one_generation else ""})


def leaf_nodes(cluster: Cluster) -> int:
    """Number of nodes of an InfiniBand network whose traffic stays below the spine; 0 if unknown.

    With r:1 oversubscription, r/(r + 1) of a leaf switch's ports lead down. With rails that is also
    the number of nodes; without rails, a node takes one port for each of its NICs.
    """
    one_generation_of = generation_of(cluster)
    if one_generation_of is None or cluster.nics_per_node == 0:
        return 0
    down = int(
        one_generation_of.ports * cluster.oversubscription / (cluster.oversubscription + 1.0)
    )
    return down if cluster.rail_optimised else down // cluster.nics_per_node
