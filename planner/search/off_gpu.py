"""Techniques that save memory by moving data off the GPU, with the options they need beside
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.job.frameworks.techniques import Technique
from planner.job.job import Job
from planner.job.optimizers import load_optimizer
from planner.predict.home_notes import home_bytes

# bitsandbytes optimizers with paged states, the most similar to AdamW first.
PAGED_OPTIMIZERS = ("paged-adamw", "paged-adamw-8bit")
# The options to type, and the fields of a request.
Asked = tuple[str, Mapping[str, object]]


def asked_with(technique: Technique, job: Job, use: tuple[str, ...]) -> Iterator[Asked]:
    """A technique alone, and with further optimizer offload beside it. `use`: techniques that the
    user asked for."""
    named, used = f"--with {technique.name}", (*use, technique.name)
    if not technique.moves_states or job.optimizer_on_cpu == 1.0:
        yield named, {"use": used}
    if technique.moves_weights or technique.moves_states:
        # The CPU updates the parameters on the host or on a drive.
        yield f"{named} --optimizer-offload 1", {"use": used, "optimizer_offload": 1.0}
    if technique.frees_gradients and job.framework.optimizer.paged and not job.optimizer.paged:
        # Besides the weights only states are left, and they may leave too.
        last = load_optimizer(PAGED_OPTIMIZERS[-1]).name
        yield f"{named} --optimizer {last}", {"use": used, "optimizer": last}


def asked_on_drives(techniques: Sequence[Technique], use: tuple[str, ...]) -> Iterator[Asked]:
    """Weights and states on NVMe, if a framework supports both."""
    weights = [one for one in techniques if one.moves_weights and "nvme" in one.name]
    states = [one for one in techniques if one.moves_states]
    for one, other in zip(weights, states, strict=False):
        used = (*use, one.name, other.name)
        text = f"--with {one.name} --with {other.name} --optimizer-offload 1"
        yield text, {"use": used, "optimizer_offload": 1.0}


def host_has_room(job: Job) -> bool:
    """Whether the memory of all nodes can hold the parts of one model copy that are stored
    there."""
    nodes = job.cluster.num_gpus / job.cluster.gpus_per_node
    return home_bytes(job).host <= nodes * job.cluster.host_memory_bytes_per_node
