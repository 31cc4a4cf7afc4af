"""Host memory and NVMe that offloaded weights and states need, and the assumed rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hardware.curves import host_curves
from hardware.schema import Cluster
from planner.job.job import Job
from planner.job.quantities import GIB
from planner.predict.cost_tables import held_classes
from planner.predict.homes import host_weight_bytes, nvme_bytes_per_s, weights_home
from planner.predict.links import link_inputs
from planner.predict.ops.trained import held_parameters
from planner.predict.optimizer_terms import host_bytes_per_parameter, updated_bytes
from planner.predict.plan import Degrees


class HomeBytes(NamedTuple):
    """Memory that the parts of one copy of the model which are off the GPU take: weights and
    optimizer states, in host memory and on NVMe, all ranks together."""

    states_host: float
    states_nvme: float
    weights_host: float
    weights_nvme: float

    @property
    def host(self) -> float:
        """Bytes in host memory."""
        return self.states_host + self.weights_host

    @property
    def nvme(self) -> float:
        """Bytes on NVMe."""
        return self.states_nvme + self.weights_nvme


def home_bytes(job: Job) -> HomeBytes:
    """Bytes off the GPU for one copy of the model, all ranks together."""
    setting, profile = job.optimizer_setting, job.framework
    trained = held_parameters(job).trained
    states = trained * host_bytes_per_parameter(profile, setting)
    nvme = 0.0
    if setting.on_cpu and profile.state.states_home == "nvme":
        nvme = trained * updated_bytes(profile, setting)
    home, weights = weights_home(profile, setting), _weights_off_gpu(job)
    on_host, on_nvme = (weights if home == place else 0.0 for place in ("host", "nvme"))
    return HomeBytes(states, nvme, on_host, on_nvme)


def _weights_off_gpu(job: Job) -> float:
    """Bytes of weights off the GPU; FSDP's trained weights count as states."""
    setting, profile = job.optimizer_setting, job.framework
    held = host_weight_bytes(profile, setting)
    if not held:
        return 0.0
    with_states = profile.state.weights_home == "gpu"
    return sum(
        count * one.gathers * profile.state.weight_bytes
        for one, count in held_classes(job, profile)
        if not (one.states and with_states)
    )


def _in_node(job: Job, degrees: Degrees) -> float:
    """Number of copies of the offloaded weights and states in the memory of one node; below 1 if a
    copy spans several nodes."""
    shard = degrees.shard or degrees.dp * degrees.cp
    copies = degrees.dp * degrees.cp / shard if degrees.zero else degrees.dp * degrees.cp
    return copies * min(1.0, job.cluster.gpus_per_node / degrees.gpus)


def host_share(cluster: Cluster, size_gib: float) -> str:
    """`12 GiB of the 2,048 GiB of a node's memory`."""
    node_gib = cluster.host_memory_bytes_per_node / GIB
    verdict = "MORE than the" if size_gib > node_gib else "of the"
    return f"{size_gib:,.0f} GiB {verdict} {node_gib:,.0f} GiB of a node's memory"


def home_notes(job: Job, degrees: Degrees) -> Iterator[str]:
    """Host memory and NVMe that offloaded states and weights need, and the assumed rates."""
    setting, cluster, sizes = job.optimizer_setting, job.cluster, home_bytes(job)
    copies, state = _in_node(job, degrees) / GIB, job.framework.state
    if job.optimizer.paged:
        yield _paged_note(job, copies)
    if setting.on_cpu:
        hidden = job.framework.optimizer.offload_overlap
        rate = host_curves().cpu_adam_bytes_per_s_per_node.value
        where = host_share(cluster, sizes.states_host * copies)
        if state.states_home == "nvme":
            where = f"{sizes.states_nvme * copies:,.0f} GiB a node on NVMe"
        yield (
            f"offloaded optimizer: {where}; "
            f"CPU-Adam at {rate / 1e9:.0f} GB/s a node (arXiv 2101.06840); "
            f"{hidden * 100:.0f} % of the way down overlaps with backward, the way back is exposed"
        )
    if weights_home(job.framework, setting) != "gpu":
        yield _weights_note(job, sizes, copies)
    if sizes.nvme:
        rate = cluster.gpus_per_node * nvme_bytes_per_s(cluster)
        yield (
            f"NVMe: {sizes.nvme * copies:,.0f} GiB a node, read and written at {rate / 1e9:.0f} "
            "GB/s by all GPUs together (arXiv 2104.07857; assumes one drive per GPU); no measured "
            "run uses it, so the error bars do not cover it"
        )


def _weights_note(job: Job, sizes: HomeBytes, copies: float) -> str:
    """The memory from which each gather of weights fetches, and its rate."""
    rate = link_inputs(job.cluster).host_bytes_per_s / 1e9
    if sizes.weights_nvme:
        where = "on NVMe"
    elif sizes.weights_host:
        where = host_share(job.cluster, sizes.weights_host * copies)
    else:
        where = "with the optimizer's states"
    return (
        f"weights off the GPU: {where}; each gather fetches a rank's shard, at {rate:.0f} GB/s a "
        "GPU over the host's link; a model that is loaded whole before it is split needs more at "
        "the start"
    )


def _paged_note(job: Job, copies: float) -> str:
    """The memory of a paged optimizer's states, and the time that it costs."""
    size = held_parameters(job).trained * job.optimizer.state_bytes * copies
    if not job.optimizer_offload:
        return (
            f"paged optimizer: its states, {size:,.1f} GiB a node, fit the GPUs and stay there; "
            "otherwise the driver would move them to host memory, and the step would take longer"
        )
    rate = link_inputs(job.cluster).host_bytes_per_s / 1e9
    return (
        "paged optimizer: its states do not fit the GPU, so each update brings all of them over "
        f"the link while others leave, at {rate:.0f} GB/s a GPU and direction "
        f"(the driver evicts the least recently used); {host_share(job.cluster, size)}"
    )
