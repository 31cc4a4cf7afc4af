"""How Megatron-LM and Megatron-Bridge say a model: one table for both.

Flags and defaults: megatron-core 0.19, `megatron/training/arguments.py`, `argument_utils.py` and
`core/transformer/transformer_config.py`; fields of Megatron-Bridge 0.6.2: `gpt_provider.py`,
`mla_provider.py`. Bridge's fields are all written, so that its own defaults do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    Row,
    attention_scale,
    experts,
    has_mla,
    has_moe,
    has_rope,
    scaling,
    scaling_kind,
    stretched,
)
from planner.launch.architecture import (
    without as absent,
)
from planner.launch.settings_text import Value

# Attention in chunks, layers without positions: the catalogue costs them as a sliding window.
_CHUNKED_FAMILY = "llama4_text"
# What `F.gelu` under Megatron's fused bias is: the tanh approximation.
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_SILU = ("silu", "swish")
_SQUARED_RELU = ("relu2", "squared_relu")
# Factor and lengths that `_apply_scaling` of rotary_pos_embedding.py has, and that no flag reaches:
# --rope-scaling-factor is parsed and not handed on (argument_utils.py, gpt_config_from_args).
_LLAMA3 = (8192, 1.0, 4.0)
_LLAMA3_FACTOR = 8.0
# MLATransformerConfig's length and rotations, which have no flag.
_MLA_YARN = (4096, 32.0, 1.0)


@dataclass(frozen=True, slots=True)
class MegatronRow(Row):
    """`key`: the flag; `field`: Bridge's, below `model.`; `bridge`: its value there if another."""

    field: str = ""
    bridge: Callable[[ModelSpec], Value] | None = None
    # Why the command line has not what Bridge has.
    no_flag: Callable[[ModelSpec], str | None] = lambda _: None

    def override(self, model: ModelSpec) -> Value:
        """Bridge's value."""
        return (self.bridge or self.value)(model)


def _row(
    fields: str,
    flag: str = "",
    field: str = "",
    value: Callable[[ModelSpec], Value] = lambda _: None,
    default: Value = ...,  # type: ignore[assignment]
    **more: object,
) -> MegatronRow:
    return MegatronRow(tuple(fields.split()), flag, value, default, field=field, **more)  # type: ignore[arg-type]


def without(name: str, phrase: str) -> MegatronRow:
    """A field that Megatron does not know."""
    own = absent(name, phrase)
    return MegatronRow(own.fields, refuses=own.refuses)


def _is(value: bool) -> bool | None:
    """A switch: present or not."""
    return True if value else None


def _mla(name: str) -> Callable[[ModelSpec], Value]:
    return lambda model: getattr(model.mla, name)


def _moe(name: str) -> Callable[[ModelSpec], Value]:
    return lambda model: getattr(model.moe, name)


def _scaling(name: str) -> Callable[[ModelSpec], Value]:
    return lambda model: getattr(model.rope.scaling, name)


def _unless(right: Callable[[ModelSpec], bool], phrase: str) -> Callable[[ModelSpec], str | None]:
    return lambda model: None if right(model) else phrase


# --- trunk ----------------------------------------------------------------------------------


def is_clamped(model: ModelSpec) -> bool:
    """Whether the SwiGLU of the experts is gpt-oss's clamped and shifted one."""
    return model.moe is not None and model.moe.clamp is not None


def _width(model: ModelSpec) -> int:
    return model.ffn or (model.moe.ffn if model.moe else 0)


def _activation(model: ModelSpec) -> str:
    """Bridge's name of the activation; empty where Megatron has none such."""
    if model.gated:
        return ("quick_gelu" if is_clamped(model) else "silu") if model.activation in _SILU else ""
    if model.activation in _SQUARED_RELU:
        return "squared_relu"
    return "gelu" if model.activation in _GELU else ""


def _no_activation(model: ModelSpec) -> str | None:
    if _activation(model) and not (is_clamped(model) and not model.gated):
        return None
    kind = f"gated {model.activation}" if model.gated else model.activation
    return f"the activation {kind!r}: it has swiglu, quick-geglu, gelu, squared relu"


