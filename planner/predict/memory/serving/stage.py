"""Memory of a rank of one pipeline stage, and the room that is left for its KV cache.

PagedAttention (arXiv 2309.06180, section 4.1) stores keys and values in blocks of tokens. Layers
with a sliding window need only the blocks of their window; vLLM then keeps all layers in groups of
equal size, so that every group's blocks come from one pool, and pads the last group. Recurrent
layers keep one state per sequence, whatever its length, in a block of the same pool; blocks then
have enough tokens to be at least as large as a state (vLLM's config of hybrids; blocks of
Qwen3.5-27B have 1,568 tokens of 1 KiB under TP 2, and its states take 1.6 MB each).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.predict.memory.serving.activations import Activations, stage_activations
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import graph_bytes, nccl_start_bytes
from planner.predict.memory.serving.weights import WeightBytes, stage_weights

# If the ratio of layer counts is below this, the larger count is the group's size (vLLM,
# kv_cache_utils).
_SIMILAR_COUNTS = 1.25
# Bytes of an element of a recurrent state (published configurations of hybrids state fp32:
# mamba_ssm_dtype), and of the earlier inputs that its convolution keeps.
_STATE_BYTES = 4.0
_CONVOLUTION_BYTES = 2.0


def layer_token_bytes(deployment: Deployment) -> float:
    """Bytes that one token adds to one layer's cache on a rank.

    Keys and values: 2·(kv_heads/tp)·head_dim·element, at least one head per rank, so heads are
    copied once tp exceeds them. MLA: (kv_lora_rank + rope)·element on every rank (DeepSeek-V2,
    arXiv 2405.04434, section 2.1.4).
    """
    model, kv = deployment.model, deployment.kv
    if model.mla:
        width = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
        return width * kv.element_bytes + kv.head_bytes
    heads = max(1, model.kv_heads // deployment.tp)
    return 2 * heads * (model.head_dim * kv.element_bytes + kv.head_bytes)


def model_token_bytes(deployment: Deployment) -> float:
    """Bytes that one token adds to all layers, on all tp ranks of a replica together. Heads that
    are copied count once per rank that has them. Windows are ignored."""
    layers = sum(kind.attention not in ("state", "none") for kind in deployment.model.kind_sequence)
    return layer_token_bytes(deployment) * layers * deployment.tp


def layer_state_bytes(deployment: Deployment) -> float:
    """Bytes of a sequence's state in one recurrent layer on a rank: heads · head_dim · state, and
    the last inputs of its convolution (vLLM, mamba/mamba_utils.py)."""
    space = deployment.model.state_space
    if space is None:
        return 0.0
    state = space.inner * space.state * _STATE_BYTES
    keys = 0 if space.kind == "mamba1" else 2 * space.key_width
    looked_back = max(0, space.conv - 1) * (space.inner + keys) * _CONVOLUTION_BYTES
    return (state + looked_back) / deployment.tp


@dataclass(frozen=True, slots=True)
class StagePool:
    """The blocks of KV cache of one pipeline stage on a rank.

    `group`: number of layers whose tokens share a block; `full_groups`, `window_groups`,
    `state_groups`: number of groups of layers with full attention, with a sliding window, and of
    recurrent layers, which use one block per sequence; `block_bytes`: bytes of one block of a
    group. `deployment.block`: tokens of a block in this pool.
    """

    deployment: Deployment
    group: int
    full_groups: int
    window_groups: int
    block_bytes: float
    state_groups: int = 0

    @property
    def window(self) -> int:
        """Tokens that a window layer attends to; 0 in models without such layers."""
        return self.deployment.model.sliding_window or 0

    def sequence_blocks(self, context: int) -> int:
        """Blocks of one sequence of `context` tokens during decoding. A window that does not start
        at a block's first token needs one more block."""
        full = self._blocks(context)
        held = min(full, self._blocks(self.window) + 1)
        return self.full_groups * full + self.window_groups * held + self.state_groups

    def prefill_blocks(self, context: int) -> int:
        """Blocks that window layers temporarily need for a prefill chunk."""
        beyond = min(self.deployment.chunk, max(0, context - self.window))
        return self.window_groups * self._blocks(beyond)

    def admission_blocks(self, context: int) -> int:
        """Blocks that must be free before vLLM admits a sequence of this length. For window layers
        it reserves window - 1 + max_num_batched_tokens tokens, and one block."""
        held = self._blocks(min(self.window - 1 + self.deployment.chunk, context)) + 1
        cached = self.full_groups * self._blocks(context) + self.window_groups * held
        return cached + self.state_groups

    def _blocks(self, tokens: int) -> int:
        return math.ceil(tokens / self.deployment.block)

    def bytes_for(self, batch: int, context: int) -> float:
        """Bytes of the blocks that `batch` sequences of `context` tokens take, plus those that one
        prefill chunk takes temporarily."""
        blocks = batch * self.sequence_blocks(context) + self.prefill_blocks(context)
        return blocks * self.block_bytes


