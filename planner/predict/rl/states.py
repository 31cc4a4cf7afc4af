"""Engines that wake and sleep on GPUs that they share with a trainer: how long this takes, and the
bytes that stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.job.rl.job import RlJob
from planner.predict.memory.serving.engine import graph_bytes
from planner.predict.rl.plan import EngineLayout, Phase, RlLayout

# Seconds of vLLM's calls that release and take back an engine's memory, including mapping of pages
# and clearing of caches, whatever the model: 0.6B 0.2 and 1.2 s, 8B at level 2 0.3 s to sleep
# (vllm-project/vllm PR 11743, and its blog on sleep mode).
_PAGES_S = {"sleep": 0.3, "wake": 1.2}
# Bytes that the process of a sleeping engine keeps besides its graphs: CUDA context and NCCL.
_PROCESS_BYTES = 0.8 * 2.0**30


def asleep(job: RlJob, engine: EngineLayout) -> Mapping[str, float]:
    """Bytes that a sleeping engine keeps on a GPU: its CUDA graphs, which cannot be released (verl,
    docs/perf/perf_tuning.rst), and those of its process."""
    layers = -(-len(job.policy.kind_sequence) // engine.pp)
    graphs = graph_bytes(layers) if job.engine.graphs else 0.0
    return {"CUDA graphs": graphs, "process": _PROCESS_BYTES}


def engine_turns(
    name: Literal["wake", "sleep"], job: RlJob, layout: RlLayout, held: Mapping[str, float]
) -> Phase:
    """The phase in which a sleeping engine takes its memory back, or an awake one releases it. At
    sleep level 1 its weights are copied from pinned host memory, or to it (vLLM,
    device_allocator/cumem.py). `held`: bytes on the GPU by content."""
    level, cluster = job.framework.sleep_level, layout.trainer.job.cluster
    terms = {"pages": _PAGES_S[name] if level else 0.0}
    if level == 1:
        gpu = layout.engine_gpu or cluster.gpu
        rate = gpu.host_link_bytes_per_s_per_direction / cluster.gpus_per_host_link
        terms["weights"] = held.get("weights", 0.0) / rate
    return Phase(name, "engine", sum(terms.values()), terms, held)
