"""Hardware a little better than the catalogue's: one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hardware.schema import Cluster
from hardware.sharp import why_not, with_sharp
from planner.job.job import Job
from planner.predict.altered_model import Factors
from planner.predict.link_account import LATENCIES, RATES_OUT, RATES_UP, scale_up_name
from planner.search.what_if_result import ChangeKind

GIB = 2**30
MORE_HBM_BYTES = 8 * GIB
FASTER_LINKS = 2.0
FASTER_CHIP = 1.1
# Numbers of the cost core that are multiplied together: every product gains.
_ARITHMETIC = ("matmul_flop_per_s", "matmul16_flop_per_s")
_HBM = ("hbm_bytes_per_s",)


@dataclass(frozen=True)
class JobChange:
    """One change: the job after it, or `factors` on rates of the cost core; `more_bytes`: of each
    GPU's memory; without `keeps_plan` the plan cannot stay as it is."""

    kind: ChangeKind
    name: str
    text: str
    job: Job
    more_bytes: float = 0.0
    factors: Factors = field(default_factory=dict)
    keeps_plan: bool = True


def hardware_changes(job: Job) -> Iterator[JobChange]:
    """Memory, links and arithmetic; what a job does not use is left out."""

    def change(name: str, text: str, fields: tuple[str, ...], factor: float) -> JobChange:
        return JobChange("hardware", name, text, job, factors=dict.fromkeys(fields, factor))

    cluster = job.cluster
    yield JobChange("hardware", "hbm", "+8 GiB HBM", more_hbm(job, MORE_HBM_BYTES), MORE_HBM_BYTES)
    if cluster.num_gpus > cluster.scale_up_domain_gpus and cluster.nics_per_node:
        yield change("network", "2× inter-node bandwidth", RATES_OUT, FASTER_LINKS)
        groups = job.framework.parallelism.sharp_groups
        if groups and not cluster.sharp and not why_not(cluster) and not job.pool:
            reducing = job.on_clusters(with_sharp)
            yield JobChange("hardware", "sharp", "switches that reduce (--sharp)", reducing)
    if cluster.num_gpus > 1:
        yield change("latency", "half the link latency", LATENCIES, 1.0 / FASTER_LINKS)
        yield change("scale-up", f"2× {scale_up_name(cluster)} bandwidth", RATES_UP, FASTER_LINKS)
    yield change("compute", "+10 % sustained FLOP/s", _ARITHMETIC, FASTER_CHIP)
    yield change("hbm-rate", "+10 % HBM bandwidth", _HBM, FASTER_CHIP)


def more_hbm(job: Job, size_bytes: float) -> Job:
    """The job on GPUs with more memory and nothing else changed."""

    def larger(cluster: Cluster) -> Cluster:
        gpu = cluster.gpu
        sizes = {
            name: getattr(gpu, name) + size_bytes for name in ("hbm_bytes", "hbm_usable_bytes")
        }
        return cluster.model_copy(update={"gpu": gpu.model_copy(update=sizes)})

    return job.on_clusters(larger)
