"""One reader for each model family: config keys -> ModelSpec fields, as `hf_readers.toml` lists
them.

Each reader follows the modelling file of transformers 5.23.0 of the same name: which projections
have a bias, which norms exist, which layers have experts or a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from planner.job.models import hf_parts, hf_states
from planner.job.models.hf_fields import ROWS, Fields
from planner.job.models.hf_parts import (
    LAYERNORM_WITH_BIASES,
    SIGMOID_ROUTED,
    Reader,
    SpecFields,
    biases,
    experts,
    family,
    flags,
    mixture,
    refused,
    shared_and_routed,
    trunk,
    window_switch,
    windows,
)
from planner.job.models.layout import layer_kinds, moe_layers
from planner.job.specs import AttentionKind, MlaSpec


def gemma2_softcaps(fields: Fields) -> SpecFields:
    return {
        "attention_scale": fields.positive("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": fields.optional_number("attn_logit_softcapping"),
        "logits_softcap": fields.optional_number("final_logit_softcapping"),
    }


def falcon(fields: Fields) -> SpecFields:
    return LAYERNORM_WITH_BIASES | {
        "kv_heads": _falcon_kv_heads(fields),
        "block": _falcon_block(fields),
        "position": "alibi" if fields.flag("alibi") else "rope",
    }


def _falcon_kv_heads(fields: Fields) -> int:
    """One if `multi_query` is set in the old architecture; otherwise `num_kv_heads`, or the number
    of query heads if that is missing."""
    heads = fields.positive("num_attention_heads")
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.optional_positive("num_key_value_heads") or heads


def _falcon_block(fields: Fields) -> str:
    new = fields.flag("new_decoder_architecture")
    if new and fields.non_negative("num_ln_in_parallel_attn", default=2) == 2:
        return "parallel"
    return "single" if new or fields.flag("parallel_attn") else "pre"


gpt2 = family(
    refused("add_cross_attention", "only decoder-only models are planned"),
    **LAYERNORM_WITH_BIASES,
    position="learned",
)


def gpt_bigcode(fields: Fields) -> SpecFields:
    """GPT-2 with one key/value head for all queries, unless `multi_query` is false."""
    shape = gpt2(fields)
    return shape | {"kv_heads": 1 if fields.flag("multi_query") else shape["heads"]}


def opt(fields: Fields) -> SpecFields:
    fields.refuse("_remove_final_layer_norm", "only models with a final norm are planned")
    if not fields.flag("do_layer_norm_before"):
        raise fields.error("do_layer_norm_before=false is not supported: norms come before a block")
    shape = trunk(fields)
    if fields.positive("word_embed_proj_dim") != shape["hidden"]:
        raise fields.error("word_embed_proj_dim must be hidden_size: embeddings are not projected")
    affine = "layer_norm_elementwise_affine"
    return {
        **shape,
        **LAYERNORM_WITH_BIASES,
        "position": "learned",
        # Two rows of its table belong to no position (OPTLearnedPositionalEmbedding).
        "max_positions": shape["max_positions"] + 2,
        **flags(norm_bias=affine, norm_weight=affine)(fields),
        **biases("enable_bias")(fields),
    }


def _beside(block: str) -> Reader:
    """Attention and FFN in parallel if `use_parallel_residual` is set. `block`: the form of the
    parallel block."""
    return lambda fields: {"block": block if fields.flag("use_parallel_residual") else "pre"}


beside_single, beside_parallel = _beside("single"), _beside("parallel")


def layernorm_with_biases(_: Fields) -> SpecFields:
    return LAYERNORM_WITH_BIASES


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
    """`qwen_moe` with a gated expert that all tokens share, if there is one."""
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
    # config.json's head_dim is only the rotary part; ModelSpec's is a query head's whole width.
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
    """Layers with rotary positions attend within chunks; the others attend to the whole
    sequence."""
    layers = fields.positive("num_hidden_layers")
    rotary = fields.binary("no_rope_layers", layers)
    if rotary is None:
        period = fields.positive("no_rope_layer_interval")
        rotary = [1 if (index + 1) % period else 0 for index in range(layers)]
    chunk = fields.optional_positive("attention_chunk_size")
    kinds: list[AttentionKind] = ["sliding" if chunk and rope else "full" for rope in rotary]
    return windows(fields, chunk, kinds)


def mllama_layers(fields: Fields) -> SpecFields:
    """Llama 3.2 Vision: the listed layers cross-attend to images."""
    layers = fields.positive("num_hidden_layers")
    across = fields.indices("cross_attention_layers", below=layers) or []
    kinds: list[AttentionKind] = ["cross" if i in across else "full" for i in range(layers)]
    return {"attention": kinds}


# Modules with the functions that `hf_readers.toml` names.
_PARTS = {**vars(hf_parts), **vars(hf_states), **globals()}


def _reader(
    reader: str = "",
    like: str = "",
    parts: Sequence[str] = (),
    flags: Mapping[str, str] = MappingProxyType({}),
    biases: str = "",
    refuses: Mapping[str, str] = MappingProxyType({}),
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Reader:
    if like:
        return _reader(**ROWS[like])
    if reader:
        whole: Reader = _PARTS[reader]
        return whole
    named = [*(refused(key, why) for key, why in refuses.items()), *(_PARTS[one] for one in parts)]
    if biases:
        named.append(hf_parts.biases(biases))
    return family(*named, hf_parts.flags(**flags), **fixed)


READERS: dict[str, Reader] = {name: _reader(**row) for name, row in ROWS.items()}


def spec_fields(model_type: str, fields: Fields) -> SpecFields:
    """ModelSpec fields of a config: from the family's reader, then the layer kinds it implies."""
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
