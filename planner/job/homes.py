"""Where weights are stored: which places can be combined, and on which clusters."""

from __future__ import annotations

from hardware.schema import Cluster
from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile


def demand_homes(profile: FrameworkProfile, cluster: Cluster) -> None:
    """Raise UsageError if the second copy of the weights that hpZ keeps is impossible: the weights
    must stay on the GPU, and the number of ranks that share the copy must divide a node or be a
    multiple of it."""
    size, node = int(profile.state.secondary_shards), cluster.gpus_per_node
    if not size:
        return
    if profile.state.weights_home != "gpu":
        raise UsageError(
            "--with hpz beside weights off the GPU: the second copy would be there too, which is "
            "not modelled; leave one of them out  [hpz-divides]"
        )
    if size > 0 and node % size and size % node:
        near = max(number for number in range(1, min(size, node) + 1) if node % number == 0)
        raise UsageError(
            f"zero_hpz_partition_size {size}: the ranks that share the second copy must divide the "
            f"{node} GPUs of a node; give {near} or {node}  [hpz-divides]"
        )
