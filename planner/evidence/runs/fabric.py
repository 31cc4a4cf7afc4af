"""The network between the nodes of a measured run, as its row states it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardware import Cluster
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow

_GBIT = 1e9 / 8.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """Kind of network (a name or alias of `hardware/efficiency/collectives.toml`; None: as the
    GPU's default nodes have it) and bytes/s per node and direction (None: likewise); `sharp`: the
    switches reduce."""

    kind: str | None
    node_bytes_per_s: float | None = None
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
            changes["nic_bytes_per_s"] = self.node_bytes_per_s / max(1, cluster.nics_per_node)
        return cluster.model_copy(update=changes)


_KINDS = (
    (r"omni-?path|\bopa\b", "omni-path"),
    (r"\broce\b", "roce"),
    (r"infiniband|\bib\b", "infiniband"),
    (r"\befa-?v1\b", "efa-v1"),
    (r"\befa\b", "efa"),
    (r"\btcpxo\b", "tcpxo"),
    (r"\btcpx\b", "tcpx"),
    (r"ethernet|spectrum|gbe\b|\btcp\b", "roce"),
    (r"slingshot|\bcxi\b", "slingshot"),
)
_GIGABIT = re.compile(r"\s*(Gb/s|Gbit/s|GbE|GBE|Gbits?|Gb|G)\b")

# Gbit/s of a node: NICs times the rate of one, or the whole.
_RATES = (
    r"(?P<nics>\d+)\s*x\s*(?P<rate>\d+)\s*gbps",
    r"(?P<rate>\d+)\s*gbps\s*/\s*node",
    r"inter-node\s+(?P<rate>\d+)\s*gbps",
)


def fabric_of(row: MeasuredRow) -> Fabric | None:
    """Network of a row, from its column `fabric` (`roce 8x400Gbps`; bits are told from bytes by the
    case of their b). None: the GPU's default nodes.

    UnpredictableRowError for a column that names no network.
    """
    cell = row.text("fabric")
    if cell is None:
        return None
    text = re.sub(_GIGABIT, "gbps", cell)
    kind = next((name for pattern, name in _KINDS if re.search(pattern, cell.lower())), None)
    found = next((match for rate in _RATES if (match := re.search(rate, text.lower()))), None)
    # A rate of which it is not clear whose it is, a NIC's or a node's, or one in bytes.
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
        return Fabric(kind, None, sharp)
    return Fabric(
        kind, float(found["rate"]) * float(found.groupdict().get("nics") or 1) * _GBIT, sharp
    )
