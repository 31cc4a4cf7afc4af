"""Memory of serving a model: the memory of each rank, whether it fits, how many tokens its cache
has room for, and other splits of the same GPUs.

To generate a token, a rank reads its share of the weights and of the cached keys and values once. A
deeper split shortens that and adds two all-reduces per layer; a shallower split leaves more
replicas, each with its copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hardware.schema import Cluster
from planner.cost.communication import all_reduce_time_s
from planner.job.errors import UsageError
from planner.predict.links import link_inputs
from planner.predict.memory.serving.deployment import Deployment, check_deployment
from planner.predict.memory.serving.logs import CacheSpread, spread_of
from planner.predict.memory.serving.stage import (
    ServingStageMemory,
    layer_token_bytes,
    model_token_bytes,
    stage_memory,
    tokens_of,
)


@dataclass(frozen=True)
class InferenceMemory:
    """All stages of a deployment, and figures derived from them."""

    deployment: Deployment
    stages: tuple[ServingStageMemory, ...]
    spread: CacheSpread

    @cached_property
    def heaviest(self) -> ServingStageMemory:
        """The stage with the least room to spare, or, if some do not fit, the one that exceeds its
        limit most."""
        return max(self.stages, key=lambda stage: stage.missing)

    @property
    def fits(self) -> bool:
        """Whether the KV cache of the batch at full context is predicted to fit on every stage."""
        return self.heaviest.missing <= 0

    @property
    def sure(self) -> bool:
        """Whether `fits` has the same answer at both ends of the 80 % interval of the room for the
        KV cache."""
        missing = self.heaviest.missing
        low, high = missing - self.spread.high, missing - self.spread.low
        return high <= 0 or low > 0

    @property
    def layer_token_bytes(self) -> float:
        """Bytes that one token adds to the KV cache of one layer on one rank."""
        return layer_token_bytes(self.deployment)

    @property
    def token_bytes(self) -> float:
        """Bytes that one token adds to the KV cache, summed over all layers and all ranks of a
        replica, as if no layer had a sliding window."""
        return model_token_bytes(self.deployment)

    @property
    def caching_layers(self) -> str:
        """The number of layers that cache tokens, in words: `all 32 layers` or `8 of 32 layers`."""
        kinds = self.deployment.model.kind_sequence
        caching = sum(kind.attention not in ("state", "none") for kind in kinds)
        return f"{'all' if caching == len(kinds) else f'{caching} of'} {len(kinds)} layers"

    @property
    def one_copy_token_bytes(self) -> float:
        """Bytes that one token adds to the KV cache of all layers on a single GPU, where no keys
        and values are copied to several ranks."""
        deployment = self.deployment
        alone = Deployment(deployment.model, deployment.gpu, kv=deployment.kv)
        return model_token_bytes(alone)

    @property
    def kv_tokens(self) -> int:
        """Number of tokens for which a replica's cache has room, in sequences of the given
        context."""
        return self._tokens(0.0)

    @property
    def kv_token_interval(self) -> tuple[int, int]:
        """80 % interval of `kv_tokens`."""
        return self._tokens(self.spread.low), self._tokens(self.spread.high)

    @property
    def concurrency(self) -> float:
        """Number of sequences of the given context that vLLM admits at once on a replica: its
        start-up line `Maximum concurrency for N tokens per request`."""
        context = self.deployment.context
        return min(s.blocks() / s.pool.admission_blocks(context) for s in self.stages)

    def _tokens(self, extra: float) -> int:
        context = self.deployment.context
        return min(tokens_of(stage, context, extra) for stage in self.stages)


def inference_memory(deployment: Deployment) -> InferenceMemory:
    """Memory of every stage of a deployment. UsageError for settings that no engine accepts."""
    check_deployment(deployment)
    return InferenceMemory(deployment, stage_memory(deployment), spread_of(deployment))


_HALF = 2.0
# After attention and after the FFN (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
_REDUCTIONS_A_LAYER = 2.0


@dataclass(frozen=True)
class ServingSplit:
    """A deployment on the same GPUs with another tp and dp. Its pipeline stages work one after the
    other, so their seconds are added. `read_s`: seconds to read a rank's weights and cache once at
    full HBM rate, all experts included; `reduce_s`: seconds of the all-reduces of one decoding
    step, which gives each sequence one token."""

    memory: InferenceMemory
    read_s: float
    reduce_s: float

    @property
    def token_s(self) -> float:
        """Seconds between two tokens of a sequence: reads and all-reduces. Kernel launches are
        ignored, and so is the arithmetic, which overlaps with the reads."""
        return self.read_s + self.reduce_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all replicas, at the requested batch."""
        return self.memory.deployment.batch / self.token_s

    @property
    def sequences(self) -> float:
        """Number of sequences of the given context for which the caches of all replicas have room
        at once."""
        return self.memory.concurrency * self.memory.deployment.dp


def splits(deployment: Deployment, cluster: Cluster) -> Iterator[ServingSplit]:
    """The deployment with every legal pair of tp and dp whose product stays the same, largest tp
    first. `cluster`: gives the speed of the links."""
    ranks = deployment.tp * deployment.dp
    for tp in (count for count in range(ranks, 0, -1) if ranks % count == 0):
        near = replace(deployment, tp=tp, dp=ranks // tp)
        try:
            yield _split(inference_memory(near), cluster)
        except UsageError:
            continue


def _split(memory: InferenceMemory, cluster: Cluster) -> ServingSplit:
    deployment, links = memory.deployment, link_inputs(cluster)
    reduction = all_reduce_time_s(
        _HALF * deployment.replica_batch * deployment.model.hidden,
        deployment.tp,
        links.scale_up_domain,
        links,
    )
    read_bytes = sum(stage.weights.total + stage.kv_needed for stage in memory.stages)
    return ServingSplit(
        memory,
        read_bytes / deployment.gpu.hbm_bytes_per_s,
        _REDUCTIONS_A_LAYER * deployment.model.layers * reduction,
    )
