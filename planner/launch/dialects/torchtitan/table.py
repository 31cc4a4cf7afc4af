"""How torchtitan says a model: a table for each block that the writer builds.

Keys are arguments of the configurations in torchtitan 0.3.0 (`models/common`,
`models/deepseek_v3`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.job.quantities import stated
from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    experts,
    fields_of,
    has_mla,
    has_moe,
    lacking,
    leading_dense,
    nothing,
    row,
    scaling,
    scaling_kind,
    stretched,
)
from planner.launch.quoting import Value


@dataclass(frozen=True, slots=True)
class Flavor:
    """A size in torchtitan's registry. `longest`: positions that its rotary cache allows."""

    module: str
    name: str
    longest: int


# Catalogue name -> size in torchtitan 0.3.0, models/*/__init__.py, where it is the model in every
# field: tests/frameworks builds each and compares. Not here: Llama 3.2, whose frequencies the
# registry divides by 8, not 32; Qwen3-235B with another rotary base; DeepSeek with another epsilon.
FLAVORS = {
    "llama-3.1-8b": Flavor("llama3", "8B", 131072),
    "llama-3.1-70b": Flavor("llama3", "70B", 131072),
    "llama-3.3-70b": Flavor("llama3", "70B", 131072),
    "llama-3.1-405b": Flavor("llama3", "405B", 131072),
    "qwen3-0.6b": Flavor("qwen3", "0.6B", 40960),
    "qwen3-1.7b": Flavor("qwen3", "1.7B", 40960),
    "qwen3-4b": Flavor("qwen3", "4B", 40960),
    "qwen3-8b": Flavor("qwen3", "8B", 40960),
    "qwen3-14b": Flavor("qwen3", "14B", 40960),
    "qwen3-32b": Flavor("qwen3", "32B", 40960),
    "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B", 40960),
    "gpt-oss-20b": Flavor("gpt_oss", "20b", 131072),
    "gpt-oss-120b": Flavor("gpt_oss", "120b", 131072),
}


def flavor_of(model: ModelSpec) -> Flavor | None:
    """The registry's size of a catalogue model; None for any other, also one of the same name."""
    from planner.job.models.catalog import load_model, model_names

    if model.name not in FLAVORS or model.name not in model_names():
        return None
    same = load_model(model.name).spec
    return FLAVORS[model.name] if same == model else None


# How far a step moves the bias of experts where a model states an auxiliary loss in its place.
_USUAL_RATE = 1e-3
_GROUPED = {
    "qkv-bias", "qk-norm-head", "head-dim", "tied", "rope-llama3", "moe", "mixed",
    "shared-experts", "router-bias", "score-bias", "groups", "group-max", "sigmoid", "unnormalised",
    "weight-scale", "router-fp32", "bias-update", "aux-loss",
}  # fmt: skip
_LATENT = {
    "mla", "tied", "moe", "mixed", "shared-experts", "score-bias", "mtp", "rope-yarn", "groups",
    "group-max",
    "sigmoid", "unnormalised", "weight-scale", "router-fp32", "bias-update", "aux-loss",
}  # fmt: skip
_STD = 0.02


def load_balance(model: ModelSpec) -> float | None:
    """load_balance_coeff: what a step adds to or takes from the bias of an expert."""
    moe = experts(model)
    if moe.score_correction_bias:
        return moe.bias_update_rate or None
    return _USUAL_RATE if moe.aux_loss else None


def _loss(model: ModelSpec) -> str | None:
    moe = experts(model)
    if not moe.aux_loss:
        return None
    left_out = f"torchtitan has no auxiliary loss ({moe.aux_loss:g} over a {moe.aux_loss_over})"
    if moe.score_correction_bias:
        return f"{left_out}: it is left out"
    return (
        f"{left_out}: a bias that each step moves by {load_balance(model):g} balances the experts"
    )


def _std(model: ModelSpec) -> str | None:
    if model.init_std == _STD:
        return None
    return f"weights start with torchtitan's own deviation of {_STD}, not {model.init_std:g}"


def _groups(name: str) -> Callable[[ModelSpec], Value]:
    return lambda model: getattr(model.moe, name) if experts(model).groups > 1 else None


