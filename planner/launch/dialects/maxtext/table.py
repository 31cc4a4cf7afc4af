"""How MaxText says a model: rows of its settings, for the blocks that the writer knows.

Sources: MaxText 0.2.5, configs/base.yml, models/, layers/attentions.py, layers/moe.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    experts,
    has_mla,
    has_moe,
    lacking,
    leading_dense,
    row,
    scaling,
    settings,
    stretched,
    value_of,
)
from planner.launch.dialects.maxtext.schema import default, model_config, model_names
from planner.launch.quoting import Value

# What layers/embeddings.py, LLaMARotaryEmbedding, has built in.
_LLAMA3 = {"factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0, "original_positions": 8192}
# Blocks that route tokens as DeepSeek does where `model_name` begins so (layers/moe.py, get_topk).
_ROUTED_BY_NAME = ("deepseek3", "kimi-k2")


def block_of(model: ModelSpec) -> str:
    """`decoder_block`: the one whose layers are the model's."""
    if model.mla is not None:
        return "deepseek"
    if model.moe is not None:
        return "qwen3_moe" if model.qk_norm == "head" else "mixtral"
    if model.qk_norm == "head":
        return "qwen3"
    return "qwen2" if model.qkv_bias else "llama2"


def _in(*blocks: str) -> Callable[[ModelSpec], bool]:
    return lambda model: block_of(model) in blocks


def _const(value: Value) -> Callable[[ModelSpec], Value]:
    return lambda _: value


def _q_lora(model: ModelSpec) -> int:
    return (model.mla.q_lora_rank or 0) if model.mla else 0


def _bias(model: ModelSpec) -> str | None:
    if model.qkv_bias and block_of(model) != "qwen2":
        return f"biases of query, key and value in {block_of(model)} blocks"
    return None


def _theta(model: ModelSpec) -> Value:
    return int(model.rope.theta)


def _broken_theta(model: ModelSpec) -> str | None:
    return None if model.rope.theta.is_integer() else "a rotary base that is no whole number"


def _llama3(model: ModelSpec) -> str | None:
    other = [
        f"{name.replace('_', ' ')} {value_of(model, f'rope.scaling.{name}')}, not {usual:g}"
        for name, usual in _LLAMA3.items()
        if value_of(model, f"rope.scaling.{name}") != usual
    ]
    return (
        f"rotary positions are stretched by MaxText's own numbers ({'; '.join(other)})"
        if other
        else None
    )


def _mscale(model: ModelSpec) -> str | None:
    found = scaling(model)
    if found.mscale_all_dim in (None, found.mscale or 1.0):
        return None
    return (
        f"MaxText scales attention by mscale alone, not by mscale_all_dim {found.mscale_all_dim:g}"
    )


def _whole(name: str) -> dict[str, Any]:
    """A number of the stretching that MaxText has as a whole one."""

    def value(model: ModelSpec) -> int:
        return int(getattr(scaling(model), name))

    def refuses(model: ModelSpec) -> str | None:
        number = float(getattr(scaling(model), name))
        return None if number.is_integer() else f"{name} {number:g} of rotary positions, not whole"

    return {"value": value, "when": stretched("yarn"), "refuses": refuses}


def _attention_factor(model: ModelSpec) -> str | None:
    factor = scaling(model).attention_factor
    return None if factor is None else f"MaxText scales attention by mscale, not by {factor:g}"


def _std(model: ModelSpec) -> str | None:
    return f"weights start by their fan-in, not with a deviation of {model.init_std:g}"


def _dense(model: ModelSpec) -> int:
    return leading_dense(model) or 0


def _mixed(model: ModelSpec) -> str | None:
    first = leading_dense(model)
    if first is None:
        return "it has dense layers between those with experts"
    return "it has dense layers before those with experts" if first and not model.mla else None


def _shared(model: ModelSpec) -> int:
    return experts(model).shared_ffn // experts(model).ffn


def _shared_refused(model: ModelSpec) -> str | None:
    moe = experts(model)
    if not moe.shared_ffn:
        return None
    if not model.mla:
        return f"shared experts in {block_of(model)} blocks"
    return "shared experts that are not as wide as others" if moe.shared_ffn % moe.ffn else None


def _normalised(model: ModelSpec) -> str | None:
    """Softmax over the chosen experts sums to one, and so do DeepSeek's sigmoids in MaxText; its
    softmax over all experts does not."""
    moe = experts(model)
    if moe.normalised == (moe.score == "sigmoid" or not model.mla):
        return None
    return f"experts' weights that {'' if moe.normalised else 'do not '}sum to one"


def _plain_router(model: ModelSpec) -> str | None:
    moe = experts(model)
    if model.mla:
        return None
    if moe.score == "sigmoid":
        return f"sigmoid scores in {block_of(model)} blocks"
    return "a factor on the experts' weights" if moe.weight_scale != 1.0 else None


def _groups(name: str) -> Callable[[ModelSpec], Value]:
    return lambda model: getattr(model.moe, name) if experts(model).groups > 1 else -1


