"""One reader a model family: config keys -> ModelSpec fields. `READERS` is the registry.

Each reader follows the modelling file of transformers 5.23.0 of the same name: which projections
have a bias, which norms exist, which layers have experts or a window.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_parts import (
    BIAS_UPDATE_RATE,
    SpecFields,
    attention_bias,
    experts,
    late_window,
    layernorm_with_biases,
    shared_and_routed,
    trunk,
    window_everywhere,
    window_pattern,
    window_switch,
    windows,
)
from planner.job.models.hf_states import (
    bamba,
    falcon_h1,
    gated_delta,
    granite_hybrid,
    jamba,
    mamba,
    mamba2,
    minimax,
    nemotron_h,
)
from planner.job.models.layout import layer_kinds, moe_layers
from planner.job.specs import AttentionKind, MlaSpec


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


def granitemoe(fields: Fields) -> SpecFields:
    moe = experts(fields, ffn=fields.positive("intermediate_size"))
    return {**trunk(fields), **attention_bias(fields), "moe": moe}


def hunyuan_v1_dense(fields: Fields) -> SpecFields:
    return {**trunk(fields), **attention_bias(fields), "qk_norm": "head"}


def exaone4(fields: Fields) -> SpecFields:
    """Layers without a window have no positions, where others have one: costed as with."""
    return {**trunk(fields), **window_pattern(fields), "block": "post", "qk_norm": "head"}


def smollm3(fields: Fields) -> SpecFields:
    """Every fourth layer has no positions, and is costed as with."""
    fields.refuse("use_sliding_window", "no released model uses it")
    return llama(fields)


def mixtral(fields: Fields) -> SpecFields:
    moe = experts(fields, ffn=fields.positive("intermediate_size"))
    return {**trunk(fields), **window_everywhere(fields), "moe": moe}


def qwen2(fields: Fields) -> SpecFields:
    return {**trunk(fields), **late_window(fields), "qkv_bias": True}


def qwen3(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        **late_window(fields),
        "qk_norm": "head",
    }


def _sparse_steps(fields: Fields) -> list[bool]:
    """Every `decoder_sparse_step`-th layer has experts, except `mlp_only_layers`."""
    layers = fields.positive("num_hidden_layers")
    plain = fields.indices("mlp_only_layers", below=layers) or []
    sparse = moe_layers(layers, every=fields.positive("decoder_sparse_step"))
    return [has and index not in plain for index, has in enumerate(sparse)]


def _qwen_moe(fields: Fields, shared_ffn: int) -> SpecFields:
    moe = experts(
        fields,
        ffn=fields.positive("moe_intermediate_size"),
        shared_ffn=shared_ffn,
        shared_gate=shared_ffn > 0,
        normalised=fields.flag("norm_topk_prob"),
    )
    return {**trunk(fields), "moe": moe, "moe_layers": _sparse_steps(fields)}


def qwen2_moe(fields: Fields) -> SpecFields:
    last = fields.non_negative("max_window_layers")
    return {
        **_qwen_moe(fields, fields.non_negative("shared_expert_intermediate_size")),
        **window_switch(fields, lambda index: index % 2 == 0 and index < last),
        "qkv_bias": fields.flag("qkv_bias"),
    }


def qwen3_moe(fields: Fields) -> SpecFields:
    return {
        **_qwen_moe(fields, shared_ffn=0),
        **attention_bias(fields),
        **window_switch(fields, lambda _: True),
        "qk_norm": "head",
    }


def qwen3_next(fields: Fields) -> SpecFields:
    """Delta nets of Qwen 3.5; experts with a shared one."""
    shared = fields.non_negative("shared_expert_intermediate_size")
    return {**_qwen_moe(fields, shared), **_delta_nets(fields)}


def qwen3_5(fields: Fields) -> SpecFields:
    return {**trunk(fields), **_delta_nets(fields)}


def _delta_nets(fields: Fields) -> SpecFields:
    """Gated delta nets, in every fourth layer attention with a gate."""
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
        "state_space": gated_delta(fields),
    }


def _mla(fields: Fields) -> MlaSpec:
    fields.refuse("attention_bias", "latent attention is read without biases")
    return MlaSpec(
        q_lora_rank=fields.optional_positive("q_lora_rank"),
        kv_lora_rank=fields.positive("kv_lora_rank"),
        qk_nope_head_dim=fields.positive("qk_nope_head_dim"),
        qk_rope_head_dim=fields.positive("qk_rope_head_dim"),
        v_head_dim=fields.positive("v_head_dim"),
    )


def _deepseek(fields: Fields, correction_bias: bool) -> SpecFields:
    mla = _mla(fields)
    return {
        **trunk(fields),
        **shared_and_routed(fields, correction_bias),
        "mla": mla,
        # config.json's head_dim is the rotary part only; ours is a query head's whole width.
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
    }


def deepseek_v2(fields: Fields) -> SpecFields:
    return _deepseek(fields, correction_bias=False) | {"mlp_bias": fields.flag("mlp_bias")}


def deepseek_v3(fields: Fields) -> SpecFields:
    return _deepseek(fields, correction_bias=True)


def glm4_moe_lite(fields: Fields) -> SpecFields:
    """DeepSeek-V3's layers; `mlp_layer_types` says which have experts."""
    read = deepseek_v3(fields)
    stated = fields.strings("mlp_layer_types", read["layers"])
    return read if stated is None else read | {"moe_layers": [one == "sparse" for one in stated]}


