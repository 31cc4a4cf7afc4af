"""How Megatron-LM and Megatron-Bridge say a model: one table for both.

Flags and defaults: megatron-core 0.19, `megatron/training/arguments.py`, `argument_utils.py` and
`core/transformer/transformer_config.py`; fields of Megatron-Bridge 0.6.2: `gpt_provider.py`,
`mla_provider.py`. Bridge's fields are all written, so that its own defaults do not matter.
"""

from __future__ import annotations

from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    attention_scale,
    constants,
    experts,
    has_mla,
    has_moe,
    nothing,
)
from planner.launch.dialects.megatron.positions import POSITIONS
from planner.launch.dialects.megatron.row import (
    MegatronRow,
    pattern,
    row,
    switch,
    unless,
    without,
    yes,
)
from planner.launch.dialects.megatron.states import STATES, is_hybrid

# What `F.gelu` under Megatron's fused bias is: the tanh approximation.
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_SILU = ("silu", "swish")
_SQUARED_RELU = ("relu2", "squared_relu")


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


SWIGLU = switch("gated activation", "--swiglu", "", lambda m: _activation(m) == "silu",
                refuses=_no_activation)  # fmt: skip
QUICK_GEGLU = switch(
    "gated activation moe.clamp", "--quick-geglu", "", lambda m: _activation(m) == "quick_gelu"
)
SQUARED_RELU = switch(
    "gated activation", "--squared-relu", "", lambda m: _activation(m) == "squared_relu"
)

_TRUNK = (
    row("layers", "--num-layers", "num_layers", when=lambda m: not is_hybrid(m)),
    row("hidden", "--hidden-size", "hidden_size"),
    row("ffn", "--ffn-hidden-size", "ffn_hidden_size", _width),
    SWIGLU,
    QUICK_GEGLU,
    SQUARED_RELU,
    row("activation", "", "activation_func", _activation),
    row("gated", "", "gated_linear_unit"),
    row("moe.clamp", "--glu-linear-offset", "glu_linear_offset", lambda _: 1.0, when=is_clamped),
    row("moe.clamp", "--activation-func-clamp-value", "activation_func_clamp_value",
        when=is_clamped),
    row("norm norm_bias", "--normalization", "normalization",
        lambda m: "RMSNorm" if m.norm == "rmsnorm" else "LayerNorm", refuses=_no_norm),
    row("norm_eps", "--norm-epsilon", "layernorm_epsilon"),
    row("norm_weight", refuses=unless(lambda m: m.norm_weight, "norms without a scale")),
    row("block", refuses=lambda m: None if m.block == "pre" else
        f"norms placed {m.block!r}: its layers have one before each branch"),
    row("attention_out_bias mlp_bias moe.expert_bias moe.router_bias", "--disable-bias-linear",
        "add_bias_linear", lambda m: yes(not linear_bias(m)), None,
        bridge=lambda m: bool(linear_bias(m)), refuses=unless(lambda m: linear_bias(m) is not None,
        "biases on some products only: it has all of them, or q, k and v alone")),
    row("qkv_bias", "--add-qkv-bias", "add_qkv_bias",
        lambda m: yes(m.qkv_bias and not linear_bias(m)), None, bridge=lambda m: m.qkv_bias),
    without("head_bias", "a bias of the LM head"),
    row("tied_embeddings", "--untie-embeddings-and-output-weights",
        "share_embeddings_and_output_weights", lambda m: yes(not m.tied_embeddings), None,
        bridge=lambda m: m.tied_embeddings),
    row("vocab", "--vocab-size", "vocab_size"),
    row("constants", refuses=constants),
    row("init_std", "--init-method-std", "init_method_std"),
)  # fmt: skip


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


GROUPED = switch(
    "kv_heads", "--group-query-attention", "", lambda m: m.kv_heads != m.heads, when=_grouped
)
LATENT = row("mla.kv_lora_rank", "--multi-latent-attention", "multi_latent_attention",
             lambda _: True, when=has_mla)  # fmt: skip
# A number N: every N-th layer sees all; a list: 1 for those that slide.
WINDOW_SKIPS = row("layer_kinds", "--window-attn-skip-freq", "window_attn_skip_freq",
                   lambda m: pattern(window_marks(m)),
                   bridge=lambda m: [int(mark) for mark in window_marks(m)],
                   when=lambda m: _slides(m) and not all(window_marks(m)))  # fmt: skip

