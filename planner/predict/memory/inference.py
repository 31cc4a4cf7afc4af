"""Memory of serving a model: what each rank holds, whether it fits, how many tokens it caches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.predict.memory.serving.deployment import Deployment, check_deployment
from planner.predict.memory.serving.kv_cache import layer_token_bytes, model_token_bytes
from planner.predict.memory.serving.logs import CacheSpread, spread_of
from planner.predict.memory.serving.stage import ServingStageMemory, stage_memory, tokens_of


@dataclass(frozen=True)
class InferenceMemory:
    """All stages of a deployment; the figures that people ask for."""

    deployment: Deployment
    stages: tuple[ServingStageMemory, ...]
    spread: CacheSpread

    @cached_property
    def heaviest(self) -> ServingStageMemory:
        """The stage that is nearest to, or farthest beyond, its limit."""
        return max(self.stages, key=lambda stage: stage.missing)

    @property
    def fits(self) -> bool:
        """Whether the batch at full context fits every stage, as expected."""
        return self.heaviest.missing <= 0

    @property
    def sure(self) -> bool:
        """Whether the answer holds at both ends of the interval."""
        missing = self.heaviest.missing
        low, high = missing - self.spread.high, missing - self.spread.low
        return high <= 0 or low > 0

    @property
    def layer_token_bytes(self) -> float:
        """Bytes a token adds to one layer on one rank."""
        return layer_token_bytes(self.deployment)

    @property
    def token_bytes(self) -> float:
        """Bytes a token adds to all layers on all ranks of a replica (windows not applied)."""
        return model_token_bytes(self.deployment)

    @property
    def one_copy_token_bytes(self) -> float:
        """Bytes of a token's keys and values, each counted once."""
        deployment = self.deployment
        alone = Deployment(deployment.model, deployment.gpu, kv=deployment.kv)
        return model_token_bytes(alone)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache of a replica holds, in sequences of the given context."""
        return self._tokens(0.0)

    @property
    def kv_token_interval(self) -> tuple[int, int]:
        """80 % interval of `kv_tokens`."""
        return self._tokens(self.spread.low), self._tokens(self.spread.high)

    @property
    def concurrency(self) -> float:
        """Sequences of the given context that vLLM admits at once on a replica.

        This is its start-up line `Maximum concurrency for N tokens per request`.
        """
        context = self.deployment.context
        return min(s.blocks() / s.pool.admission_blocks(context) for s in self.stages)

    def _tokens(self, extra: float) -> int:
        context = self.deployment.context
        return min(tokens_of(stage, context, extra) for stage in self.stages)


def inference_memory(deployment: Deployment) -> InferenceMemory:
    """Memory of every stage of a deployment. UsageError for settings that no engine accepts."""
    check_deployment(deployment)
    return InferenceMemory(deployment, stage_memory(deployment), spread_of(deployment))
