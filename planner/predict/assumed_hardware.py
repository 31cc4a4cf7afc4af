"""What a prediction takes for granted of the hardware: numbers that nobody published."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from hardware.load import Fact, cluster_facts, cluster_names, gpu_facts, gpu_names
from planner.job.job import Job

# Facts of a cluster that a job on one node does not use; how many GPUs the node has, the job says.
_BETWEEN_NODES = ("gpus_per_node", "nics_per_node", "nic_rate", "oversubscription")


class Assumption(BaseModel):
    """Something taken for granted, and by what part of the prediction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    text: str


def hardware_assumptions(job: Job) -> tuple[Assumption, ...]:
    """Numbers of GPU and nodes that nobody published; a user's own file has no provenance."""
    gpu, cluster = job.cluster.gpu.name, job.cluster.name
    facts = [(gpu, fact) for fact in (gpu_facts(gpu) if gpu in gpu_names() else ())]
    if cluster in cluster_names():
        inside = job.cluster.num_nodes == 1
        facts += [
            (cluster, fact)
            for fact in cluster_facts(cluster)
            if not (inside and fact.name in _BETWEEN_NODES)
        ]
    return tuple(
        Assumption(about=about, text=_fact_text(fact)) for about, fact in facts if fact.assumption
    )


def _fact_text(fact: Fact) -> str:
    unit = "" if fact.unit == "1" else f" {fact.unit}"
    note = f": {fact.note}" if fact.note else ""
    return f"{fact.name} {fact.value:g}{unit}{note}"


def assumption_lines(jobs: tuple[Job, ...]) -> tuple[str, ...]:
    """Those of several jobs as text, each once: `DGX H100: rail_latency_s 2e-06 s: why`."""
    found = (
        hardware_assumption for job in jobs for hardware_assumption in hardware_assumptions(job)
    )
    return tuple(dict.fromkeys(f"{item.about}: {item.text}" for item in found))
