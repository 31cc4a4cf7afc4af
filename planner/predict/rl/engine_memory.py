"""Memory of a sampling engine on a GPU, and the room that is left for its KV cache.

The sums are those of serving (`planner.predict.memory.serving`), by the engine's own accounting:
vLLM's share is of all memory, and covers weights, activations and cache; SGLang's is of the memory
that is free at start, and covers only weights and cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hardware.schema import Gpu
from planner.job.rl.engines import EngineGeneration, generation_of
from planner.job.rl.job import RlJob
from planner.predict.memory.serving.deployment import Deployment, check_deployment
from planner.predict.memory.serving.engine import ENGINES, batch_defaults
from planner.predict.memory.serving.formats import kv_format, weight_format
from planner.predict.memory.serving.stage import ServingStageMemory, StagePool, stage_memory
from planner.predict.rl.plan import EngineLayout


@dataclass(frozen=True)
class EngineMemory:
    """Memory of one engine on its fullest GPU.

    `held`: bytes by content, with a full KV cache; `room`: bytes of the KV cache on a rank of the
    tightest stage; on that rank a cached token takes `token_bytes` in all layers without a window
    and `window_bytes` in all layers with one, as long as it is among the last `window` tokens; a
    sequence takes `state_bytes` besides; `over`: bytes by which the engine's share and all other
    memory exceed the GPU (negative: to spare).
    """

    held: Mapping[str, float]
    room: float
    token_bytes: float
    window_bytes: float
    state_bytes: float
    window: int
    over: float

    def sequence_bytes(self, tokens: float) -> float:
        """Bytes of a sequence with `tokens` cached tokens."""
        windowed = self.window_bytes * min(tokens, self.window)
        return self.state_bytes + self.token_bytes * tokens + windowed

    @property
    def room_tokens(self) -> float:
        """Number of tokens for which the cache has room, counting only layers without a window, as
        for long sequences."""
        return max(0.0, self.room) / max(self.token_bytes, 1.0)


def deployment_of(job: RlJob, engine: EngineLayout, gpu: Gpu | None = None) -> Deployment:
    """The job's policy as the model of a serving deployment with the engine's degrees. UsageError
    for degrees that no engine takes."""
    gpu, setting = gpu or job.trainer.cluster.gpu, job.engine
    deployment = Deployment(
        model=job.policy.language,
        gpu=gpu,
        batch=engine.dp,
        context=job.rollout.longest,
        weights=weight_format(setting.weights),
        kv=kv_format(setting.kv),
        tp=engine.tp,
        pp=engine.pp,
        ep=engine.ep,
        dp=engine.dp,
        utilization=engine.kv_share,
        chunk=setting.chunk or batch_defaults(gpu)[0],
        sequences=engine.sequences,
        graphs=setting.graphs,
        engine=ENGINES[generation_of(setting).memory],
    )
    check_deployment(deployment)
    return deployment


@lru_cache(maxsize=512)
def engine_memory(
    deployment: Deployment, generation: EngineGeneration, beside: float
) -> EngineMemory:
    """Memory of one engine; `beside`: bytes on each of its GPUs that belong to other processes."""
    stages = stage_memory(deployment)
    rooms = [_room(stage, generation, beside) for stage in stages]
    tightest = min(range(len(stages)), key=lambda index: rooms[index] / _need(stages[index]))
    stage, pool = stages[tightest], stages[tightest].pool
    each = pool.block_bytes / pool.deployment.block
    return EngineMemory(
        held=_held(stage, rooms[tightest]),
        room=rooms[tightest],
        token_bytes=each * pool.full_groups,
        window_bytes=each * pool.window_groups,
        state_bytes=_state_bytes(pool),
        window=pool.window + pool.deployment.block if pool.window else 0,
        over=_over(stage, generation, beside),
    )


def _state_bytes(pool: StagePool) -> float:
    """Bytes that a sequence takes whatever its length, in models with recurrent layers: their
    states, and the half of the cache's last block that is empty on average. 0 in other models."""
    if not pool.state_groups:
        return 0.0
    return (pool.state_groups + 0.5 * pool.full_groups) * pool.block_bytes


def _need(stage: ServingStageMemory) -> float:
    """Bytes of KV cache that one sequence of the greatest length takes on this stage."""
    context = stage.pool.deployment.context
    return max(1.0, stage.pool.sequence_blocks(context) * stage.pool.block_bytes)


def _room(stage: ServingStageMemory, generation: EngineGeneration, beside: float) -> float:
    """Bytes left on a stage for the KV cache: the rest of the engine's share, or of the GPU if that
    is less; negative if the rest does not fit."""
    if not generation.static_share:
        return stage.available
    free = stage.usable - stage.context - stage.nccl - beside
    share = stage.pool.deployment.utilization
    return share * free - stage.weights.total


def _over(stage: ServingStageMemory, generation: EngineGeneration, beside: float) -> float:
    """Bytes by which the engine exceeds the GPU; negative: bytes to spare. vLLM refuses to start if
    its share is not free; SGLang runs out of memory if activations and graphs do not fit outside
    its share."""
    before = stage.context + stage.nccl + beside
    if not generation.static_share:
        return before + max(stage.budget, stage.fixed) + stage.graphs_beside - stage.usable
    outside = (1.0 - stage.pool.deployment.utilization) * (stage.usable - before)
    return stage.activations.peak + stage.graphs_within + stage.graphs_beside - outside


def _held(stage: ServingStageMemory, room: float) -> Mapping[str, float]:
    return {
        "weights": stage.weights.total,
        "KV cache": max(0.0, room),
        "activations": stage.activations.peak,
        "CUDA graphs": stage.graphs_within + stage.graphs_beside,
        "beside torch": stage.non_torch,
        "context": stage.context + stage.nccl,
    }
