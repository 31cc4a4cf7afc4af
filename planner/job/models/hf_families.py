"""One reader a model family: config keys -> ModelSpec fields. `READERS` is the registry.

Each reader follows the modelling file of transformers 5.23.0 of the same name: which projections
have a bias, which norms exist, which layers have experts or a window.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_mixtures import (
    deepseek_v2,
    deepseek_v3,
    glm4_moe,
    glm4_moe_lite,
    gpt_oss,
    granitemoe,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_moe,
    qwen3_next,
)
from planner.job.models.hf_parts import (
    SpecFields,
    attention_bias,
    late_window,
    layernorm_with_biases,
    qkv_clip,
    trunk,
    window_everywhere,
    window_pattern,
)
from planner.job.models.hf_states import (
    bamba,
    delta_nets,
    falcon_h1,
    granite_hybrid,
    jamba,
    mamba,
    mamba2,
    minimax,
    nemotron_h,
)
from planner.job.models.layout import layer_kinds


def llama(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        "mlp_bias": fields.flag("mlp_bias"),
    }


def ernie4_5(fields: Fields) -> SpecFields:
    bias = fields.flag("use_bias")
    return {**trunk(fields), "qkv_bias": bias, "attention_out_bias": bias, "mlp_bias": bias}


def seed_oss(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        "qkv_bias": fields.flag("attention_bias"),
        "attention_out_bias": fields.flag("attention_out_bias"),
        "mlp_bias": fields.flag("mlp_bias"),
    }


def arcee(fields: Fields) -> SpecFields:
    return {**llama(fields), "gated": False}


def mistral(fields: Fields) -> SpecFields:
    return {**trunk(fields), **window_everywhere(fields)}


def hunyuan_v1_dense(fields: Fields) -> SpecFields:
    return {**trunk(fields), **attention_bias(fields), "qk_norm": "head"}


def exaone4(fields: Fields) -> SpecFields:
    """Layers without a window have no positions, where others have one: costed as with."""
    return {**trunk(fields), **window_pattern(fields), "block": "post", "qk_norm": "head"}


def smollm3(fields: Fields) -> SpecFields:
    """Every fourth layer has no positions, and is costed as with."""
    fields.refuse("use_sliding_window", "no released model uses it")
    return llama(fields)


def qwen2(fields: Fields) -> SpecFields:
    return {**trunk(fields), **late_window(fields), "qkv_bias": True}


def qwen3(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        **late_window(fields),
        "qk_norm": "head",
    }


def qwen3_5(fields: Fields) -> SpecFields:
    return {**trunk(fields), **delta_nets(fields)}


def glm(fields: Fields) -> SpecFields:
    return {**trunk(fields), "qkv_bias": fields.flag("attention_bias")}


def glm4(fields: Fields) -> SpecFields:
    return {**glm(fields), "block": "sandwich"}


def gemma(fields: Fields) -> SpecFields:
    return {**trunk(fields), **attention_bias(fields)}


def gemma2(fields: Fields) -> SpecFields:
    return {
        **gemma(fields),
        **window_pattern(fields),
        "block": "sandwich",
        "attention_scale": fields.positive("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": fields.optional_number("attn_logit_softcapping"),
        "logits_softcap": fields.optional_number("final_logit_softcapping"),
    }


def gemma3(fields: Fields) -> SpecFields:
    return {**gemma2(fields), "qk_norm": "head"}


def phi(fields: Fields) -> SpecFields:
    fields.refuse("qk_layernorm", "its per-head LayerNorms have biases; no released model uses it")
    return {
        **trunk(fields),
        **layernorm_with_biases(),
        "block": "single",
        "head_bias": True,
    }


def phi3(fields: Fields) -> SpecFields:
    return {**trunk(fields), **window_everywhere(fields)}


def olmo(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        **qkv_clip(fields),
        "norm": "layernorm",
        "norm_weight": False,
    }


def olmo2(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        "block": "post",
        "qk_norm": "full",
    }


def olmo3(fields: Fields) -> SpecFields:
    return {**olmo2(fields), **window_pattern(fields)}


def falcon(fields: Fields) -> SpecFields:
    bias = fields.flag("bias")
    return {
        **trunk(fields),
        **layernorm_with_biases(),
        "kv_heads": _falcon_kv_heads(fields),
        "block": _falcon_block(fields),
        "position": "alibi" if fields.flag("alibi") else "rope",
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
    }


def _falcon_kv_heads(fields: Fields) -> int:
    """`num_kv_heads` counts only in the new architecture; before it, one or all."""
    heads = fields.positive("num_attention_heads")
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.optional_positive("num_key_value_heads") or heads


def _falcon_block(fields: Fields) -> str:
    new = fields.flag("new_decoder_architecture")
    if new and fields.non_negative("num_ln_in_parallel_attn", default=2) == 2:
        return "parallel"
    return "single" if new or fields.flag("parallel_attn") else "pre"


def gpt2(fields: Fields) -> SpecFields:
    fields.refuse("add_cross_attention", "only decoder-only models are planned")
    return {**trunk(fields), **layernorm_with_biases(), "position": "learned"}


def gpt_bigcode(fields: Fields) -> SpecFields:
    """GPT-2 with one key and value head for all queries, unless `multi_query` is false."""
    shape = gpt2(fields)
    return shape | {"kv_heads": 1 if fields.flag("multi_query") else shape["heads"]}


def opt(fields: Fields) -> SpecFields:
    fields.refuse("_remove_final_layer_norm", "only models with a final norm are planned")
    if not fields.flag("do_layer_norm_before"):
        raise fields.error("do_layer_norm_before=false is not supported: norms come before a block")
    shape = trunk(fields)
    if fields.positive("word_embed_proj_dim") != shape["hidden"]:
        raise fields.error("word_embed_proj_dim must be hidden_size: embeddings are not projected")
    bias = fields.flag("enable_bias")
    return {
        **shape,
        **layernorm_with_biases(),
        "position": "learned",
        # Two rows of its table are of no position (OPTLearnedPositionalEmbedding).
        "max_positions": shape["max_positions"] + 2,
        "norm_bias": fields.flag("layer_norm_elementwise_affine"),
        "norm_weight": fields.flag("layer_norm_elementwise_affine"),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
    }


def starcoder2(fields: Fields) -> SpecFields:
    bias = fields.flag("use_bias")
    return {
        **trunk(fields),
        **layernorm_with_biases(),
        **window_everywhere(fields),
        "qkv_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
    }


def stablelm(fields: Fields) -> SpecFields:
    fields.refuse("qk_layernorm", "its per-head LayerNorms are not planned")
    return {
        **trunk(fields),
        "norm": "layernorm",
        "norm_bias": True,
        "qkv_bias": fields.flag("use_qkv_bias"),
        "block": "single" if fields.flag("use_parallel_residual") else "pre",
    }


def gpt_neox(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **layernorm_with_biases(),
        **attention_bias(fields),
        "block": "parallel" if fields.flag("use_parallel_residual") else "pre",
    }


def nemotron(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **layernorm_with_biases(),
        **attention_bias(fields),
        "mlp_bias": fields.flag("mlp_bias"),
    }


READERS: dict[str, Callable[[Fields], SpecFields]] = {
    "llama": llama,
    "granite": llama,
    "granitemoe": granitemoe,
    "arcee": arcee,
    "exaone4": exaone4,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "smollm3": smollm3,
    "ernie4_5": ernie4_5,
    "seed_oss": seed_oss,
    "mistral": mistral,
    "mixtral": mixtral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "phi": phi,
    "phi3": phi3,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "olmoe": olmoe,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "opt": opt,
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "glm": glm,
    "glm4": glm4,
    "glm4_moe": glm4_moe,
    "glm4_moe_lite": glm4_moe_lite,
    "minimax_m2": minimax_m2,
    "nemotron": nemotron,
    "nemotron_h": nemotron_h,
    "mamba": mamba,
    "mamba2": mamba2,
    "jamba": jamba,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1,
    "minimax": minimax,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_next,
}


def spec_fields(model_type: str, fields: Fields) -> SpecFields:
    """ModelSpec fields of a config: the family's reader, then the layer kinds it implies."""
    read = READERS[model_type](fields)
    layers, has_experts = read["layers"], "moe" in read
    if "layer_kinds" in read:
        return read
    attention = read.pop("attention", ["full"] * layers)
    experts = read.pop("moe_layers", [has_experts] * layers)
    read["layer_kinds"] = layer_kinds(attention, experts, has_experts)
    if has_experts and all(experts):
        read["ffn"] = 0  # no dense layer is left that would have this width
    return read
