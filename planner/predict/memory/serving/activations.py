"""Peak memory of a forward pass and of the sampling after it, without a backward pass.

While the layers run, a rank holds the hidden state and residual of a chunk, and the input and
output of the widest operation. After that the sampler holds the logits. The kernels of experts have
buffers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.codes import OpKind, Shard
from planner.predict.memory.serving.deployment import Deployment, layer_piece
from planner.predict.ops.rows import Op

_ELEMENT_BYTES = 2.0
# Hidden state and residual: fused norms carry both through the layers.
_STREAMS = 2.0
# vLLM splits the input of its expert kernels into pieces of this many tokens.
_EXPERT_CHUNK = 32768
# MLA expands cached tokens for prefill, at most this many at a time. The number is at least 8
# sequences of full length or 4 blocks per sequence, and at most 64 Ki (vLLM, MLA's chunked prefill
# workspace).
_MLA_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes on a rank. `streams`: hidden state and residual of a chunk; `layers`: the widest
    operation while the layers run, or MLA's expanded cache if that is larger; `sampling`: while
    tokens are sampled; `experts`: buffers of the experts' kernels, which stay allocated while
    sampling if `experts_stay`. `layers` and `sampling` are not alive at once: the larger one
    counts."""

    streams: float
    layers: float
    sampling: float
    experts: float
    experts_stay: bool

    @property
    def peak(self) -> float:
        """Largest sum of tensors that are alive at the same time."""
        after = self.sampling + (self.experts if self.experts_stay else 0.0)
        return self.streams + max(self.layers + self.experts, after)

    @property
    def beside_streams(self) -> float:
        """Bytes of the peak without the hidden state and residual of a chunk (`streams`)."""
        return self.peak - self.streams


def stage_activations(deployment: Deployment, stage: int) -> Activations:
    """Activations of one pipeline stage on a rank. Only the last stage samples."""
    model = deployment.model
    ops = [op for kind in set(deployment.stages[stage]) for op in layer_piece(deployment, kind).ops]
    element = max(_ELEMENT_BYTES, deployment.weights.kept_bytes)
    widest = max(_op_width(deployment, op) for op in ops)
    layers = element * deployment.chunk * widest
    # The sampler's tensors cover the whole vocabulary, which is gathered over tp.
    rows = max(deployment.sampled, deployment.chunk if deployment.all_logits else 0)
    logits = deployment.engine.logit_bytes * rows * model.vocab
    return Activations(
        streams=_STREAMS * element * deployment.chunk * model.hidden,
        layers=max(layers, _mla_context(deployment)),
        sampling=logits if stage == deployment.pp - 1 else 0.0,
        experts=element * _expert_elements(deployment, ops),
        experts_stay=deployment.engine.moe_workspace_stays,
    )


def _op_width(deployment: Deployment, op: Op) -> float:
    """Elements per token that an operation reads and writes on a rank; 0 for experts, which
    `_expert_elements` counts, and for operations other than attention, products and the activation
    functions of feed-forward blocks."""
    if op.name.startswith("moe/"):
        return 0.0
    if op.kind is OpKind.ATTENTION:
        heads = op.heads * (op.qk_head_dim + op.v_head_dim) / deployment.tp
        kv = op.kv_heads * (op.qk_head_dim + op.v_head_dim)
        return heads + kv / min(deployment.tp, int(op.kv_heads))
    if op.kind is OpKind.GEMM:
        out = op.out_width * deployment.share(op.out_shard)
        kv_out = op.kv_out_width * deployment.share(Shard.KV)
        return op.in_width * deployment.share(op.in_shard) + out + kv_out
    if op.name.endswith("/activation"):
        # The activation reads the up projections' outputs and writes the down projection's input;
        # the block's input and the attention's output are still alive (a compiled graph's buffers).
        model = deployment.model
        gates = 2.0 if model.gated else 1.0
        shared = model.moe.shared_ffn if model.moe else 0
        width = model.ffn if op.name.startswith("mlp/") else shared
        return (gates + 1.0) * width / deployment.tp + _STREAMS * model.hidden
    return 0.0


def _expert_elements(deployment: Deployment, ops: list[Op]) -> float:
    """Elements in the buffers of the experts' kernels: products up (reused for those down) and
    activations. Each token of a chunk appears top_k times, and the tokens of all dp replicas count.
    """
    moe = deployment.model.moe
    if moe is None or not any(op.kind is OpKind.GROUPED_GEMM for op in ops):
        return 0.0
    width = moe.ffn / deployment.expert_tp
    gates = 2.0 if deployment.model.gated else 1.0
    copies = min(deployment.chunk * deployment.dp, _EXPERT_CHUNK) * moe.top_k
    return copies * (max(gates * width, deployment.model.hidden) + width)


def _mla_context(deployment: Deployment) -> float:
    """Bytes of MLA's expanded keys and values of cached tokens, and of the buffer that gathers
    them."""
    mla = deployment.model.mla
    if mla is None:
        return 0.0
    wanted = max(8 * deployment.context, 4 * deployment.sequences * deployment.block)
    tokens = min(_MLA_CHUNK, wanted)
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    heads = deployment.model.heads / deployment.tp
    expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return _ELEMENT_BYTES * tokens * (latent + expanded)
