"""Hardware a little better than the catalogue's: one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hardware import with_sharp
from hardware.sharp import why_not
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.job.job import Job
from planner.search.trial import AlterGpu, AlterLinks

GIB = 2**30
MORE_HBM_BYTES = 8 * GIB
FASTER_LINKS = 2.0
FASTER_CHIP = 1.1


@dataclass(frozen=True)
class HardwareChange:
    """A change of the job's machines: of the job itself, or of rates in the cost core."""

    name: str
    text: str
    job: Job
    more_bytes: float = 0.0
    alter_gpu: AlterGpu | None = None
    alter_links: AlterLinks | None = None


def hardware_changes(job: Job) -> Iterator[HardwareChange]:
    """Memory, links and arithmetic; what a job does not use is left out."""
    cluster = job.cluster
    yield HardwareChange("hbm", "+8 GiB HBM", more_hbm(job, MORE_HBM_BYTES), MORE_HBM_BYTES)
    if cluster.num_gpus > cluster.scale_up_domain_gpus and cluster.nics_per_node:
        yield HardwareChange("network", "2× inter-node bandwidth", job, alter_links=faster_network)
        groups = job.framework.parallelism.sharp_groups
        if groups and not cluster.sharp and not why_not(cluster):
            reducing = replace(job, cluster=with_sharp(cluster))
            yield HardwareChange("sharp", "switches that reduce (--sharp)", reducing)
    if cluster.num_gpus > 1:
        yield HardwareChange("latency", "half the link latency", job, alter_links=lower_latency)
        link = _link_name(job)
        yield HardwareChange("scale-up", f"2× {link} bandwidth", job, alter_links=faster_scale_up)
    yield HardwareChange("compute", "+10 % sustained FLOP/s", job, alter_gpu=faster_arithmetic)
    yield HardwareChange("hbm-rate", "+10 % HBM bandwidth", job, alter_gpu=faster_hbm)


def _link_name(job: Job) -> str:
    if job.cluster.scale_up_domain_gpus == 1:
        return "PCIe"
    return "NVLink" if job.cluster.gpu.vendor == "nvidia" else "xGMI"


def more_hbm(job: Job, size_bytes: float) -> Job:
    """The job on GPUs with more memory and nothing else changed."""
    gpu = job.cluster.gpu
    larger = gpu.model_copy(
        update={
            "hbm_bytes": gpu.hbm_bytes + size_bytes,
            "hbm_usable_bytes": gpu.hbm_usable_bytes + size_bytes,
        }
    )
    return replace(job, cluster=job.cluster.model_copy(update={"gpu": larger}))


def faster_network(links: LinkInputs) -> LinkInputs:
    """Twice the rate between scale-up domains."""
    return links._replace(
        scale_out_bytes_per_s=FASTER_LINKS * links.scale_out_bytes_per_s,
        scale_out_dispatch_bytes_per_s=FASTER_LINKS * links.scale_out_dispatch_bytes_per_s,
        in_network_bytes_per_s=FASTER_LINKS * links.in_network_bytes_per_s,
    )


def lower_latency(links: LinkInputs) -> LinkInputs:
    """Half the latency of every link."""
    return links._replace(
        scale_up_latency_s=links.scale_up_latency_s / FASTER_LINKS,
        scale_up_start_s=links.scale_up_start_s / FASTER_LINKS,
        scale_out_latency_s=links.scale_out_latency_s / FASTER_LINKS,
        in_network_latency_s=links.in_network_latency_s / FASTER_LINKS,
        in_network_tier_s=links.in_network_tier_s / FASTER_LINKS,
        scale_up_reduction_latency_s=links.scale_up_reduction_latency_s / FASTER_LINKS,
    )


def faster_scale_up(links: LinkInputs) -> LinkInputs:
    """Twice the rate inside a scale-up domain, whichever way it is used."""
    return links._replace(
        scale_up_bytes_per_s=FASTER_LINKS * links.scale_up_bytes_per_s,
        scale_up_mesh_bytes_per_s=FASTER_LINKS * links.scale_up_mesh_bytes_per_s,
        scale_up_exchange_bytes_per_s=FASTER_LINKS * links.scale_up_exchange_bytes_per_s,
        scale_up_pair_bytes_per_s=FASTER_LINKS * links.scale_up_pair_bytes_per_s,
        scale_up_dispatch_bytes_per_s=FASTER_LINKS * links.scale_up_dispatch_bytes_per_s,
        root_bytes_per_s=FASTER_LINKS * links.root_bytes_per_s,
    )


def faster_arithmetic(gpu: GpuInputs) -> GpuInputs:
    """A tenth more of every matrix product's rate."""
    return gpu._replace(
        matmul_flop_per_s=FASTER_CHIP * gpu.matmul_flop_per_s,
        matmul16_flop_per_s=FASTER_CHIP * gpu.matmul16_flop_per_s,
    )


def faster_hbm(gpu: GpuInputs) -> GpuInputs:
    """A tenth more of the memory's rate."""
    return gpu._replace(hbm_bytes_per_s=FASTER_CHIP * gpu.hbm_bytes_per_s)