def _group_score(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.groups == 1 or moe.group_score == "top2":
        return None
    return "MaxText chooses groups of experts by their best two scores, not by the best one"


def _sequence_loss(model: ModelSpec) -> bool:
    moe = experts(model)
    return moe.aux_loss_over == "sequence" and moe.score == "sigmoid" and moe.aux_loss > 0


def _batch_loss(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.aux_loss and moe.aux_loss_over == "sequence" and moe.score != "sigmoid":
        return "MaxText's loss of load is over a batch, not over a sequence"
    return None


def model_name(model: ModelSpec) -> str | None:
    """`model_name`: `default` where the settings say all; of DeepSeek's blocks, which route by that
    name, the one whose settings are the model's; None where there is none."""
    if not model.mla:
        return str(default("model_name"))
    said = settings(MAXTEXT, model)
    for name in sorted(model_names(), key=len):
        known = model_config(name) or {}
        same = all(
            value == said.get(key, default(key)) for key, value in known.items() if key in _WRITTEN
        )
        if known.get("decoder_block") == "deepseek" and same and _routes(name, model):
            return name
    return None


def _routes(name: str, model: ModelSpec) -> bool:
    """Whether a name makes the router the model's."""
    return name.startswith(_ROUTED_BY_NAME) == experts(model).score_correction_bias


def _unnamed(model: ModelSpec) -> str | None:
    if model_name(model) is not None:
        return None
    return "its router follows from model_name, and none of MaxText's DeepSeek models is this one"


_KNOWN = {
    "qk-norm-head", "qkv-bias", "head-dim", "tied", "mla", "moe", "mixed", "shared-experts",
    "score-bias", "groups", "group-max", "sigmoid", "unnormalised", "weight-scale", "router-fp32",
    "aux-loss", "bias-update", "mtp", "rope-llama3", "rope-yarn", "capacity",
}  # fmt: skip
_ROPE = tuple(f"rope.scaling.{name}" for name in _LLAMA3)
MAXTEXT = (
    row("layer_kinds", "decoder_block", block_of),
    row("hidden", "base_emb_dim"),
    row("layers", "base_num_decoder_layers"),
    row("heads", "base_num_query_heads"),
    row("kv_heads", "base_num_kv_heads"),
    row("head_dim", "head_dim", when=lambda model: not model.mla),
    row("ffn", "base_mlp_dim", lambda model: model.ffn or experts(model).ffn),
    row("gated activation", "mlp_activations", lambda model: [model.activation, "linear"]),
    row("vocab", "vocab_size"),
    row("norm_eps", "normalization_layer_epsilon"),
    row("tied_embeddings", "logits_via_embedding"),
    row("tied_embeddings", "normalize_embedding_logits", _const(False),
        when=lambda model: model.tied_embeddings),
    row("qk_norm", "use_qk_norm", lambda model: model.qk_norm == "head", False),
    row("qkv_bias", "attention_bias", default=False, refuses=_bias),
    row("init_std", departs=_std),
    row("max_positions"),
    row("rope.theta", "rope_max_timescale", _theta, refuses=_broken_theta),
    row("rope.scaling.kind " + " ".join(_ROPE), "rope_type", _const("llama3.1"),
        when=stretched("llama3"), departs=_llama3),
    row("rope.scaling.kind", "rope_type", _const("yarn"), when=stretched("yarn")),
    row("rope.scaling.factor", "rope_factor", **_whole("factor")),
    row("rope.scaling.beta_fast", "beta_fast", **_whole("beta_fast")),
    row("rope.scaling.beta_slow", "beta_slow", **_whole("beta_slow")),
    row("rope.scaling.attention_factor", when=stretched("yarn"), departs=_attention_factor),
    row("rope.scaling.original_positions", "original_max_position_embeddings",
        when=stretched("yarn")),
    row("max_positions", "max_position_embeddings", when=stretched("yarn")),
    row("rope.scaling.truncate", "rope_truncate", when=stretched("yarn")),
    row("rope.scaling.mscale rope.scaling.mscale_all_dim", "mscale",
        lambda model: scaling(model).mscale or 1.0, when=stretched("yarn"), departs=_mscale),
    row("mla.kv_lora_rank", "attention_type", _const("mla"), when=has_mla),
    row("mla.q_lora_rank", "q_lora_rank", _q_lora, when=has_mla),
    *(row(f"mla.{name}", name)
      for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    row("moe.experts", "num_experts"),
    row("moe.top_k", "num_experts_per_tok"),
    row("moe.ffn", "base_moe_mlp_dim"),
    row("layer_kinds", "first_num_dense_layers", _dense, 0, when=has_moe, refuses=_mixed),
    row("moe.shared_ffn", "shared_experts", _shared, 0, when=has_moe, refuses=_shared_refused),
    row("moe.normalised", "norm_topk_prob", lambda model: not model.mla, False, when=has_moe,
        refuses=_normalised),
    row("moe.score moe.weight_scale", "routed_score_func", lambda m: experts(m).score,
        when=has_mla, refuses=_plain_router),
    row("moe.weight_scale moe.score", "routed_scaling_factor", lambda m: experts(m).weight_scale,
        1.0, when=has_moe, refuses=_plain_router),
    row("moe.score_correction_bias", "routed_bias", default=False),
    row("moe.bias_update_rate", "routed_bias_update_rate", default=0.0),
    row("moe.groups", "n_routing_groups", _groups("groups"), -1, when=has_moe),
    row("moe.top_groups moe.group_score", "topk_routing_group", _groups("top_groups"), -1,
        when=has_moe, departs=_group_score),
    row("moe.router_fp32", "float32_gate_logits", default=False),
    row("moe.aux_loss", "load_balance_loss_weight", default=0.0),
    row("moe.aux_loss_over moe.aux_loss", "moe_use_megatron_seq_aux_loss", _sequence_loss, False,
        when=has_moe, departs=_batch_loss),
    row("moe.capacity_factor", "capacity_factor", lambda m: experts(m).capacity_factor or -1.0,
        -1.0, when=has_moe),
    row("mtp_layers", "mtp_num_layers", default=0),
    row("mla.kv_lora_rank", when=has_mla, refuses=_unnamed),
    *lacking(_KNOWN),
)  # fmt: skip
_WRITTEN = frozenset(entry.key for entry in MAXTEXT if entry.key)