def linear_bias(model: ModelSpec) -> bool | None:
    """Whether linear layers have biases; None where Megatron has no such choice."""
    found = {model.attention_out_bias}
    if any(kind.ffn == "dense" for kind in model.kinds):
        found.add(model.mlp_bias)
    if model.moe is not None:
        found |= {model.moe.expert_bias, model.moe.router_bias}
    if found == {True} and model.qkv_bias:
        return True
    return False if found == {False} else None


def _no_norm(model: ModelSpec) -> str | None:
    if model.norm_bias == (model.norm == "layernorm"):
        return None
    return f"{model.norm} {'with' if model.norm_bias else 'without'} a bias"


_TRUNK = (
    _row("layers", "--num-layers", "num_layers", lambda m: m.layers),
    _row("hidden", "--hidden-size", "hidden_size", lambda m: m.hidden),
    _row("ffn", "--ffn-hidden-size", "ffn_hidden_size", _width),
    _row("gated activation", "--swiglu", "", lambda m: _is(_activation(m) == "silu"), None,
         refuses=_no_activation),
    _row("gated activation moe.clamp", "--quick-geglu", "",
         lambda m: _is(_activation(m) == "quick_gelu"), None),
    _row("gated activation", "--squared-relu", "",
         lambda m: _is(_activation(m) == "squared_relu"), None),
    _row("activation", "", "activation_func", _activation),
    _row("gated", "", "gated_linear_unit", lambda m: m.gated),
    _row("moe.clamp", "--glu-linear-offset", "glu_linear_offset", lambda _: 1.0, when=is_clamped),
    _row("moe.clamp", "--activation-func-clamp-value", "activation_func_clamp_value",
         _moe("clamp"), when=is_clamped),
    _row("norm norm_bias", "--normalization", "normalization",
         lambda m: "RMSNorm" if m.norm == "rmsnorm" else "LayerNorm", refuses=_no_norm),
    _row("norm_eps", "--norm-epsilon", "layernorm_epsilon", lambda m: m.norm_eps),
    _row("norm_weight",
         refuses=_unless(lambda m: m.norm_weight, "norms without a scale")),
    _row("block", refuses=lambda m: None if m.block == "pre" else
         f"norms placed {m.block!r}: its layers have one before each branch"),
    _row("attention_out_bias mlp_bias moe.expert_bias moe.router_bias", "--disable-bias-linear",
         "add_bias_linear", lambda m: _is(not linear_bias(m)), None,
         bridge=lambda m: bool(linear_bias(m)),
         refuses=_unless(lambda m: linear_bias(m) is not None,
                         "biases on some products only: it has all of them, or q, k and v alone")),
    _row("qkv_bias", "--add-qkv-bias", "add_qkv_bias",
         lambda m: _is(m.qkv_bias and not linear_bias(m)), None, bridge=lambda m: m.qkv_bias),
    without("head_bias", "a bias of the LM head"),
    _row("tied_embeddings", "--untie-embeddings-and-output-weights",
         "share_embeddings_and_output_weights", lambda m: _is(not m.tied_embeddings), None,
         bridge=lambda m: m.tied_embeddings),
    _row("vocab", "--vocab-size", "vocab_size", lambda m: m.vocab),
    _row("init_std", "--init-method-std", "init_method_std", lambda m: m.init_std),
)  # fmt: skip


# --- positions ------------------------------------------------------------------------------


def _position(model: ModelSpec) -> str:
    if model.position == "rope" and scaling_kind(model) == "yarn" and not has_mla(model):
        return "yarn"
    return {"learned": "learned_absolute"}.get(model.position, model.position)


def _yarn_alone(model: ModelSpec) -> bool:
    return stretched("yarn")(model) and not has_mla(model)


def _latent_rope(model: ModelSpec) -> bool:
    return has_mla(model) and has_rope(model)


