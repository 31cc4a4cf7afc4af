"""The same GPUs split otherwise: what tensor parallelism does to latency and to throughput.

A token of every sequence takes one pass over what a rank holds: its share of the weights and of
the cached keys and values. Splitting further makes that pass shorter and adds two all-reduces a
layer; splitting less leaves more replicas, each with its copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hardware.schema import Cluster
from planner.job.errors import UsageError
from planner.predict.memory.inference import InferenceMemory, inference_memory
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.stage import ServingStageMemory

_HALF = 2.0
# After attention and after the FFN (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
_REDUCTIONS_A_LAYER = 2.0


@dataclass(frozen=True)
class ServingSplit:
    """A deployment on the same GPUs. `read_s`: to read a rank's weights and cache once at the full
    HBM rate, of mixtures every expert; `reduce_s`: the all-reduces of one token of each sequence;
    all stages in turn."""

    memory: InferenceMemory
    read_s: float
    reduce_s: float

    @property
    def token_s(self) -> float:
        """Seconds between tokens of a sequence, if nothing else takes any: launches and products of
        a decode step hide behind what it reads."""
        return self.read_s + self.reduce_s

    @property
    def tokens_per_s(self) -> float:
        """Of all replicas, at the batch asked for."""
        return self.memory.deployment.batch / self.token_s

    @property
    def sequences(self) -> float:
        """Sequences of the given context that all replicas hold at once."""
        return self.memory.concurrency * self.memory.deployment.dp


def splits(deployment: Deployment, cluster: Cluster) -> tuple[ServingSplit, ...]:
    """Every legal tp·dp of as many ranks, the deepest tp first. `cluster`: whose links they use."""
    return tuple(_splits(deployment, cluster))


def _splits(deployment: Deployment, cluster: Cluster) -> Iterator[ServingSplit]:
    ranks = deployment.tp * deployment.dp
    for tp in (count for count in range(ranks, 0, -1) if ranks % count == 0):
        near = replace(deployment, tp=tp, dp=ranks // tp)
        try:
            yield _split(inference_memory(near), cluster)
        except UsageError:
            continue


def _split(memory: InferenceMemory, cluster: Cluster) -> ServingSplit:
    from planner.cost.communication import all_reduce_time_s
    from planner.predict.links import link_inputs

    deployment, links = memory.deployment, link_inputs(cluster)
    reduction = all_reduce_time_s(
        _HALF * deployment.replica_batch * deployment.model.hidden,
        deployment.tp,
        links.scale_up_domain,
        links,
    )
    return ServingSplit(
        memory,
        sum(_read_bytes(stage) for stage in memory.stages) / deployment.gpu.hbm_bytes_per_s,
        _REDUCTIONS_A_LAYER * deployment.model.layers * reduction,
    )


def _read_bytes(stage: ServingStageMemory) -> float:
    """Weights and cache of a rank."""
    return stage.weights.total + stage.kv_needed