_ATTENTION = (
    row("heads", "--num-attention-heads", "num_attention_heads"),
    row("head_dim", "--kv-channels", "kv_channels", when=_grouped),
    GROUPED,
    row("kv_heads", "--num-query-groups", "num_query_groups",
        when=lambda m: _grouped(m) and m.kv_heads != m.heads),
    row("kv_heads", "", "num_query_groups", when=lambda m: _grouped(m) and m.kv_heads == m.heads),
    LATENT,
    row("mla.q_lora_rank", "--q-lora-rank", "q_lora_rank", default=None),
    row("mla.kv_lora_rank", "--kv-lora-rank", "kv_lora_rank"),
    row("mla.qk_nope_head_dim", "--qk-head-dim", "qk_head_dim"),
    row("mla.qk_rope_head_dim", "--qk-pos-emb-head-dim", "qk_pos_emb_head_dim"),
    row("mla.v_head_dim", "--v-head-dim", "v_head_dim"),
    # In latent attention: the norms of the compressed queries, keys and values.
    switch("qk_norm", "--qk-layernorm", "qk_layernorm",
        lambda m: has_mla(m) or m.qk_norm == "head", refuses=_no_qk_norm),
    without("qk_l2_norm", "queries and keys divided by their length in some layers"),
    row("attention_sinks", "--softmax-type", "softmax_type",
        lambda m: "learnable" if m.attention_sinks else "vanilla", "vanilla"),
    row("attention_scale", "", "softmax_scale", attention_scale,
        when=lambda m: attention_scale(m) is not None,
        no_flag=lambda m: None if attention_scale(m) is None else
        f"scores multiplied by {attention_scale(m):g}: no flag reaches its softmax_scale",
        refuses=lambda m: "latent attention with a scale of its own" if has_mla(m) else None),
    without("attention_softcap", "scores capped at {value:g}"),
    without("logits_softcap", "logits capped at {value:g}"),
    without("qkv_clip", "queries, keys and values cut at {value:g}"),
    # A window of w tokens sees w - 1 before its own.
    row("sliding_window layer_kinds", "--window-size", "window_size",
        lambda m: f"{(m.sliding_window or 1) - 1},0",
        bridge=lambda m: [(m.sliding_window or 1) - 1, 0], when=_slides),
    WINDOW_SKIPS,
)  # fmt: skip


def expert_marks(model: ModelSpec) -> list[bool]:
    """Which layers have experts."""
    return [kind.ffn == "moe" for kind in model.kind_sequence]


# --- experts --------------------------------------------------------------------------------


# Over what the loss that balances experts is taken -> its name.
LOSSES = {"batch": "aux_loss", "sequence": "seq_aux_loss"}


def _balancing(model: ModelSpec) -> str:
    moe = experts(model)
    return LOSSES[moe.aux_loss_over] if moe.aux_loss else "none"


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


EXPERT_LAYERS = row("layer_kinds", "--moe-layer-freq", "moe_layer_freq",
    lambda m: pattern(expert_marks(m)), bridge=lambda m: [int(mark) for mark in expert_marks(m)],
    when=lambda m: has_moe(m) and not all(expert_marks(m)) and not is_hybrid(m))  # fmt: skip
BALANCING = row("moe.aux_loss moe.aux_loss_over", "--moe-router-load-balancing-type",
                "moe_router_load_balancing_type", _balancing, when=has_moe)  # fmt: skip

