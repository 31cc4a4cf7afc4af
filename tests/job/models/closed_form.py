"""Parameter count of a ModelSpec in closed form: the second, independent form.

It sums weight matrices straight from the shape and shares no code with the op table, so that
agreement of the two, and of both with the counts of the reference implementations, means
something.
"""

from __future__ import annotations

from planner.job.specs import LayerKind, MlaSpec, ModelSpec, MoeSpec, StateSpaceSpec
from planner.job.vision import VisionSpec

_NORMS_PER_LAYER = {"pre": 2, "sandwich": 4, "post": 2, "single": 1, "parallel": 2}


def closed_form_parameters(spec: ModelSpec) -> int:
    """Parameters of the model, without multi-token-prediction layers."""
    table = spec.vocab * spec.hidden
    total = table if spec.tied_embeddings else 2 * table
    total += spec.vocab if spec.head_bias else 0
    total += spec.max_positions * spec.hidden if spec.position == "learned" else 0
    total += _norm(spec) + (_vision(spec.vision) if spec.vision else 0)
    total += spec.vision.input_rows * spec.hidden if spec.vision else 0
    return total + sum(_layer(spec, kind) for kind in spec.kind_sequence)


def _vision(vision: VisionSpec) -> int:
    """Patches, positions, layers and projectors."""
    tower, projector = vision.tower, vision.projector
    width, norm = tower.hidden, tower.hidden * (2 if tower.norm == "layernorm" else 1)
    inner = tower.heads * (tower.head_dim or width // tower.heads)
    total = width * (3 * tower.frames * tower.patch**2 + tower.patch_bias)
    total += width * (tower.positions + tower.class_tokens) + 2 * tower.gated_layers
    if tower.tiles:
        # Places of tiles before and behind the layers, and of their patches, with a factor each.
        total += (tower.aspects + 1) * tower.tiles * width * (2 + tower.positions) + 3
    total += norm * (tower.norm_before + tower.norm_after)
    normed = {"none": 0, "head": 2 * (inner // tower.heads), "full": 2 * inner}
    attention = normed[tower.qk_norm] * (2 if tower.norm == "layernorm" else 1)
    attention += 4 * width * inner + 3 * inner * tower.qkv_bias + width * tower.out_bias
    block = (2 + tower.gated) * width * tower.ffn
    block += tower.mlp_bias * (width + tower.ffn * (1 + tower.gated))
    total += tower.layers * (attention + block + 2 * norm + 2 * width * tower.layer_scale)
    linear = sum(
        out * (into + projector.bias)
        for into, out in zip(projector.widths, projector.widths[1:], strict=False)
    )
    scale = 2 if projector.norm == "layernorm" else 1
    total += linear + scale * projector.norm_width
    total += projector.learned * projector.widths[-1] + projector.row_ends * projector.widths[0]
    return total + len(projector.taps) * (linear + scale * projector.tap_norm_width)


def _layer(spec: ModelSpec, kind: LayerKind) -> int:
    norms = _NORMS_PER_LAYER[spec.block] // (2 if "none" in (kind.attention, kind.ffn) else 1)
    return _mixer(spec, kind) + _block(spec, kind) + norms * _norm(spec)


def _mixer(spec: ModelSpec, kind: LayerKind) -> int:
    total = 0
    if kind.attention == "cross":
        # Norms of queries and of keys, and a factor of each block.
        total += _attention(spec) + 2 * spec.head_dim + 2
    if kind.attention in ("full", "sliding", "both"):
        total += _latent_attention(spec, spec.mla) if spec.mla else _attention(spec)
    if kind.attention in ("state", "both") and spec.state_space:
        total += _state_space(spec.hidden, spec.state_space)
    return total


def _block(spec: ModelSpec, kind: LayerKind) -> int:
    if kind.ffn == "none":
        return 0
    return _experts(spec, spec.moe) if kind.ffn == "moe" and spec.moe else _dense_ffn(spec)


def _state_space(hidden: int, space: StateSpaceSpec) -> int:
    """Weights as the modelling files of transformers name them."""
    inner, keys = space.heads * space.head_dim, space.groups * space.state
    out_proj = inner * hidden
    if space.kind == "mamba1":
        in_proj, conv1d = hidden * 2 * inner, inner * (space.conv + space.conv_bias)
        x_proj = inner * (space.step_rank + 2 * space.state)
        dt_proj = space.step_rank * inner + inner
        norms = (space.step_rank + 2 * space.state) * space.inner_norms
        a_log, skip = inner * space.state, inner
        return in_proj + conv1d + x_proj + dt_proj + norms + a_log + skip + out_proj
    if space.kind == "lightning":
        return hidden * 3 * inner + hidden * inner + inner + out_proj
    conv1d = (inner + 2 * keys) * (space.conv + space.conv_bias)
    if space.kind == "gated_delta":
        in_proj = hidden * (2 * keys + 2 * inner) + hidden * 2 * space.heads
        return in_proj + conv1d + 2 * space.heads + space.head_dim + out_proj
    in_proj = hidden * (2 * inner + 2 * keys + space.heads)
    norm = inner * space.gated_norm
    return in_proj + conv1d + 3 * space.heads + norm + out_proj


def _norm(spec: ModelSpec) -> int:
    return spec.hidden * (int(spec.norm_weight) + int(spec.norm_bias))


def _attention(spec: ModelSpec) -> int:
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    total = spec.hidden * (query + 2 * key) + query * spec.hidden
    total += spec.hidden * query if spec.attention_gate else 0
    total += query + 2 * key if spec.qkv_bias else 0
    total += spec.hidden if spec.attention_out_bias else 0
    total += spec.heads if spec.attention_sinks else 0
    return total + {"none": 0, "head": 2 * spec.head_dim, "full": query + key}[spec.qk_norm]


def _latent_attention(spec: ModelSpec, mla: MlaSpec) -> int:
    query = spec.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    rank = mla.q_lora_rank
    queries = spec.hidden * rank + rank + rank * query if rank else spec.hidden * query
    down = spec.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    up = mla.kv_lora_rank * spec.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return queries + down + up + spec.heads * mla.v_head_dim * spec.hidden


def _dense_ffn(spec: ModelSpec) -> int:
    inputs = 2 if spec.gated else 1
    bias = inputs * spec.ffn + spec.hidden if spec.mlp_bias else 0
    return (inputs + 1) * spec.hidden * spec.ffn + bias


def _experts(spec: ModelSpec, moe: MoeSpec) -> int:
    inputs = 2 if spec.gated else 1
    routed = (inputs + 1) * (moe.latent or spec.hidden) * moe.ffn
    routed += inputs * moe.ffn + spec.hidden if moe.expert_bias else 0
    router = moe.experts * (spec.hidden + int(moe.router_bias))
    shared = (inputs + 1) * spec.hidden * moe.shared_ffn
    router += 2 * spec.hidden * (moe.latent or 0)
    return moe.experts * routed + router + shared + (spec.hidden if moe.shared_gate else 0)