def stage_pool(deployment: Deployment, stage: int) -> StagePool:
    """The pool of one stage."""
    layers = deployment.stages[stage]
    windows = [kind for kind in layers if kind.attention == "sliding"]
    windowed = len(windows) if deployment.window_cache else 0
    full = sum(kind.attention not in ("state", "none") for kind in layers) - windowed
    recurrent = sum(kind.attention in ("state", "both") for kind in layers)
    deployment = _with_state_blocks(deployment) if recurrent else deployment
    group = _group_size(full, windowed)
    if recurrent:
        group = _group_size(group, recurrent)
    block_bytes = group * deployment.block * layer_token_bytes(deployment)
    groups = [math.ceil(count / group) for count in (full, windowed, recurrent)]
    return StagePool(deployment, group, groups[0], groups[1], block_bytes, groups[2])


def _with_state_blocks(deployment: Deployment) -> Deployment:
    """The deployment with enough tokens per block to hold a recurrent layer's state."""
    each = deployment.block * layer_token_bytes(deployment)
    blocks = math.ceil(layer_state_bytes(deployment) / each)
    return replace(deployment, block=deployment.block * max(1, blocks))


def _group_size(full: int, windowed: int) -> int:
    """Number of layers in a group: the smaller of the two counts; the larger if they are similar,
    or if the smaller is 0."""
    smaller, larger = sorted((full, windowed))
    if smaller == 0:
        return larger
    return larger if larger < smaller * _SIMILAR_COUNTS else smaller


@dataclass(frozen=True)
class ServingStageMemory:
    """Bytes on a rank of one pipeline stage.

    Within the engine's budget: weights, activations, non_torch, graphs_within, and the rest for the
    KV cache. Outside the budget: context (CUDA context), nccl, graphs_beside. `budget`: bytes of
    that budget; `usable`: bytes of HBM that processes can use.
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
        """Bytes within the budget that are not KV cache."""
        return self.weights.total + self.activations.peak + self.non_torch + self.graphs_within

    @property
    def beside(self) -> float:
        """Bytes that the process takes outside the budget."""
        return self.context + self.nccl + self.graphs_beside

    @property
    def available(self) -> float:
        """Bytes left for the KV cache, of the budget or of the device if that is less; negative if
        the rest does not fit by itself.

        The engine's budget cannot exceed the memory that is free at start. The engine captures CUDA
        graphs last, in the memory that its profiling run used for the forward pass and the sampling
        (vLLM, v1/worker/gpu_worker.py: init_device, determine_available_memory,
        compile_or_warm_up_model).
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
        """Bytes of the KV cache for the batch at full context."""
        deployment = self.pool.deployment
        return self.pool.bytes_for(deployment.replica_batch, deployment.context)

    @property
    def missing(self) -> float:
        """Bytes by which the KV cache of the batch at full context exceeds the room for it;
        negative: bytes to spare."""
        return self.kv_needed - self.available

    def blocks(self, extra: float = 0.0) -> int:
        """Number of blocks that fit, with `extra` bytes more (or fewer) than expected."""
        return max(0, math.floor((self.available + extra) / self.pool.block_bytes))


def tokens_of(stage: ServingStageMemory, context: int, extra: float) -> int:
    """Number of tokens, in sequences of this context, for which a stage's pool has room."""
    blocks = max(0, stage.blocks(extra) - stage.pool.prefill_blocks(context))
    rounded = math.ceil(context / stage.pool.deployment.block) * stage.pool.deployment.block
    return math.floor(blocks * rounded / stage.pool.sequence_blocks(context))


def stage_memory(deployment: Deployment) -> tuple[ServingStageMemory, ...]:
    """Memory of all stages of a deployment that `check_deployment` has accepted."""
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
