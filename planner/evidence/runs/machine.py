"""The machine of a measured run: GPU, nodes, and the network between them."""

from __future__ import annotations

from functools import cache

from hardware import Cluster, HardwareError, parse_gpus, with_sharp
from hardware.load import gpu_names
from planner.evidence.runs.fabric import Fabric, fabric_of
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow

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
    "RTX4090-24GB": "RTX4090",
}


@cache
def _parse(name: str, count: int, per_node: int, fabric: Fabric | None) -> Cluster:
    cluster = parse_gpus(f"{count}x{name}")
    if fabric is not None:
        cluster = fabric.applied(cluster)
    if not per_node or per_node >= cluster.gpus_per_node:
        return cluster
    # The source states a smaller node: fewer GPUs behind each switch, same links per GPU.
    domain = min(cluster.scale_up_domain_gpus, per_node)
    return cluster.model_copy(update={"gpus_per_node": per_node, "scale_up_domain_gpus": domain})


def _gpu_of(row: MeasuredRow) -> str:
    """Catalogue's name of the row's GPU, at the power that it states where that is a part of its
    own."""
    name = row.text("gpu") or ""
    name = _GPUS.get(name, name)
    limited = f"{name}-{row.integer('power_w')}W"
    return limited if limited in gpu_names() else name


def cluster_of(row: MeasuredRow) -> Cluster:
    """GPUs, nodes and network of a row; UnpredictableRowError where they are not known."""
    name = row.text("gpu") or ""
    count = row.integer("num_gpus")
    if not name:
        raise UnpredictableRowError("gpu is not stated")
    if not count:
        raise UnpredictableRowError("num_gpus is not stated")
    fabric = fabric_of(row)
    try:
        cluster = _parse(_gpu_of(row), count, row.integer("gpus_per_node") or 0, fabric)
    except HardwareError as error:
        raise UnpredictableRowError(f"GPU {name!r} is not in the catalogue") from error
    try:
        return with_sharp(cluster) if fabric is not None and fabric.sharp else cluster
    except HardwareError as error:
        raise UnpredictableRowError(str(error)) from error
