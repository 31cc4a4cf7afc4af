"""Readers for keys that several families of Hugging Face configs share, such as rotary
positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.job.models.hf_fields import TABLES, Fields
from planner.job.rope import RopeScaling, RopeSpec
from planner.job.specs import AttentionKind, MoeSpec

SpecFields = dict[str, Any]
# Config keys -> fields of ModelSpec, for a whole family or a part that several families share.
Reader = Callable[[Fields], SpecFields]
# Update rate of the expert bias, which no config states (DeepSeek-V3, arXiv 2412.19437, section
# 4.2).
BIAS_UPDATE_RATE = 1e-3
# Experts chosen by sigmoids with a balancing bias, as in DeepSeek-V3.
SIGMOID_ROUTED: Mapping[str, Any] = {
    "score": "sigmoid", "score_correction_bias": True, "bias_update_rate": BIAS_UPDATE_RATE,
    "router_fp32": True,
}  # fmt: skip
_ATTENTION: Mapping[str, AttentionKind] = TABLES["attention"]


def family(*parts: Reader, **fixed: Any) -> Reader:
    """Build a family's reader: the trunk, then its parts in order, then values fixed for the
    family."""

    def read(fields: Fields) -> SpecFields:
        found = trunk(fields)
        for part in parts:
            found |= part(fields)
        return found | fixed

    return read


def flags(**keys: str) -> Reader:
    """Reader of boolean fields, each from its key."""
    return lambda fields: {name: fields.flag(key) for name, key in keys.items()}


def biases(key: str) -> Reader:
    """Reader of one flag for the biases of all projections of a layer."""
    return flags(qkv_bias=key, attention_out_bias=key, mlp_bias=key)


def refused(key: str, reason: str) -> Reader:
    """Reader that raises if a flag asks for a variant that ModelSpec cannot describe."""

    def read(fields: Fields) -> SpecFields:
        fields.refuse(key, reason)
        return {}

    return read


def trunk(fields: Fields) -> SpecFields:
    """Fields that every family states in the same way."""
    heads = fields.positive("num_attention_heads")
    return {
        "layers": fields.positive("num_hidden_layers"),
        "hidden": fields.positive("hidden_size"),
        "heads": heads,
        "kv_heads": fields.optional_positive("num_key_value_heads") or heads,
        "head_dim": fields.optional_positive("head_dim") or _split_head_dim(fields),
        "ffn": fields.optional_positive("intermediate_size") or 4 * fields.positive("hidden_size"),
        "vocab": fields.positive("vocab_size"),
        "max_positions": fields.positive("max_position_embeddings"),
        "activation": fields.text("hidden_act"),
        "tied_embeddings": fields.flag("tie_word_embeddings"),
        "rope": read_rope(fields),
        "rotary_share": _rotary_share(fields),
        "norm_eps": fields.number("norm_eps", 1e-5),
        "init_std": fields.number("initializer_range", 0.02),
    }


def experts(fields: Fields, width: str = "intermediate_size", **more: object) -> MoeSpec:
    """Fields that configs with experts state in the same way. `width`: key of an expert's FFN
    width."""
    known: SpecFields = {
        "experts": fields.positive("num_experts"),
        "top_k": fields.positive("num_experts_per_tok"),
        "aux_loss": fields.number("aux_loss"),
        "ffn": fields.positive(width),
    }
    return MoeSpec.model_validate(known | more)


def mixture(**more: Any) -> Reader:
    """Reader of experts of width `intermediate_size`; `more`: values fixed for the family."""
    return lambda fields: {"moe": experts(fields, **more)}


plain_mixture = mixture()


def _rotary_share(fields: Fields) -> float:
    """`partial_rotary_factor`, which newer configs put in rope_parameters."""
    stated = fields.table("rope_parameters").get("partial_rotary_factor")
    if isinstance(stated, int | float):
        return float(stated)
    return fields.number("partial_rotary_factor", 1.0)


def _split_head_dim(fields: Fields) -> int:
    hidden, heads = fields.positive("hidden_size"), fields.positive("num_attention_heads")
    if hidden % heads:
        raise fields.error(
            f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}; "
            "state head_dim or correct one of them"
        )
    return hidden // heads


# `attention_bias` adds a bias to the query, key, value and output projections.
attention_bias = flags(qkv_bias="attention_bias", attention_out_bias="attention_bias")
mlp_bias = flags(mlp_bias="mlp_bias")


def windows(fields: Fields, window: int | None, derived: list[AttentionKind]) -> SpecFields:
    """Attention kind of every layer: `layer_types` if stated, else what the class derives."""
    stated = fields.strings("layer_types", len(derived))
    kinds = derived if stated is None else [_attention_kind(fields, name) for name in stated]
    return {"attention": kinds, "sliding_window": window if "sliding" in kinds else None}


def _attention_kind(fields: Fields, name: str) -> AttentionKind:
    if name not in _ATTENTION:
        known = ", ".join(_ATTENTION)
        raise fields.error(f"layer_types has {name!r}; expected one of: {known}")
    return _ATTENTION[name]


def window_everywhere(fields: Fields) -> SpecFields:
    """`sliding_window` applies to every layer unless it is null (Mistral, Mixtral, Phi-3)."""
    window = fields.optional_positive("sliding_window")
    layers = fields.positive("num_hidden_layers")
    return windows(fields, window, ["sliding" if window else "full"] * layers)


def window_pattern(fields: Fields) -> SpecFields:
    """Every n-th layer has full attention, the others a sliding window (Gemma 2: n = 2, Gemma 3: 6,
    gpt-oss: 2)."""
    period = fields.positive("sliding_window_pattern")
    layers = range(fields.positive("num_hidden_layers"))
    kinds: list[AttentionKind] = ["sliding" if (i + 1) % period else "full" for i in layers]
    return windows(fields, fields.optional_positive("sliding_window"), kinds)


def window_switch(fields: Fields, slides: Callable[[int], bool]) -> SpecFields:
    """Qwen: no window unless `use_sliding_window`; then in the layers that `slides` selects."""
    on = fields.flag("use_sliding_window")
    window = fields.optional_positive("sliding_window") if on else None
    layers = range(fields.positive("num_hidden_layers"))
    kinds: list[AttentionKind] = ["sliding" if window and slides(i) else "full" for i in layers]
    return windows(fields, window, kinds)


def late_window(fields: Fields) -> SpecFields:
    """Qwen 2 and 3: sliding windows from layer `max_window_layers` on."""
    first = fields.non_negative("max_window_layers")
    return window_switch(fields, lambda index: index >= first)


# LayerNorm, a plain FFN and a bias everywhere: GPT-2 and its descendants.
LAYERNORM_WITH_BIASES: SpecFields = {
    "gated": False, "norm": "layernorm", "norm_bias": True, "qkv_bias": True,
    "attention_out_bias": True, "mlp_bias": True,
}  # fmt: skip


def _groups(fields: Fields, correction_bias: bool) -> SpecFields:
    """Groups of experts. With `topk_method` greedy all experts compete, as in DeepSeek-V2-Lite."""
    if not correction_bias and fields.text("topk_method") == "greedy":
        return {}
    return {
        "groups": fields.optional_positive("n_group") or 1,
        "top_groups": fields.optional_positive("topk_group") or 1,
        "group_score": "top2" if correction_bias else "max",
    }


def shared_and_routed(fields: Fields, correction_bias: bool) -> SpecFields:
    """DeepSeek's expert keys: leading dense layers, then every `moe_layer_freq`-th has experts."""
    layers, width = fields.positive("num_hidden_layers"), "moe_intermediate_size"
    first = fields.non_negative("first_k_dense_replace")
    period = fields.optional_positive("moe_layer_freq") or 1
    moe = experts(
        fields,
        width,
        shared_ffn=fields.positive(width) * fields.non_negative("n_shared_experts"),
        **(SIGMOID_ROUTED if correction_bias else {"router_fp32": True}),
        normalised=fields.flag("norm_topk_prob"),
        weight_scale=fields.number("routed_scaling_factor", 1.0),
        aux_loss_over="sequence" if fields.flag("seq_aux") else "batch",
        **_groups(fields, correction_bias),
    )
    placed = [index >= first and index % period == 0 for index in range(layers)]
    return {
        "moe": moe,
        "moe_layers": placed,
        "mtp_layers": fields.non_negative("num_nextn_predict_layers"),
    }


