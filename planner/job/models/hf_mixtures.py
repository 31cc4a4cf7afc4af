"""Readers of families with experts: config keys -> ModelSpec fields (`hf_readers.toml`)."""

from __future__ import annotations

from functools import partial

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_parts import (
    SIGMOID_ROUTED,
    SpecFields,
    experts,
    family,
    mixture,
    shared_and_routed,
    window_switch,
    windows,
)
from planner.job.models.layout import moe_layers
from planner.job.specs import AttentionKind, MlaSpec


def qwen_moe(fields: Fields) -> SpecFields:
    """Every `decoder_sparse_step`-th layer has experts, except `mlp_only_layers`."""
    layers = fields.positive("num_hidden_layers")
    plain = fields.indices("mlp_only_layers", below=layers) or []
    sparse = moe_layers(layers, every=fields.positive("decoder_sparse_step"))
    moe = experts(fields, "moe_intermediate_size", normalised=fields.flag("norm_topk_prob"))
    return {
        "moe": moe,
        "moe_layers": [has and index not in plain for index, has in enumerate(sparse)],
    }


def qwen_moe_shared(fields: Fields) -> SpecFields:
    """The same with a gated expert that all tokens share, where there is one."""
    read, shared = qwen_moe(fields), fields.non_negative("shared_expert_intermediate_size")
    gated = {"shared_ffn": shared, "shared_gate": shared > 0}
    return read | {"moe": read["moe"].model_copy(update=gated)}


def qwen2_window(fields: Fields) -> SpecFields:
    last = fields.non_negative("max_window_layers")
    return window_switch(fields, lambda index: index % 2 == 0 and index < last)


def qwen3_window(fields: Fields) -> SpecFields:
    return window_switch(fields, lambda _: True)


def mla(fields: Fields) -> SpecFields:
    fields.refuse("attention_bias", "latent attention is read without biases")
    spec = MlaSpec.model_validate(fields.keyed("mla"))
    # config.json's head_dim is the rotary part only; ours is a query head's whole width.
    return {"mla": spec, "head_dim": spec.qk_nope_head_dim + spec.qk_rope_head_dim}


deepseek_moe = partial(shared_and_routed, correction_bias=True)
deepseek_v2_moe = partial(shared_and_routed, correction_bias=False)
deepseek_v3 = family(mla, deepseek_moe)


def glm4_moe_lite(fields: Fields) -> SpecFields:
    """DeepSeek-V3's layers; `mlp_layer_types` says which have experts."""
    read = deepseek_v3(fields)
    stated = fields.strings("mlp_layer_types", read["layers"])
    return read if stated is None else read | {"moe_layers": [one == "sparse" for one in stated]}


def glm4_qk_norm(fields: Fields) -> SpecFields:
    return {"qk_norm": "head" if fields.flag("use_qk_norm") else "none"}


def minimax_m2(fields: Fields) -> SpecFields:
    shape = family(mixture(**SIGMOID_ROUTED), qk_norm="full")(fields)
    rotary = fields.optional_positive("rotary_dim")
    return shape if rotary is None else shape | {"rotary_share": rotary / shape["head_dim"]}


def olmoe_moe(fields: Fields) -> SpecFields:
    return {"moe": experts(fields, normalised=fields.flag("norm_topk_prob"))}


def gpt_oss_moe(fields: Fields) -> SpecFields:
    clamp = fields.optional_number("swiglu_limit")
    return {"moe": experts(fields, router_bias=True, expert_bias=True, clamp=clamp)}


def llama4(fields: Fields) -> SpecFields:
    """Llama 4's text model: experts and one shared expert are `intermediate_size` wide."""
    width = fields.positive("intermediate_size")
    return {
        **_llama4_chunks(fields),
        "ffn": fields.positive("intermediate_size_mlp"),
        "moe": experts(fields, shared_ffn=width, score="sigmoid", weights_on_input=True),
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