def _latent_yarn(model: ModelSpec) -> bool:
    return has_mla(model) and stretched("yarn")(model)


def _no_position(model: ModelSpec) -> str | None:
    if model.family == _CHUNKED_FAMILY:
        return "attention in chunks and layers without positions"
    if model.position == "alibi":
        return "ALiBi: its positions are rotary, learned or none"
    if has_mla(model) and not has_rope(model):
        return f"latent attention with {model.position} positions: it has rotary ones there"
    if model.mtp_layers and _position(model) not in ("rope", "none"):
        return f"multi-token prediction with {_position(model)} positions"
    return None


def _no_stretch(model: ModelSpec) -> str | None:
    kind = scaling_kind(model)
    if kind in ("dynamic", "longrope"):
        return f"rotary positions stretched by {kind!r}"
    if kind in ("linear", "llama3") and has_mla(model):
        return f"latent attention with rotary positions stretched by {kind!r}"
    if kind == "linear" and scaling(model).factor % 1:
        return f"rotary positions divided by {scaling(model).factor:g}: it divides by whole numbers"
    if kind == "llama3":
        own = scaling(model)
        if (own.original_positions, own.low_frequency, own.high_frequency) != _LLAMA3:
            return "Llama 3's rotary scaling with other lengths than 8192, 1 and 4"
    return None


def _no_yarn(model: ModelSpec) -> str | None:
    """What yarn cannot be given, on the command line or anywhere."""
    if scaling_kind(model) != "yarn":
        return None
    own = scaling(model)
    if own.attention_factor is not None:
        return "yarn with an attention factor of its own: scores follow from mscale"
    if has_mla(model) and not own.truncate:
        return "latent attention whose yarn keeps fractions of rotations"
    if own.original_positions is None:
        return "yarn without the length that it starts from"
    return None


def _no_yarn_flag(model: ModelSpec) -> str | None:
    if scaling_kind(model) != "yarn" or not has_mla(model):
        return None
    own = scaling(model)
    given = (own.original_positions, own.beta_fast, own.beta_slow)
    if given == _MLA_YARN:
        return None
    length, fast, slow = given
    return (
        f"yarn of latent attention from {length} positions between {slow:g} and {fast:g} "
        "rotations: no flag reaches these"
    )


def _no_llama3_flag(model: ModelSpec) -> str | None:
    if scaling_kind(model) == "llama3" and scaling(model).factor != _LLAMA3_FACTOR:
        return (
            f"Llama 3's rotary scaling by {scaling(model).factor:g}: --rope-scaling-factor is read "
            "and not handed on, the model takes 8"
        )
    return None


def _latent_factor(model: ModelSpec) -> float:
    """A factor of one is the plain rotation."""
    return scaling(model).factor if model.rope.scaling else 1.0


def _latent_mscale(name: str, plain: float) -> Callable[[ModelSpec], Value]:
    def value(model: ModelSpec) -> float:
        stated = getattr(model.rope.scaling, name, None)
        return plain if stated is None else stated

    return value


