"""One reader a model family: config keys -> ModelSpec fields. `READERS` is the registry.

Each reader follows the modelling file of transformers 5.23.0 of the same name: which projections
have a bias, which norms exist, which layers have experts or a window.
"""

from __future__ import annotations

from planner.job.models.hf_fields import Fields
from planner.job.models.hf_mixtures import MIXTURES
from planner.job.models.hf_parts import (
    LAYERNORM_WITH_BIASES,
    Reader,
    SpecFields,
    attention_bias,
    biases,
    family,
    flags,
    late_window,
    mlp_bias,
    qkv_clip,
    refused,
    trunk,
    window_everywhere,
    window_pattern,
)
from planner.job.models.hf_states import STATE_SPACES
from planner.job.models.layout import layer_kinds


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


gpt2 = family(
    refused("add_cross_attention", "only decoder-only models are planned"),
    **LAYERNORM_WITH_BIASES,
    position="learned",
)


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
    affine = "layer_norm_elementwise_affine"
    return {
        **shape,
        **LAYERNORM_WITH_BIASES,
        "position": "learned",
        # Two rows of its table are of no position (OPTLearnedPositionalEmbedding).
        "max_positions": shape["max_positions"] + 2,
        **flags(norm_bias=affine, norm_weight=affine)(fields),
        **biases("enable_bias")(fields),
    }


def _parallel_residual(block: str) -> Reader:
    """Attention and FFN side by side where `use_parallel_residual` says so; `block`: how."""
    return lambda fields: {"block": block if fields.flag("use_parallel_residual") else "pre"}


def _layernorm_with_biases(_: Fields) -> SpecFields:
    return LAYERNORM_WITH_BIASES


_LLAMA = family(attention_bias, mlp_bias)
_GEMMA2 = (attention_bias, window_pattern, gemma2_softcaps)
_NO_WINDOW = refused("use_sliding_window", "no released model uses it")

READERS: dict[str, Reader] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "arcee": family(attention_bias, mlp_bias, gated=False),
    # Layers without a window have no positions, where others have one: costed as with.
    "exaone4": family(window_pattern, block="post", qk_norm="head"),
    "hunyuan_v1_dense": family(attention_bias, qk_norm="head"),
    # Every fourth layer has no positions, and is costed as with.
    "smollm3": family(_NO_WINDOW, attention_bias, mlp_bias),
    "ernie4_5": family(biases("use_bias")),
    "seed_oss": family(
        flags(qkv_bias="attention_bias", attention_out_bias="attention_out_bias"), mlp_bias
    ),
    "mistral": family(window_everywhere),
    "qwen2": family(late_window, qkv_bias=True),
    "qwen3": family(attention_bias, late_window, qk_norm="head"),
    "gemma": family(attention_bias),
    "gemma2": family(*_GEMMA2, block="sandwich"),
    "gemma3_text": family(*_GEMMA2, block="sandwich", qk_norm="head"),
    "phi": family(
        refused("qk_layernorm", "its per-head LayerNorms have biases; no released model uses it"),
        **LAYERNORM_WITH_BIASES,
        block="single",
        head_bias=True,
    ),
    "phi3": family(window_everywhere),
    "olmo": family(attention_bias, qkv_clip, norm="layernorm", norm_weight=False),
    "olmo2": family(attention_bias, block="post", qk_norm="full"),
    "olmo3": family(attention_bias, window_pattern, block="post", qk_norm="full"),
    "falcon": family(falcon, biases("bias")),
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "opt": opt,
    "starcoder2": family(_layernorm_with_biases, window_everywhere, biases("use_bias")),
    "stablelm": family(
        refused("qk_layernorm", "its per-head LayerNorms are not planned"),
        flags(qkv_bias="use_qkv_bias"),
        _parallel_residual("single"),
        norm="layernorm",
        norm_bias=True,
    ),
    "gpt_neox": family(_layernorm_with_biases, attention_bias, _parallel_residual("parallel")),
    "glm": family(flags(qkv_bias="attention_bias")),
    "glm4": family(flags(qkv_bias="attention_bias"), block="sandwich"),
    "nemotron": family(_layernorm_with_biases, attention_bias, mlp_bias),
    **MIXTURES,
    **STATE_SPACES,
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
