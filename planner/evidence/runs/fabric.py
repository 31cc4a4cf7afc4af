"""The network between the nodes of a measured run: stated by the row, or known of its machine."""

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


# Machines that a source names elsewhere than in its rows.
_MACHINES = (
    # "AWS p5.48xlarge": The Ultra-Scale Playbook and nanotron ran on Hugging Face's cluster.
    (r"^hf-ultrascale|^nanotron-old", Fabric("efa", 3200 * _GBIT)),
    # BLOOM's model card: Jean Zay, 8 A100 and four Omni-Path links of 100 Gb/s a node.
    (r"^bloom|^bigscience", Fabric("omni-path", 400 * _GBIT)),
    # Bang et al. 2024 (arXiv 2312.12391), section 5: four HDR adapters a node.
    (r"^vtrain", Fabric("infiniband", 800 * _GBIT)),
    # Biderman et al. 2023 (arXiv 2304.01373): A100-40GB of Stability's cluster at AWS.
    (r"^pythia", Fabric("efa-v1", 400 * _GBIT)),
)

_KINDS = (
    (r"omni-?path|\bopa\b", "omni-path"),
    (r"\broce\b", "roce"),
    (r"infiniband|\bib\b", "infiniband"),
    (r"\befa\b", "efa"),
    (r"\btcpxo\b", "tcpxo"),
    (r"\btcpx\b", "tcpx"),
)

# Kinds that only the column may name: in notes such words say other things.
_OTHER_KINDS = (
    (r"ethernet|spectrum|GbE\b|\btcp\b", "roce"),
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
    """Network of a row: from its column `fabric` (`roce 8x400Gbps`), from its notes, or that of
    the machine that its source is known to have run on. None: the GPU's default nodes.

    UnpredictableRowError for a column that names no network.
    """
    stated = _column(row) or _stated((row.text("notes") or "").lower())
    known = next(
        (fabric for name, fabric in _MACHINES if re.search(name, row.text("source") or "")), None
    )
    if stated is None or known is None:
        return stated or known
    rate = stated.node_bytes_per_s or known.node_bytes_per_s
    return Fabric(stated.kind or known.kind, rate, stated.sharp)


def _column(row: MeasuredRow) -> Fabric | None:
    """Network that the column `fabric` names; bits are told from bytes by the case of their b."""
    cell = row.text("fabric")
    if cell is None:
        return None
    text = re.sub(_GIGABIT, "gbps", cell)
    found = _stated(text.lower()) or Fabric(None)
    kind = next((name for pattern, name in _OTHER_KINDS if re.search(pattern, cell, re.I)), None)
    # A rate of which it is not clear whose it is, a NIC's or a node's, or one in bytes.
    unread = re.search(r"\d\s*(gbps|GB)", text) is not None and found.node_bytes_per_s is None
    sharp = re.search(r"\bsharp(v\d)?\b", cell, re.I) is not None
    if sharp and (found.kind or kind) is None:
        kind = "infiniband"
    if unread or (found.kind or kind or found.node_bytes_per_s) is None:
        raise UnpredictableRowError(
            f"fabric {cell!r} names no network; write it as 'roce 8x400Gbps', '400Gbps/node' or "
            "'infiniband 8x400Gbps sharp'"
        )
    return Fabric(found.kind or kind, found.node_bytes_per_s, sharp)


def _stated(text: str) -> Fabric | None:
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, text)), None)
    found = next((match for pattern in _RATES if (match := re.search(pattern, text))), None)
    rate = None
    if found is not None:
        rate = float(found["rate"]) * float(found.groupdict().get("nics") or 1)
    if kind is None and rate is None:
        return None
    return Fabric(kind, None if rate is None else rate * _GBIT)
