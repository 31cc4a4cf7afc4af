"""Readers of families with experts: config keys -> ModelSpec fields (`hf_families.READERS`)."""

from __future__ import annotations

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_parts import (
    BIAS_UPDATE_RATE,
    SpecFields,
    attention_bias,
    experts,
    qkv_clip,
    shared_and_routed,
    trunk,
    window_everywhere,
    window_pattern,
    window_switch,
    windows,
)
from planner.job.models.hf_states import delta_nets
from planner.job.models.layout import moe_layers
from planner.job.specs import AttentionKind, MlaSpec


def granitemoe(fields: Fields) -> SpecFields:
    moe = experts(fields, ffn=fields.positive("intermediate_size"))
    return {**trunk(fields), **attention_bias(fields), "moe": moe}


def mixtral(fields: Fields) -> SpecFields:
    moe = experts(fields, ffn=fields.positive("intermediate_size"))
    return {**trunk(fields), **window_everywhere(fields), "moe": moe}


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
    return {**_qwen_moe(fields, shared), **delta_nets(fields)}


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


def olmoe(fields: Fields) -> SpecFields:
    read = mixtral(fields)
    moe = read["moe"].model_copy(update={"normalised": fields.flag("norm_topk_prob")})
    return {**read, **attention_bias(fields), **qkv_clip(fields), "moe": moe, "qk_norm": "full"}


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