_EXPERTS = (
    row("moe.experts", "--num-experts", "num_moe_experts"),
    row("moe.top_k", "--moe-router-topk", "moe_router_topk"),
    row("moe.ffn", "--moe-ffn-hidden-size", "moe_ffn_hidden_size"),
    EXPERT_LAYERS,
    row("layer_kinds", "", "moe_layer_freq", lambda _: 1,
        when=lambda m: has_moe(m) and all(expert_marks(m))),
    row("moe.shared_ffn", "--moe-shared-expert-intermediate-size",
        "moe_shared_expert_intermediate_size",
        when=lambda m: has_moe(m) and experts(m).shared_ffn > 0),
    switch("moe.shared_gate", "--moe-shared-expert-gate", "moe_shared_expert_gate",
        when=lambda m: has_moe(m) and experts(m).shared_ffn > 0),
    row("moe.score", "--moe-router-score-function", "moe_router_score_function"),
    switch("moe.normalised", "--moe-router-pre-softmax", "moe_router_pre_softmax",
        lambda m: experts(m).score == "softmax" and not experts(m).normalised, when=has_moe,
        refuses=_no_weights),
    row("moe.weight_scale", "--moe-router-topk-scaling-factor", "moe_router_topk_scaling_factor",
        when=lambda m: has_moe(m) and experts(m).weight_scale != 1.0),
    switch("moe.weights_on_input", "--moe-apply-probs-on-input", "moe_apply_probs_on_input",
        refuses=lambda m: "weights on the inputs of several experts a token"
        if experts(m).weights_on_input and experts(m).top_k > 1 else None),
    row("moe.groups", "--moe-router-num-groups", "moe_router_num_groups",
        when=_in_groups, refuses=_no_groups),
    row("moe.top_groups", "--moe-router-group-topk", "moe_router_group_topk", when=_in_groups),
    row("moe.group_score", when=has_moe, departs=_group_departure),
    switch("moe.score_correction_bias", "--moe-router-enable-expert-bias",
        "moe_router_enable_expert_bias", refuses=_no_bias),
    row("moe.bias_update_rate", "--moe-router-bias-update-rate", "moe_router_bias_update_rate",
        when=lambda m: has_moe(m) and experts(m).score_correction_bias),
    row("moe.router_fp32", "--moe-router-dtype", "moe_router_dtype", lambda _: "fp32",
        when=lambda m: has_moe(m) and experts(m).router_fp32),
    BALANCING,
    row("moe.aux_loss", "--moe-aux-loss-coeff", "moe_aux_loss_coeff",
        when=lambda m: has_moe(m) and experts(m).aux_loss > 0),
    row("moe.z_loss", "--moe-z-loss-coeff", "moe_z_loss_coeff",
        when=lambda m: has_moe(m) and experts(m).z_loss > 0),
    row("moe.capacity_factor", "--moe-expert-capacity-factor", "moe_expert_capacity_factor",
        when=lambda m: has_moe(m) and experts(m).capacity_factor is not None,
        refuses=lambda _: "experts that drop tokens: plans are costed without"),
    row("mtp_layers", "--mtp-num-layers", "mtp_num_layers", when=lambda m: m.mtp_layers > 0),
)  # fmt: skip

GROUPS: tuple[tuple[str, tuple[MegatronRow, ...]], ...] = (
    ("model", (*_TRUNK, *POSITIONS)),
    ("attention", _ATTENTION),
    ("state spaces", STATES),
    ("experts", _EXPERTS),
)
MEGATRON: tuple[MegatronRow, ...] = tuple(entry for _, rows in GROUPS for entry in rows)


def option(field: str) -> str:
    """The flag, without its dashes, that says a field: the plain one of several, else the only."""
    rows = [entry for entry in MEGATRON if entry.key and entry.fields[0] == field]
    (name,) = {entry.name for entry in rows if entry.plain} or {entry.name for entry in rows}
    return name


def _as_flag(entry: MegatronRow) -> ArchitectureRow:
    """The row of the command line: what Bridge alone can say is refused."""
    refuses = entry.refuses
    if entry.no_flag is not nothing:
        refuses = lambda model: entry.refuses(model) or entry.no_flag(model)  # noqa: E731
    return ArchitectureRow(
        entry.fields, entry.key, entry.value, entry.default, entry.when, refuses, entry.departs
    )


def _as_field(entry: MegatronRow) -> ArchitectureRow:
    """The row of Megatron-Bridge, always written."""
    key = f"model.{entry.field}" if entry.field else ""
    return ArchitectureRow(
        entry.fields, key, entry.override, when=entry.when, refuses=entry.refuses,
        departs=entry.departs,
    )  # fmt: skip


FLAGS: tuple[ArchitectureRow, ...] = tuple(_as_flag(entry) for entry in MEGATRON)
BRIDGE: tuple[ArchitectureRow, ...] = tuple(_as_field(entry) for entry in MEGATRON)