def _no_groups(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.groups > 1 and moe.experts < 2 * moe.groups:
        return f"{moe.groups} groups of {moe.experts} experts: it wants two experts a group"
    return None


def _best_two(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.groups == 1 or moe.group_score == "top2":
        return None
    return "torchtitan chooses groups of experts by their best two scores, not by the best one"


_ROUTER = (
    row("moe.experts", "num_experts"),
    row("moe.top_k", "top_k"),
    row("moe.score", "score_func"),
    row("moe.normalised", "route_norm"),
    row("moe.weight_scale", "route_scale"),
    row("moe.groups", "num_expert_groups", _groups("groups"), None, when=has_moe,
        refuses=_no_groups),
    row("moe.top_groups", "num_limited_groups", _groups("top_groups"), None, when=has_moe),
    row("moe.group_score", when=has_moe, departs=_best_two),
    row("moe.score_correction_bias moe.bias_update_rate moe.aux_loss moe.aux_loss_over",
        "load_balance_coeff", load_balance, when=has_moe, departs=_loss),
    # The router is always computed in fp32.
    row("moe.router_fp32", when=has_moe),
)  # fmt: skip
_TRUNK = (
    row("layers", "n_layers"),
    row("hidden", "dim"),
    row("vocab", "vocab_size"),
    row("max_positions", "max_seq_len"),
    row("norm_eps", "norm_eps"),
    row("rope.theta", "rope_theta"),
    row("heads", "n_heads"),
)  # fmt: skip


def _no_lengths(model: ModelSpec) -> str | None:
    if scaling_kind(model) == "llama3" and scaling(model).original_positions is None:
        return "Llama 3's rotary scaling without the length that it starts from"
    return None


_GQA = (
    row("kv_heads", "n_kv_heads"),
    row("head_dim", "head_dim"),
    row("ffn", "hidden_dim", lambda m: m.ffn or experts(m).ffn),
    row("qk_norm", "qk_norm", lambda m: m.qk_norm == "head"),
    row("tied_embeddings", "enable_weight_tying", default=False),
    row("moe.ffn", "moe_inter_dim"),
    row("layer_kinds", "EXPERT_LAYERS", nothing, when=has_moe),
    row("moe.shared_ffn", "shared_experts"),
)  # fmt: skip


def _yarn(name: str, plain: Value) -> Callable[[ModelSpec], Value]:
    """A value of yarn, or the one that leaves frequencies as they are."""
    return lambda model: getattr(scaling(model), name) if scaling_kind(model) == "yarn" else plain


def _latent_mscale(model: ModelSpec) -> float:
    found = scaling(model).mscale_all_dim if scaling_kind(model) == "yarn" else None
    return 0.0 if found is None else found


def _no_mscale(model: ModelSpec) -> str | None:
    stretch = scaling(model)
    if stretch.attention_factor is not None:
        return "yarn with an attention factor of its own"
    if stated(stretch.mscale, 1.0) != stretch.mscale_all_dim:
        return "yarn that scales the rotation (mscale other than mscale_all_dim)"
    if stretch.original_positions is None:
        return "yarn without the length that it starts from"
    return None


def _no_blocks(model: ModelSpec) -> str | None:
    moe = model.moe
    if (
        moe is None
        or leading_dense(model) is None
        or not moe.shared_ffn
        or moe.shared_ffn % moe.ffn
    ):
        return (
            "torchtitan's DeepSeek-V3 has dense layers first, then layers with experts and whole "
            "shared experts"
        )
    return None


_DEEPSEEK = (
    row("ffn", "dense_hidden_dim"),
    row("moe.ffn", "moe_hidden_dim"),
    row("layer_kinds", "n_dense_layers", leading_dense, refuses=_no_blocks),
    row("moe.shared_ffn", "num_shared_experts", lambda m: experts(m).shared_ffn // experts(m).ffn,
        when=has_moe),
    row("mla.q_lora_rank", "q_lora_rank", lambda m: (m.mla and m.mla.q_lora_rank) or 0,
        when=has_mla),
    row("mla.kv_lora_rank", "kv_lora_rank"),
    row("mla.qk_nope_head_dim", "qk_nope_head_dim"),
    row("mla.qk_rope_head_dim", "qk_rope_head_dim"),
    row("mla.v_head_dim", "v_head_dim"),
    # Of latent attention the query head's width follows from the two above.
    row("head_dim kv_heads qk_norm", when=has_mla,
        refuses=lambda m: "a norm over heads in latent attention" if m.qk_norm != "none" else None),
    row("rope.scaling.kind rope.scaling.factor", "rope_factor", _yarn("factor", 1.0)),
    row("rope.scaling.original_positions", "original_seq_len", _yarn("original_positions", 4096)),
    row("rope.scaling.beta_fast", "beta_fast", _yarn("beta_fast", 32.0)),
    row("rope.scaling.beta_slow", "beta_slow", _yarn("beta_slow", 1.0)),
    row("rope.scaling.mscale rope.scaling.mscale_all_dim rope.scaling.attention_factor", "mscale",
        _latent_mscale, when=stretched("yarn"), refuses=_no_mscale),
    row("init_std", departs=_std),
)  # fmt: skip

_LLAMA3_SCALING = (
    row("rope.scaling.kind rope.scaling.factor", "scaling_factor",
        lambda m: scaling(m).factor, when=stretched("llama3"), refuses=_no_lengths),
    row("rope.scaling.low_frequency", "low_freq_factor", when=stretched("llama3")),
    row("rope.scaling.high_frequency", "high_freq_factor", when=stretched("llama3")),
    row("rope.scaling.original_positions", "original_max_position_embeddings",
        when=stretched("llama3")),
)  # fmt: skip

GROUPED: tuple[ArchitectureRow, ...] = (
    *_TRUNK, *_GQA, *_ROUTER, *_LLAMA3_SCALING,
    row("init_std", "std"),
    row("qkv_bias", "wqkv.bias", default=False),
    row("moe.router_bias", "bias"),
    *lacking(_GROUPED),
)  # fmt: skip
LATENT: tuple[ArchitectureRow, ...] = (
    *_TRUNK, *_DEEPSEEK, *_ROUTER,
    row("tied_embeddings", "enable_weight_tying", default=False),
    row("mtp_layers", "num_mtp_layers", default=0),
    row("rope.scaling.truncate", "truncate", _yarn("truncate", True)),
    *lacking(_LATENT),
)  # fmt: skip


def _registered(model: ModelSpec) -> str | None:
    """torchtitan builds gpt-oss in the sizes of its registry."""
    if flavor_of(model) is not None:
        return None
    return "torchtitan 0.3 builds gpt-oss in its own sizes, 20b and 120b, only"


GPT_OSS: tuple[ArchitectureRow, ...] = (
    row(" ".join(fields_of()), refuses=_registered),
    row("moe.aux_loss", when=has_moe, departs=_loss),
)


def titan_table(model: ModelSpec) -> tuple[ArchitectureRow, ...]:
    """The table of torchtitan 0.3's block for a model."""
    if model.family == "gpt_oss":
        return GPT_OSS
    return LATENT if model.mla else GROUPED
