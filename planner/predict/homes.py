"""Where weights and optimizer states are kept between uses (their home), and how fast they are
fetched.

A home is the GPU, host memory or the node's NVMe drives: `state.weights_home` and
`state.states_home` of a framework's profile. FSDP's offload moves weights, gradients and states.
"""

from __future__ import annotations

from typing import Literal

from hardware.curves import host_curves
from hardware.schema import Cluster
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.optimizers import OptimizerSetting
from planner.predict.links import link_inputs

Home = Literal["gpu", "host", "nvme"]


def weights_home(profile: FrameworkProfile, setting: OptimizerSetting) -> Home:
    """Home of a rank's shard of the weights."""
    if profile.state.weights_home != "gpu":
        return profile.state.weights_home
    return "host" if setting.on_cpu and profile.optimizer.offload_parameters else "gpu"


def host_weight_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per trained parameter of a weight shard off the GPU; 0 if it is on the GPU.

    FSDP shards the master weights, which the GPU casts after fetching (torch,
    distributed/fsdp/_fully_shard/_fsdp_param.py, `all_gather_inputs`).
    """
    state = profile.state
    if weights_home(profile, setting) == "gpu":
        return 0.0
    if state.weights_home != "gpu":
        return state.weight_bytes
    return state.master_bytes or state.weight_bytes


def nvme_bytes_per_s(cluster: Cluster) -> float:
    """Rate at which one GPU reads or writes NVMe while all GPUs of its node do."""
    curves, gpus = host_curves(), cluster.gpus_per_node
    drives = gpus * curves.nvme_bytes_per_s_per_drive.value
    return float(min(curves.nvme_bytes_per_s_per_node.value, drives) / gpus)


def fetch_bytes_per_s(
    profile: FrameworkProfile, setting: OptimizerSetting, cluster: Cluster
) -> float:
    """Rate at which one GPU fetches its shard: that of the slowest link on the path."""
    host = float(link_inputs(cluster).host_bytes_per_s)
    if weights_home(profile, setting) == "nvme":
        return min(host, nvme_bytes_per_s(cluster))
    return host


def secondary_shards(profile: FrameworkProfile, cluster: Cluster) -> float:
    """Number of ranks that share a second copy of the weights, as the framework's profile states; a
    node's GPUs if it states a negative number; 0: there is no second copy."""
    size = profile.state.secondary_shards
    return float(cluster.gpus_per_node if size < 0 else size)
