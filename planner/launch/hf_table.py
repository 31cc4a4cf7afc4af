"""How config.json of transformers 5.23 says what a shape does not: one table for all model types.

Rows ask the model for its family: that is the type that is written. What a type's config or its
modelling file has no key for is not written; `hf_config` reads each file back and refuses by name
what would be another model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from planner.job.models.hf_rope import FULL, SCALING_KEYS, SLIDING
from planner.job.specs import ModelSpec
from planner.launch.architecture import Row, experts, fields_of, has_moe, has_rope, row
from planner.launch.settings_text import Value

_NORM_EPS = {
    "gpt2": "layer_norm_epsilon",
    "falcon": "layer_norm_epsilon",
    "phi": "layer_norm_eps",
    "gpt_neox": "layer_norm_eps",
    "nemotron": "norm_eps",
    "nemotron_h": "layer_norm_epsilon",
    "mamba": "layer_norm_epsilon",
    "mamba2": "layer_norm_epsilon",
    # OlmoLayerNorm: fixed.
    "olmo": "",
}
# Types that add the router's loss to the model's, where output_router_logits asks for it.
_LOSS_TYPES = (
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "minimax_m2", "qwen3_next", "jamba",
    "granitemoehybrid", "minimax",
)  # fmt: skip
_SCALED_TYPES = ("deepseek_v2", "deepseek_v3", "glm4_moe", "nemotron_h")
_CLIPPED_TYPES = ("olmo", "olmoe")
_GEMMAS = ("gemma2", "gemma3_text")


def _of(types: Collection[str]) -> Callable[[ModelSpec], bool]:
    return lambda model: model.family in types


def _experts_of(types: Collection[str]) -> Callable[[ModelSpec], bool]:
    return lambda model: has_moe(model) and model.family in types


def _rope(model: ModelSpec) -> dict[str, Value]:
    """`rope_parameters`; Gemma 3's by kind of layer."""
    rope = model.rope
    table: dict[str, Value] = {"rope_type": "default", "rope_theta": rope.theta}
    if rope.scaling is not None:
        stated = rope.scaling.model_dump(exclude_none=True)
        table["rope_type"] = stated["kind"]
        table |= {
            key: list(value) if isinstance(value := stated[name], tuple) else value
            for key, name in SCALING_KEYS.items()
            if name in stated and name in _SAID_BY[stated["kind"]] and stated[name] != ()
        }
    if model.rotary_share < 1.0:
        table["partial_rotary_factor"] = model.rotary_share
    if model.family == "gemma3_text":
        local = rope.local_theta or rope.theta
        return {FULL: table, SLIDING: {"rope_type": "default", "rope_theta": local}}
    return table


_LENGTH = ("factor", "original_positions")
# Kind -> what transformers allows in its table.
_SAID_BY = {
    "linear": ("factor",),
    "dynamic": _LENGTH,
    "llama3": (*_LENGTH, "low_frequency", "high_frequency"),
    "yarn": (*_LENGTH, "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
             "attention_factor"),
    "longrope": (*_LENGTH, "long_factor", "short_factor", "attention_factor"),
}  # fmt: skip


def _no_balance(model: ModelSpec) -> str | None:
    moe = experts(model)
    if moe.score_correction_bias and moe.bias_update_rate:
        return (
            f"transformers never moves the router's correction bias (by {moe.bias_update_rate:g} a "
            "step): nothing of it balances the experts"
        )
    return None


def _no_loss(model: ModelSpec) -> str | None:
    moe = experts(model)
    if not moe.aux_loss:
        return None
    if model.family not in _LOSS_TYPES:
        return f"transformers adds no auxiliary loss of the router ({moe.aux_loss:g} is left out)"
    if moe.aux_loss_over == "sequence":
        return "transformers takes the router's auxiliary loss over a batch, not over a sequence"
    return None


def _eps_key(model: ModelSpec) -> str:
    return _NORM_EPS.get(model.family, "rms_norm_eps")


def _scalar(model: ModelSpec) -> int:
    """Gemma's: one over the square of the scale."""
    scale = model.attention_scale
    return model.head_dim if scale is None else round(scale**-2)


DETAILS: tuple[Row, ...] = (
    *(
        row("norm_eps", key, when=lambda m, key=key: _eps_key(m) == key)  # type: ignore[misc]
        for key in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
    ),
    row("init_std", "initializer_range"),
    row(
        " ".join(name for name in fields_of() if name.startswith("rope")),
        "rope_parameters", _rope, when=has_rope,
    ),
    row("attention_scale", "query_pre_attn_scalar", _scalar, when=_of(_GEMMAS)),
    row("qkv_clip", "clip_qkv", when=_of(_CLIPPED_TYPES)),
    row("moe.weight_scale", "routed_scaling_factor", lambda m: experts(m).weight_scale,
        when=_experts_of(_SCALED_TYPES)),
    row("moe.groups moe.top_groups moe.group_score", "topk_method",
        lambda m: "greedy" if experts(m).groups == 1 else "group_limited_greedy",
        when=_experts_of(("deepseek_v2",))),
    row("moe.clamp", "swiglu_limit", lambda m: experts(m).clamp, when=_experts_of(("gpt_oss",))),
    row("moe.aux_loss", "router_aux_loss_coef", lambda m: experts(m).aux_loss,
        when=_experts_of((*_LOSS_TYPES, "llama4_text")), departs=_no_loss),
    row("moe.aux_loss", "output_router_logits", lambda m: experts(m).aux_loss > 0,
        when=_experts_of(_LOSS_TYPES)),
    row("moe.aux_loss", "aux_loss_alpha", lambda m: experts(m).aux_loss,
        when=_experts_of(_SCALED_TYPES), departs=_no_loss),
    row("moe.aux_loss_over", "seq_aux", lambda m: experts(m).aux_loss_over == "sequence",
        when=_experts_of(_SCALED_TYPES)),
    row("moe.bias_update_rate", when=has_moe, departs=_no_balance),
    row("mtp_layers", departs=lambda m:
        "transformers trains without multi-token prediction" if m.mtp_layers else None),
)  # fmt: skip


def hf_table(differences: Callable[[ModelSpec], Collection[str]]) -> tuple[Row, ...]:
    """The whole table. `differences`: fields in which the file, read again, is another model."""

    def refuses(name: str) -> Callable[[ModelSpec], str | None]:
        return lambda model: name if name in differences(model) else None

    return (*DETAILS, *(row(name, refuses=refuses(name)) for name in fields_of()))
