"""Keys of config.json for models with state-space layers (transformers 5.23)."""

from __future__ import annotations

from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec


def _mamba2(model: ModelSpec, heads: str, head_dim: str, state: str) -> dict[str, object]:
    space = model.state_space
    if space is None:
        return {}
    return {
        heads: space.heads,
        head_dim: space.head_dim,
        "n_groups": space.groups,
        state: space.state,
        "conv_kernel": space.conv,
        "use_conv_bias": space.conv_bias,
        "chunk_size": space.chunk,
        "expand": max(1, space.inner // model.hidden),
    }


def nemotron_h(model: ModelSpec) -> dict[str, object]:
    """A hybrid whose layers are mixers or blocks."""
    moe = model.moe
    found = _mamba2(model, "mamba_num_heads", "mamba_head_dim", "ssm_state_size") | {
        "hybrid_override_pattern": layer_pattern(model),
        "mlp_hidden_act": model.activation,
        "mlp_bias": model.mlp_bias,
        "attention_bias": model.qkv_bias,
        "num_nextn_predict_layers": model.mtp_layers,
    }
    if moe is None:
        return found
    return found | {
        "intermediate_size": model.ffn or moe.ffn,
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.ffn,
        "moe_latent_size": moe.latent,
        "n_shared_experts": 1 if moe.shared_ffn else 0,
        "moe_shared_expert_intermediate_size": moe.shared_ffn or moe.ffn,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "norm_topk_prob": moe.normalised,
    }


def mamba2(model: ModelSpec) -> dict[str, object]:
    """Mamba-2 alone."""
    return _mamba2(model, "num_heads", "head_dim", "state_size")


def linear_attention(model: ModelSpec) -> dict[str, object]:
    """Qwen3-Next's gated delta nets."""
    space = model.state_space
    if space is None:
        return {}
    names = {"state": "linear_attention", "full": "full_attention"}
    return {
        "layer_types": [names.get(kind.attention, "") for kind in model.kind_sequence],
        "linear_num_value_heads": space.heads,
        "linear_value_head_dim": space.head_dim,
        "linear_num_key_heads": space.groups,
        "linear_key_head_dim": space.state,
        "linear_conv_kernel_dim": space.conv,
    }
