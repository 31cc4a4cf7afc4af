"""What a rank of one pipeline stage holds, and what is left for its KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.predict.memory.serving.activations import Activations, stage_activations
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import graph_bytes, nccl_start_bytes
from planner.predict.memory.serving.kv_cache import StagePool, stage_pool
from planner.predict.memory.serving.weights import WeightBytes, stage_weights


@dataclass(frozen=True)
class ServingStageMemory:
    """Bytes on a rank of one pipeline stage.

    Within the engine's budget: weights, activations, non_torch, graphs_within, and what is left
    for the KV cache. Beside the budget: context, nccl, graphs_beside.
    """

    stage: int
    layers: int
    weights: WeightBytes
    activations: Activations
    non_torch: float
    graphs_within: float
    graphs_beside: float
    context: float
    nccl: float
    budget: float
    usable: float
    pool: StagePool

    @property
    def fixed(self) -> float:
        """What the budget holds beside the KV cache."""
        return self.weights.total + self.activations.peak + self.non_torch + self.graphs_within

    @property
    def beside(self) -> float:
        """What the process holds beside the budget."""
        return self.context + self.nccl + self.graphs_beside

    @property
    def available(self) -> float:
        """Bytes left for the KV cache: of the budget, or of the device if that is less.

        The engine starts with no larger budget than is free then, and fills it. It captures CUDA
        graphs afterwards, in the room that the forward pass and the sampling of its profile had
        (vLLM, v1/worker/gpu_worker.py: init_device, determine_available_memory,
        compile_or_warm_up_model). Negative if the rest does not fit by itself.
        """
        held = self.fixed - self.activations.peak
        at_start = self.usable - self.context - self.nccl
        return min(min(self.budget, at_start) - self.fixed, self.usable - self.beside - held)

    @property
    def overfull(self) -> float:
        """Bytes by which a full cache, CUDA graphs and the largest forward pass together exceed the
        device; negative: bytes to spare."""
        return self.fixed + self.available + self.beside - self.usable

    @property
    def kv_needed(self) -> float:
        """KV cache of the batch at full context."""
        deployment = self.pool.deployment
        return self.pool.bytes_for(deployment.replica_batch, deployment.context)

    @property
    def missing(self) -> float:
        """Bytes by which it does not fit; negative: bytes to spare."""
        return self.kv_needed - self.available

    def blocks(self, extra: float = 0.0) -> int:
        """Blocks that fit, with `extra` bytes more (or fewer) than expected."""
        return max(0, math.floor((self.available + extra) / self.pool.block_bytes))


def tokens_of(stage: ServingStageMemory, context: int, extra: float) -> int:
    """Tokens of sequences of this context in a stage's pool."""
    blocks = max(0, stage.blocks(extra) - stage.pool.prefill_blocks(context))
    rounded = math.ceil(context / stage.pool.deployment.block) * stage.pool.deployment.block
    return math.floor(blocks * rounded / stage.pool.sequence_blocks(context))


def stage_memory(deployment: Deployment) -> tuple[ServingStageMemory, ...]:
    """The stages alone, of a deployment that was checked before."""
    return tuple(_stage(deployment, index) for index in range(deployment.pp))


def _stage(deployment: Deployment, index: int) -> ServingStageMemory:
    gpu, engine = deployment.gpu, deployment.engine
    layers = len(deployment.stages[index])
    graphs = graph_bytes(layers) if deployment.graphs else 0.0
    communicates = deployment.gpus > 1
    return ServingStageMemory(
        stage=index,
        layers=layers,
        weights=stage_weights(deployment, index),
        activations=stage_activations(deployment, index),
        non_torch=engine.non_torch_bytes(deployment.tp, deployment.gpus),
        graphs_within=graphs if engine.graphs_in_budget else 0.0,
        graphs_beside=0.0 if engine.graphs_in_budget else graphs,
        context=gpu.context_bytes,
        nccl=nccl_start_bytes(gpu) if communicates else 0.0,
        budget=deployment.utilization * gpu.hbm_usable_bytes,
        usable=gpu.hbm_usable_bytes,
        pool=stage_pool(deployment, index),
    )