def qkv_clip(fields: Fields) -> SpecFields:
    """`clip_qkv` limits the values of queries, keys and values."""
    return {"qkv_clip": fields.optional_number("clip_qkv")}


SCALING_KEYS: Mapping[str, str] = TABLES["scaling"]
# Different names of the same kind.
_KINDS = {"su": "longrope"}
# Layers of a nested table: {"full_attention": {...}, "sliding_attention": {...}}.
FULL, SLIDING = "full_attention", "sliding_attention"


def read_rope(fields: Fields) -> RopeSpec:
    """`rope_parameters`, or `rope_theta` with `rope_scaling` beside it."""
    tables = _tables(fields)
    table = tables[0] if len(tables) == 1 else fields.nested("rope_parameters", FULL)
    theta = _number(fields, table, "rope_theta") or fields.optional_number("rope_theta")
    local = fields.optional_number("rope_local_base_freq")
    if len(tables) > 1:
        local = _number(fields, fields.nested("rope_parameters", SLIDING), "rope_theta") or local
    return RopeSpec(
        theta=theta or 10000.0,
        local_theta=None if local == theta else local,
        scaling=_scaling(fields, table),
    )


def _tables(fields: Fields) -> list[Mapping[str, object]]:
    """One table, or one for each kind of layer."""
    new = fields.table("rope_parameters")
    if FULL in new:
        return [fields.nested("rope_parameters", FULL), fields.nested("rope_parameters", SLIDING)]
    return [new or fields.table("rope_scaling")]


def _scaling(fields: Fields, table: Mapping[str, object]) -> RopeScaling | None:
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default" or not table:
        return None
    if not isinstance(kind, str):
        raise fields.error(f"rope_type is {kind!r}; expected a string")
    values = {name: table[key] for key, name in SCALING_KEYS.items() if table.get(key) is not None}
    if kind in ("su", "longrope") or "original_positions" not in values:
        # Phi-3 states it beside the table; otherwise it is the model's original length.
        longest = fields.optional_positive("original_max_position_embeddings")
        values.setdefault("original_positions", longest)
    return RopeScaling.model_validate({"kind": _KINDS.get(kind, kind), **values})


def _number(fields: Fields, table: Mapping[str, object], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise fields.error(f"{key} is {value!r}; expected a positive number")
    return float(value)
