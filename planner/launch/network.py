"""Environment that a machine wants, whatever the framework: network, allocator, each with why."""

from __future__ import annotations

from collections.abc import Mapping

from planner.launch.contract import Launch

Environment = Mapping[str, tuple[str, str]]
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def machine_environment(launch: Launch) -> Environment:
    """Variables of NCCL by the network between the nodes, and of torch's allocator."""
    cluster = launch.job.cluster
    found: dict[str, tuple[str, str]] = {}
    if launch.nodes > 1 and cluster.fabric.startswith("efa"):
        found["FI_PROVIDER"] = (
            "efa",
            "NCCL's OFI plugin takes EFA, not sockets",
        )
        found["FI_EFA_USE_DEVICE_RDMA"] = ("1", "GPUs send without a copy on the host")
    if cluster.scale_up_domain_gpus > cluster.gpus_per_node and cluster.gpu.vendor == "nvidia":
        found["NCCL_MNNVL_ENABLE"] = ("1", "NVLink joins several nodes: NCCL must use it there too")
    if launch.plan.full_memory is not None and cluster.gpu.vendor == "nvidia":
        found[ALLOCATOR] = (
            "expandable_segments:True",
            "memory is nearly full: segments that grow leave no holes",
        )
    return found