_POSITIONS = (
    _row("position rope.scaling.kind", "--position-embedding-type", "position_embedding_type",
         _position, refuses=_no_position),
    _row("max_positions", "--max-position-embeddings", "", lambda m: m.max_positions,
         when=lambda m: m.position == "learned"),
    _row("rope.theta", "--rotary-base", "rotary_base", lambda m: _whole(m.rope.theta),
         when=has_rope,
         no_flag=_unless(lambda m: m.rope.theta % 1 == 0, "a rotary base that is no whole number")),
    without("rope.local_theta", "a rotary base of {value:g} in layers with windows"),
    _row("rotary_share", "--rotary-percent", "rotary_percent", lambda m: m.rotary_share, 1.0,
         when=lambda m: has_rope(m) and not has_mla(m)),
    _row("rotary_share", when=_latent_rope,
         refuses=_unless(lambda m: m.rotary_share == 1.0, "latent heads that rotate in part")),
    _row("rope.scaling.kind rope.scaling.long_factor rope.scaling.short_factor",
         refuses=_no_stretch, when=has_rope),
    _row("rope.scaling.kind rope.scaling.original_positions rope.scaling.low_frequency "
         "rope.scaling.high_frequency", "--use-rope-scaling", "rope_scaling",
         lambda m: _is(scaling_kind(m) == "llama3"), None,
         bridge=lambda m: scaling_kind(m) == "llama3",
         when=lambda m: has_rope(m) and not has_mla(m)),
    _row("rope.scaling.factor", "", "rope_scaling_factor", _scaling("factor"),
         when=stretched("llama3"), no_flag=_no_llama3_flag),
    _row("rope.scaling.factor", "--rotary-seq-len-interpolation-factor",
         "seq_len_interpolation_factor",
         lambda m: _whole(scaling(m).factor), when=stretched("linear")),
    _row("rope.scaling.truncate rope.scaling.attention_factor rope.scaling.original_positions",
         refuses=_no_yarn, when=has_rope),
    _row("rope.scaling.factor", "--rotary-scaling-factor", "yarn_rotary_scaling_factor",
         _scaling("factor"), when=_yarn_alone),
    _row("rope.scaling.original_positions", "--yarn-original-max-position-embeddings",
         "yarn_original_max_position_embeddings", _scaling("original_positions"), when=_yarn_alone),
    _row("rope.scaling.beta_fast", "--yarn-beta-fast", "yarn_beta_fast", _scaling("beta_fast"),
         when=_yarn_alone),
    _row("rope.scaling.beta_slow", "--yarn-beta-slow", "yarn_beta_slow", _scaling("beta_slow"),
         when=_yarn_alone),
    _row("rope.scaling.mscale", "--mscale", "yarn_mscale", _latent_mscale("mscale", 1.0),
         when=_yarn_alone),
    _row("rope.scaling.mscale_all_dim", "--mscale-all-dim", "yarn_mscale_all_dim",
         _latent_mscale("mscale_all_dim", 0.0), when=_yarn_alone),
    _row("rope.scaling.truncate", "--no-yarn-correction-range-round-to-int",
         "yarn_correction_range_round_to_int", lambda m: _is(not scaling(m).truncate), None,
         bridge=_scaling("truncate"), when=_yarn_alone),
    _row("rope.scaling.kind", "--rope-type", "rope_type", lambda _: "yarn", when=_latent_rope),
    _row("rope.scaling.factor", "--rotary-scaling-factor", "rotary_scaling_factor", _latent_factor,
         when=_latent_rope),
    _row("rope.scaling.original_positions", "", "original_max_position_embeddings",
         _scaling("original_positions"), when=_latent_yarn,
         no_flag=_no_yarn_flag),
    _row("rope.scaling.beta_fast", "", "beta_fast", _scaling("beta_fast"),
         when=_latent_yarn),
    _row("rope.scaling.beta_slow", "", "beta_slow", _scaling("beta_slow"),
         when=_latent_yarn),
    _row("rope.scaling.mscale", "--mscale", "mscale", _latent_mscale("mscale", 1.0),
         when=_latent_rope),
    _row("rope.scaling.mscale_all_dim", "--mscale-all-dim", "mscale_all_dim",
         _latent_mscale("mscale_all_dim", 0.0), when=_latent_rope),
)  # fmt: skip


def _whole(number: float) -> int | float:
    return int(number) if number % 1 == 0 else number


# --- attention ------------------------------------------------------------------------------


def _grouped(model: ModelSpec) -> bool:
    return not has_mla(model)


def window_marks(model: ModelSpec) -> list[bool]:
    """Which layers have a sliding window; empty if none has."""
    slides = [kind.attention == "sliding" for kind in model.kind_sequence]
    return slides if any(slides) else []


def _slides(model: ModelSpec) -> bool:
    return bool(window_marks(model))


def _no_qk_norm(model: ModelSpec) -> str | None:
    if model.qk_norm == "full":
        return "a norm over the whole width of queries and keys: its own is over a head"
    if model.qk_norm == "head" and has_mla(model):
        return "a norm over heads in latent attention: it has one of the compressed ones"
    return None