def glm4_moe(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **shared_and_routed(fields, correction_bias=True),
        "qkv_bias": fields.flag("attention_bias"),
        "qk_norm": "head" if fields.flag("use_qk_norm") else "none",
    }


def glm(fields: Fields) -> SpecFields:
    return {**trunk(fields), "qkv_bias": fields.flag("attention_bias")}


def glm4(fields: Fields) -> SpecFields:
    return {**glm(fields), "block": "sandwich"}


def minimax_m2(fields: Fields) -> SpecFields:
    moe = experts(
        fields,
        ffn=fields.positive("intermediate_size"),
        score="sigmoid",
        score_correction_bias=True,
        bias_update_rate=BIAS_UPDATE_RATE,
        router_fp32=True,
    )
    rotary = fields.optional_positive("rotary_dim")
    shape = trunk(fields)
    if rotary is not None:
        shape["rotary_share"] = rotary / shape["head_dim"]
    return {**shape, "moe": moe, "qk_norm": "full"}


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
        **_clip(fields),
        "norm": "layernorm",
        "norm_weight": False,
    }


def _clip(fields: Fields) -> SpecFields:
    return {"qkv_clip": fields.optional_number("clip_qkv")}


def olmo2(fields: Fields) -> SpecFields:
    return {
        **trunk(fields),
        **attention_bias(fields),
        "block": "post",
        "qk_norm": "full",
    }


def olmo3(fields: Fields) -> SpecFields:
    return {**olmo2(fields), **window_pattern(fields)}


def olmoe(fields: Fields) -> SpecFields:
    read = mixtral(fields)
    moe = read["moe"].model_copy(update={"normalised": fields.flag("norm_topk_prob")})
    return {**read, **attention_bias(fields), **_clip(fields), "moe": moe, "qk_norm": "full"}


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


def gpt_oss(fields: Fields) -> SpecFields:
    moe = experts(
        fields,
        ffn=fields.positive("intermediate_size"),
        router_bias=True,
        expert_bias=True,
        clamp=fields.optional_number("swiglu_limit"),
    )
    return {
        **trunk(fields),
        **attention_bias(fields),
        **window_pattern(fields),
        "moe": moe,
        "attention_sinks": True,
    }


def llama4(fields: Fields) -> SpecFields:
    """Llama 4's text model: experts and one shared expert are `intermediate_size` wide."""
    width = fields.positive("intermediate_size")
    moe = experts(
        fields,
        ffn=width,
        shared_ffn=width,
        score="sigmoid",
        weights_on_input=True,
    )
    return {
        **trunk(fields),
        **attention_bias(fields),
        **_llama4_chunks(fields),
        "qk_l2_norm": fields.flag("use_qk_norm"),
        "ffn": fields.positive("intermediate_size_mlp"),
        "moe": moe,
        "moe_layers": _llama4_moe_layers(fields),
    }


def _llama4_moe_layers(fields: Fields) -> list[bool]:
    layers = fields.positive("num_hidden_layers")
    stated = fields.indices("moe_layers", below=layers)
    if stated is None:
        return moe_layers(layers, every=fields.positive("interleave_moe_layer_step"))
    return [index in stated for index in range(layers)]


def _llama4_chunks(fields: Fields) -> SpecFields:
    """Layers with rotary positions attend within chunks, the others to everything."""
    layers = fields.positive("num_hidden_layers")
    rotary = fields.binary("no_rope_layers", layers)
    if rotary is None:
        period = fields.positive("no_rope_layer_interval")
        rotary = [1 if (index + 1) % period else 0 for index in range(layers)]
    chunk = fields.optional_positive("attention_chunk_size")
    kinds: list[AttentionKind] = ["sliding" if chunk and rope else "full" for rope in rotary]
    return windows(fields, chunk, kinds)


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
