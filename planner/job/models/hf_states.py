"""Readers of models with state-space or linear-attention layers: config keys -> ModelSpec fields.

Each follows the modelling file of transformers 5.23.0 of the same name.
"""

from __future__ import annotations

from typing import Any

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_parts import (
    SIGMOID_ROUTED,
    SpecFields,
    attention_bias,
    experts,
    trunk,
)
from planner.job.models.layout import hybrid_kinds
from planner.job.specs import AttentionKind, LayerKind, StateSpaceSpec

# Names of layer types in configs of 2024 to 2026, and their symbols.
_SYMBOLS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-",
    "moe": "E",
}  # fmt: skip


def nemotron_layers(fields: Fields) -> SpecFields:
    """Each layer is a mixer, attention, feed-forward block or experts; no position embedding."""
    pattern = _nemotron_pattern(fields)
    found: SpecFields = {
        "layers": len(pattern),
        "layer_kinds": hybrid_kinds(pattern, fields.where),
        "activation": fields.text("mlp_hidden_act"),
        "mtp_layers": fields.non_negative("num_nextn_predict_layers"),
        "state_space": _space(fields, "hybrid_mamba2"),
    }
    if "E" in pattern:
        found["moe"] = experts(
            fields,
            "moe_intermediate_size",
            latent=fields.optional_positive("moe_latent_size"),
            shared_ffn=fields.positive("moe_shared_expert_intermediate_size")
            * fields.non_negative("n_shared_experts"),
            **SIGMOID_ROUTED,
            groups=fields.positive("n_group"),
            top_groups=fields.positive("topk_group"),
            normalised=fields.flag("norm_topk_prob"),
            weight_scale=fields.number("routed_scaling_factor", 1.0),
        )
    return found if "-" in pattern else found | {"ffn": 0}


def _nemotron_pattern(fields: Fields) -> str:
    """`hybrid_override_pattern`, or the equivalent list of names."""
    named = fields.names("layers_block_type") or fields.names("layer_types")
    if named is None:
        return fields.text("hybrid_override_pattern")
    unknown = [name for name in named if name not in _SYMBOLS]
    if unknown:
        known = ", ".join(_SYMBOLS)
        raise fields.error(f"layers_block_type has {unknown[0]!r}; expected one of: {known}")
    return "".join(_SYMBOLS[name] for name in named)


def _space(fields: Fields, table: str, **more: Any) -> StateSpaceSpec:
    return StateSpaceSpec.model_validate(fields.keyed(table) | more)


def mamba2(fields: Fields) -> SpecFields:
    """Only Mamba-2 mixers, no feed-forward blocks."""
    return _mixers_alone(fields, _space(fields, "mamba2"))


def mamba(fields: Fields) -> SpecFields:
    """Only Mamba-1 mixers."""
    inner = fields.positive("expand") * fields.positive("hidden_size")
    return _mixers_alone(fields, _mamba1(fields, inner, "use_bias", "time_step_rank", "state_size"))