_ATTENTION = (
    _row("heads", "--num-attention-heads", "num_attention_heads", lambda m: m.heads),
    _row("head_dim", "--kv-channels", "kv_channels", lambda m: m.head_dim, when=_grouped),
    _row("kv_heads", "--group-query-attention", "", lambda m: _is(m.kv_heads != m.heads), None,
         when=_grouped),
    _row("kv_heads", "--num-query-groups", "num_query_groups", lambda m: m.kv_heads,
         when=lambda m: _grouped(m) and m.kv_heads != m.heads),
    _row("kv_heads", "", "num_query_groups", lambda m: m.kv_heads,
         when=lambda m: _grouped(m) and m.kv_heads == m.heads),
    _row("mla.kv_lora_rank", "--multi-latent-attention", "multi_latent_attention", lambda _: True,
         when=has_mla),
    _row("mla.q_lora_rank", "--q-lora-rank", "q_lora_rank", _mla("q_lora_rank"), None,
         when=has_mla),
    _row("mla.kv_lora_rank", "--kv-lora-rank", "kv_lora_rank", _mla("kv_lora_rank"), when=has_mla),
    _row("mla.qk_nope_head_dim", "--qk-head-dim", "qk_head_dim", _mla("qk_nope_head_dim"),
         when=has_mla),
    _row("mla.qk_rope_head_dim", "--qk-pos-emb-head-dim", "qk_pos_emb_head_dim",
         _mla("qk_rope_head_dim"), when=has_mla),
    _row("mla.v_head_dim", "--v-head-dim", "v_head_dim", _mla("v_head_dim"), when=has_mla),
    # In latent attention: the norms of the compressed queries, keys and values.
    _row("qk_norm", "--qk-layernorm", "qk_layernorm",
         lambda m: _is(has_mla(m) or m.qk_norm == "head"), None,
         bridge=lambda m: has_mla(m) or m.qk_norm == "head", refuses=_no_qk_norm),
    without("qk_l2_norm", "queries and keys divided by their length in some layers"),
    _row("attention_sinks", "--softmax-type", "softmax_type",
         lambda m: "learnable" if m.attention_sinks else "vanilla", "vanilla"),
    _row("attention_scale", "", "softmax_scale", attention_scale,
         when=lambda m: attention_scale(m) is not None,
         no_flag=lambda m: None if attention_scale(m) is None else
         f"scores multiplied by {attention_scale(m):g}: no flag reaches its softmax_scale",
         refuses=lambda m: "latent attention with a scale of its own" if has_mla(m) else None),
    without("attention_softcap", "scores capped at {value:g}"),
    without("logits_softcap", "logits capped at {value:g}"),
    without("qkv_clip", "queries, keys and values cut at {value:g}"),
    # A window of w tokens sees w - 1 before its own.
    _row("sliding_window layer_kinds", "--window-size", "window_size",
         lambda m: f"{(m.sliding_window or 1) - 1},0",
         bridge=lambda m: [(m.sliding_window or 1) - 1, 0], when=_slides),
    _row("layer_kinds", "--window-attn-skip-freq", "window_attn_skip_freq",
         lambda m: pattern(window_marks(m)),
         bridge=lambda m: [int(mark) for mark in window_marks(m)],
         when=lambda m: _slides(m) and not all(window_marks(m))),
)  # fmt: skip


def expert_marks(model: ModelSpec) -> list[bool]:
    """Which layers have experts."""
    return [kind.ffn == "moe" for kind in model.kind_sequence]


def pattern(marks: list[bool]) -> str:
    """A mark a layer as Megatron evaluates it: `([0]*3+[1]*58)`."""
    runs = [(int(mark), len(list(run))) for mark, run in groupby(marks)]
    period = _period(marks)
    if period is not None:
        unit = ",".join(str(int(mark)) for mark in marks[:period])
        return f"([{unit}]*{len(marks) // period})"
    return "(" + "+".join(f"[{mark}]*{count}" for mark, count in runs) + ")"


