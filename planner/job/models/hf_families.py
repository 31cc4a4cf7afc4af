"""One reader a model family: config keys -> ModelSpec fields, as `hf_readers.toml` lists them.

Each reader follows the modelling file of transformers 5.23.0 of the same name: which projections
have a bias, which norms exist, which layers have experts or a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planner.job.models import hf_mixtures, hf_parts, hf_states
from planner.job.models.hf_fields import ROWS, Fields
from planner.job.models.hf_parts import (
    LAYERNORM_WITH_BIASES,
    Reader,
    SpecFields,
    biases,
    family,
    flags,
    refused,
    trunk,
)
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


def _beside(block: str) -> Reader:
    """Attention and FFN side by side where `use_parallel_residual` says so; `block`: how."""
    return lambda fields: {"block": block if fields.flag("use_parallel_residual") else "pre"}


beside_single, beside_parallel = _beside("single"), _beside("parallel")


def layernorm_with_biases(_: Fields) -> SpecFields:
    return LAYERNORM_WITH_BIASES


# Where the functions are that `hf_readers.toml` names.
_PARTS = {**vars(hf_parts), **vars(hf_states), **vars(hf_mixtures), **globals()}


def _reader(
    reader: str = "",
    like: str = "",
    parts: Sequence[str] = (),
    flags: Mapping[str, str] = MappingProxyType({}),
    biases: str = "",
    refuses: Mapping[str, str] = MappingProxyType({}),
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Reader:
    """The reader of a row of `hf_readers.toml`."""
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
