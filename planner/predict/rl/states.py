"""Engines that wake and sleep on GPUs that they share with a trainer: seconds, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.job.rl.job import RlJob
from planner.predict.memory.serving.engine import graph_bytes
from planner.predict.rl.moves import unpinned_bytes_per_s
from planner.predict.rl.plan import EngineLayout, Phase, RlLayout

# Seconds of vLLM's calls that release and take back an engine's memory, including mapping of pages
# and clearing of caches, whatever the model: 0.6B 0.2 and 1.2 s, 8B at level 2 0.3 s to sleep
# (vllm-project/vllm PR 11743, and its blog on sleep mode).
SLEEP_S = 0.3
WAKE_S = 1.2
# Bytes that the process of a sleeping engine keeps beside its graphs: CUDA context and NCCL.
_PROCESS_BYTES = 0.8 * 2.0**30


def asleep(job: RlJob, engine: EngineLayout) -> Mapping[str, float]:
    """Bytes that a sleeping engine keeps on a GPU: its CUDA graphs cannot leave (verl,
    docs/perf/perf_tuning.rst), nor can its process."""
    layers = -(-len(job.policy.kind_sequence) // engine.pp)
    graphs = graph_bytes(layers) if job.engine.graphs else 0.0
    return {"CUDA graphs": graphs, "process": _PROCESS_BYTES}


def wake_phase(job: RlJob, layout: RlLayout, held: Mapping[str, float]) -> Phase:
    """The engine takes its memory back; at level 1 its weights come from the host."""
    level = job.framework.sleep_level
    terms = {"pages": WAKE_S if level else 0.0}
    if level == 1:
        terms["weights"] = held.get("weights", 0.0) / _pinned_bytes_per_s(layout)
    return _phase("wake", terms, held)


def sleep_phase(job: RlJob, held: Mapping[str, float]) -> Phase:
    """The engine releases its memory; at level 1 its weights go to the host."""
    level = job.framework.sleep_level
    terms = {"pages": SLEEP_S if level else 0.0}
    if level == 1:
        rate = unpinned_bytes_per_s(job.trainer.cluster)
        terms["weights"] = held.get("weights", 0.0) / rate
    return _phase("sleep", terms, held)


def _phase(
    name: Literal["wake", "sleep"], terms: Mapping[str, float], held: Mapping[str, float]
) -> Phase:
    return Phase(name, "engine", sum(terms.values()), terms, held)


def _pinned_bytes_per_s(layout: RlLayout) -> float:
    """Bytes/s of one GPU's copy from pinned host memory."""
    cluster = layout.trainer.job.cluster
    gpu = layout.engine_gpu or cluster.gpu
    return gpu.host_link_bytes_per_s_per_direction / cluster.gpus_per_host_link