def _period(marks: list[bool]) -> int | None:
    """Smallest number of layers after which all marks repeat, if they do so exactly."""
    for period in range(2, len(marks) // 2 + 1):
        if len(marks) % period == 0 and marks == marks[:period] * (len(marks) // period):
            return period
    return None


# --- experts --------------------------------------------------------------------------------


def _balancing(model: ModelSpec) -> str:
    moe = experts(model)
    if not moe.aux_loss:
        return "none"
    return "seq_aux_loss" if moe.aux_loss_over == "sequence" else "aux_loss"


def _no_weights(model: ModelSpec) -> str | None:
    """moe_utils.py, topk_routing_with_score_function."""
    moe = experts(model)
    if moe.score == "sigmoid" and not moe.normalised and moe.top_k > 1:
        return "sigmoid scores that are not divided by their sum"
    if moe.score == "sigmoid" and moe.normalised and moe.top_k == 1:
        return "one expert a token whose sigmoid score is divided by itself"
    if moe.score == "softmax" and moe.normalised and moe.top_k == 1:
        return "one expert a token whose softmax score is divided by itself"
    return None


def _no_bias(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.score_correction_bias and moe.score == "softmax":
        return "a correction bias of softmax scores: it has one of sigmoid scores"
    return None


def _no_groups(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.groups == 1:
        return None
    if moe.experts % moe.groups or moe.top_groups > moe.groups:
        return f"{moe.top_groups} of {moe.groups} groups of {moe.experts} experts"
    if moe.group_score == "top2" and moe.top_k // moe.top_groups != 2:
        return (
            f"groups of experts chosen by their best two scores: it takes the best top-k // groups "
            f"= {moe.top_k // moe.top_groups}"
        )
    if moe.score == "softmax" and moe.normalised:
        return "groups of experts chosen by softmax scores that are then divided by their sum"
    return None


def _group_departure(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.groups == 1 or moe.group_score == "top2":
        return None
    return (
        f"groups of experts are chosen by the sum of their best {moe.top_k // moe.top_groups} "
        "scores, not by the best one"
    )


def _in_groups(model: ModelSpec) -> bool:
    return has_moe(model) and experts(model).groups > 1


def _with_bias(model: ModelSpec) -> bool:
    return has_moe(model) and experts(model).score_correction_bias


_EXPERTS = (
    _row("moe.experts", "--num-experts", "num_moe_experts", _moe("experts"), when=has_moe),
    _row("moe.top_k", "--moe-router-topk", "moe_router_topk", _moe("top_k"), when=has_moe),
    _row("moe.ffn", "--moe-ffn-hidden-size", "moe_ffn_hidden_size", _moe("ffn"), when=has_moe),
    _row("layer_kinds", "--moe-layer-freq", "moe_layer_freq", lambda m: pattern(expert_marks(m)),
         bridge=lambda m: [int(mark) for mark in expert_marks(m)],
         when=lambda m: has_moe(m) and not all(expert_marks(m))),
    _row("layer_kinds", "", "moe_layer_freq", lambda _: 1,
         when=lambda m: has_moe(m) and all(expert_marks(m))),
    _row("moe.shared_ffn", "--moe-shared-expert-intermediate-size",
         "moe_shared_expert_intermediate_size", _moe("shared_ffn"),
         when=lambda m: has_moe(m) and experts(m).shared_ffn > 0),
    _row("moe.shared_gate", "--moe-shared-expert-gate", "moe_shared_expert_gate",
         lambda m: _is(experts(m).shared_gate), None, bridge=_moe("shared_gate"),
         when=lambda m: has_moe(m) and experts(m).shared_ffn > 0),
    _row("moe.score", "--moe-router-score-function", "moe_router_score_function", _moe("score"),
         when=has_moe),
    _row("moe.normalised", "--moe-router-pre-softmax", "moe_router_pre_softmax",
         lambda m: _is(experts(m).score == "softmax" and not experts(m).normalised), None,
         bridge=lambda m: experts(m).score == "softmax" and not experts(m).normalised, when=has_moe,
         refuses=_no_weights),
    _row("moe.weight_scale", "--moe-router-topk-scaling-factor", "moe_router_topk_scaling_factor",
         _moe("weight_scale"), when=lambda m: has_moe(m) and experts(m).weight_scale != 1.0),
    _row("moe.weights_on_input", "--moe-apply-probs-on-input", "moe_apply_probs_on_input",
         lambda m: _is(experts(m).weights_on_input), None, bridge=_moe("weights_on_input"),
         when=has_moe,
         refuses=lambda m: "weights on the inputs of several experts a token"
         if experts(m).weights_on_input and experts(m).top_k > 1 else None),
    _row("moe.groups", "--moe-router-num-groups", "moe_router_num_groups", _moe("groups"),
         when=_in_groups, refuses=_no_groups),
    _row("moe.top_groups", "--moe-router-group-topk", "moe_router_group_topk", _moe("top_groups"),
         when=_in_groups),
    _row("moe.group_score", when=has_moe, departs=_group_departure),
    _row("moe.score_correction_bias", "--moe-router-enable-expert-bias",
         "moe_router_enable_expert_bias", lambda m: _is(experts(m).score_correction_bias), None,
         bridge=_moe("score_correction_bias"), when=has_moe, refuses=_no_bias),
    _row("moe.bias_update_rate", "--moe-router-bias-update-rate", "moe_router_bias_update_rate",
         _moe("bias_update_rate"), when=_with_bias),
    _row("moe.router_fp32", "--moe-router-dtype", "moe_router_dtype", lambda _: "fp32",
         when=lambda m: has_moe(m) and experts(m).router_fp32),
    _row("moe.aux_loss moe.aux_loss_over", "--moe-router-load-balancing-type",
         "moe_router_load_balancing_type", _balancing, when=has_moe),
    _row("moe.aux_loss", "--moe-aux-loss-coeff", "moe_aux_loss_coeff", _moe("aux_loss"),
         when=lambda m: has_moe(m) and experts(m).aux_loss > 0),
    _row("moe.z_loss", "--moe-z-loss-coeff", "moe_z_loss_coeff", _moe("z_loss"),
         when=lambda m: has_moe(m) and experts(m).z_loss > 0),
    _row("moe.capacity_factor", "--moe-expert-capacity-factor", "moe_expert_capacity_factor",
         _moe("capacity_factor"),
         when=lambda m: has_moe(m) and experts(m).capacity_factor is not None,
         refuses=lambda _: "experts that drop tokens: plans are costed without"),
    _row("mtp_layers", "--mtp-num-layers", "mtp_num_layers", lambda m: m.mtp_layers,
         when=lambda m: m.mtp_layers > 0),
)  # fmt: skip

GROUPS: tuple[tuple[str, tuple[MegatronRow, ...]], ...] = (
    ("model", (*_TRUNK, *_POSITIONS)),
    ("attention", _ATTENTION),
    ("experts", _EXPERTS),
)
MEGATRON: tuple[MegatronRow, ...] = tuple(own for _, rows in GROUPS for own in rows)


def _as_flag(own: MegatronRow) -> Row:
    """The row of the command line: what Bridge alone can say is refused."""
    return Row(
        own.fields, own.key, own.value, own.default, own.when,
        lambda model: own.refuses(model) or own.no_flag(model), own.departs,
    )  # fmt: skip


def _as_field(own: MegatronRow) -> Row:
    """The row of Megatron-Bridge, always written."""
    key = f"model.{own.field}" if own.field else ""
    return Row(own.fields, key, own.override, when=own.when, refuses=own.refuses,
               departs=own.departs)  # fmt: skip


FLAGS: tuple[Row, ...] = tuple(_as_flag(own) for own in MEGATRON)
BRIDGE: tuple[Row, ...] = tuple(_as_field(own) for own in MEGATRON)