def _mamba1(fields: Fields, inner: int, bias: str, rank: str, state: str) -> StateSpaceSpec:
    """A selective scan: every channel is a head; the gate is part of the scan."""
    hidden = fields.positive("hidden_size")
    return StateSpaceSpec(
        kind="mamba1",
        heads=inner,
        head_dim=1,
        state=fields.positive(state),
        conv=fields.positive("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias"),
        projection_bias=fields.flag(bias),
        chunk=1,
        gated_norm=False,
        # "auto" is a sixteenth of the hidden size.
        step_rank=fields.optional_rank(rank) or -(-hidden // 16),
    )


def _mixers_alone(fields: Fields, space: StateSpaceSpec) -> SpecFields:
    layers = fields.positive("num_hidden_layers")
    return {
        "layers": layers,
        "hidden": fields.positive("hidden_size"),
        "heads": space.heads,
        "kv_heads": space.heads,
        "head_dim": space.head_dim,
        "ffn": 0,
        "vocab": fields.positive("vocab_size"),
        "max_positions": fields.positive("max_position_embeddings"),
        "position": "none",
        "tied_embeddings": fields.flag("tie_word_embeddings"),
        "norm_eps": fields.number("norm_eps", 1e-5),
        "init_std": fields.number("initializer_range", 0.02),
        "state_space": space,
        "layer_kinds": (LayerKind(attention="state", ffn="none"),) * layers,
    }


def jamba(fields: Fields) -> SpecFields:
    """Mamba-1 with an attention layer in each period, experts in some."""
    layers = range(fields.positive("num_hidden_layers"))
    inner = fields.positive("expand") * fields.positive("hidden_size")
    space = _mamba1(fields, inner, "mamba_proj_bias", "mamba_dt_rank", "ssm_state_size")
    found: SpecFields = {
        "state_space": space.model_copy(update={"inner_norms": True}),
        "attention": ["full" if _in_period(fields, "attn", i) else "state" for i in layers],
    }
    if fields.positive("num_experts") > 1:
        found["moe"] = experts(fields, normalised=False)
        found["moe_layers"] = [_in_period(fields, "expert", i) for i in layers]
    return found


def _in_period(fields: Fields, part: str, index: int) -> bool:
    offset = fields.non_negative(f"{part}_layer_offset")
    return (index - offset) % fields.positive(f"{part}_layer_period") == 0


def bamba(fields: Fields) -> SpecFields:
    """Mamba-2, with attention in the listed layers, and a feed-forward block in every layer."""
    layers = fields.positive("num_hidden_layers")
    listed = fields.indices("attn_layer_indices", below=layers) or []
    attention: list[AttentionKind] = ["full" if i in listed else "state" for i in range(layers)]
    return {
        "attention": _attention(fields, layers) or attention,
        "state_space": _space(fields, "hybrid_mamba2"),
    }


def _attention(fields: Fields, layers: int) -> list[AttentionKind] | None:
    """`layer_types`, if stated."""
    stated = fields.strings("layer_types", layers)
    if stated is None:
        return None
    unknown = [name for name in stated if _SYMBOLS.get(name) not in ("M", "*")]
    if unknown:
        raise fields.error(f"layer_types has {unknown[0]!r}; expected mamba or attention")
    return ["full" if _SYMBOLS[name] == "*" else "state" for name in stated]


def granite_hybrid(fields: Fields) -> SpecFields:
    """Granite 4: Mamba-2 and attention, with experts and a shared one, or a dense block."""
    layers, shared = (fields.positive(k) for k in ("num_hidden_layers", "shared_intermediate_size"))
    found: SpecFields = {
        "position": "rope" if fields.text("position_embedding_type") == "rope" else "none",
        "attention": _attention(fields, layers) or ["state"] * layers,
        "state_space": _space(fields, "hybrid_mamba2"),
        "ffn": shared,
    }
    if fields.non_negative("num_experts"):
        found["moe"] = experts(fields, shared_ffn=shared)
    return found


def falcon_h1(fields: Fields) -> SpecFields:
    """Attention and Mamba-2 in parallel in every layer."""
    return {
        "attention": ["both"] * fields.positive("num_hidden_layers"),
        "state_space": _space(fields, "hybrid_mamba2", gated_norm=fields.flag("mamba_rms_norm")),
    }


def minimax(fields: Fields) -> SpecFields:
    """MiniMax-01: lightning attention, and softmax attention in some layers; experts in all."""
    layers, read = fields.positive("num_hidden_layers"), trunk(fields)
    derived: list[AttentionKind] = ["state" if i % 2 else "full" for i in range(layers)]
    marks = fields.binary("attn_type_list", layers)
    if marks is not None:
        derived = ["full" if mark else "state" for mark in marks]
    space = StateSpaceSpec(
        kind="lightning",
        heads=read["heads"],
        groups=read["heads"],
        head_dim=read["head_dim"],
        state=read["head_dim"],
        conv=0,
        chunk=fields.positive("block_size"),
    )
    attention = _attention(fields, layers) or derived
    return {"attention": attention, "state_space": space}


def delta_nets(fields: Fields) -> SpecFields:
    """Gated delta nets, and gated attention in every fourth layer; chunks of 64 tokens
    (flash-linear-attention)."""
    layers = fields.positive("num_hidden_layers")
    period = fields.positive("full_attention_interval")
    stated = fields.strings("layer_types", layers)
    full = [(i + 1) % period == 0 for i in range(layers)]
    if stated is not None:
        full = [name == "full_attention" for name in stated]
    return {
        **attention_bias(fields),
        "attention": ["full" if one else "state" for one in full],
        "attention_gate": True,
        "qk_norm": "head",
        "state_space": _space(fields, "gated_delta", kind="gated_delta", conv_bias=False, chunk=64),
    }
