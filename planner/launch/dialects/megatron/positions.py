"""How Megatron-LM and Megatron-Bridge say rotary and other positions: rows of `megatron_table`."""

from __future__ import annotations

from collections.abc import Callable

from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    as_it_is,
    has_mla,
    has_rope,
    scaling,
    scaling_kind,
    stretched,
)
from planner.launch.dialects.megatron.row import MegatronRow, row, switch, unless, without, yes
from planner.launch.quoting import Value

# Attention in chunks, layers without positions: the catalogue costs them as a sliding window.
_CHUNKED_FAMILY = "llama4_text"
# Factor and lengths that `_apply_scaling` of rotary_pos_embedding.py has, and that no flag reaches:
# --rope-scaling-factor is parsed and not handed on (argument_utils.py, gpt_config_from_args).
LLAMA3 = (8192, 1.0, 4.0)
LLAMA3_FACTOR = 8.0
# MLATransformerConfig's length and rotations, which have no flag.
MLA_YARN = (4096, 32.0, 1.0)


def _position(model: ModelSpec) -> str:
    if model.position == "rope" and scaling_kind(model) == "yarn" and not has_mla(model):
        return "yarn"
    return {"learned": "learned_absolute"}.get(model.position, model.position)


def _yarn_alone(model: ModelSpec) -> bool:
    return stretched("yarn")(model) and not has_mla(model)


def _latent_rope(model: ModelSpec) -> bool:
    return has_mla(model) and has_rope(model)


def rotates_plainly(model: ModelSpec) -> bool:
    """Latent attention with rotary positions that nothing stretches: Megatron's fused kernel of
    latent attention takes yarn's alone (transformer_config.py, MLATransformerConfig)."""
    return _latent_rope(model) and scaling_kind(model) != "yarn"


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
        stretch = scaling(model)
        if (stretch.original_positions, stretch.low_frequency, stretch.high_frequency) != LLAMA3:
            return "Llama 3's rotary scaling with other lengths than 8192, 1 and 4"
    return None


def _no_yarn(model: ModelSpec) -> str | None:
    """What yarn cannot be given, on the command line or anywhere."""
    if scaling_kind(model) != "yarn":
        return None
    stretch = scaling(model)
    if stretch.attention_factor is not None:
        return "yarn with an attention factor of its own: scores follow from mscale"
    if has_mla(model) and not stretch.truncate:
        return "latent attention whose yarn keeps fractions of rotations"
    if stretch.original_positions is None:
        return "yarn without the length that it starts from"
    return None


def _no_yarn_flag(model: ModelSpec) -> str | None:
    if scaling_kind(model) != "yarn" or not has_mla(model):
        return None
    stretch = scaling(model)
    given = (stretch.original_positions, stretch.beta_fast, stretch.beta_slow)
    if given == MLA_YARN:
        return None
    length, fast, slow = given
    return (
        f"yarn of latent attention from {length} positions between {slow:g} and {fast:g} "
        "rotations: no flag reaches these"
    )


def _no_llama3_flag(model: ModelSpec) -> str | None:
    if scaling_kind(model) == "llama3" and scaling(model).factor != LLAMA3_FACTOR:
        return (
            f"Llama 3's rotary scaling by {scaling(model).factor:g}: --rope-scaling-factor is read "
            "and not handed on, the model takes 8"
        )
    return None


def _latent_mscale(name: str, plain: float) -> Callable[[ModelSpec], Value]:
    def value(model: ModelSpec) -> float:
        stated = getattr(model.rope.scaling, name, None)
        return plain if stated is None else stated

    return value


LLAMA3_STRETCH = switch("rope.scaling.kind rope.scaling.original_positions "
    "rope.scaling.low_frequency rope.scaling.high_frequency", "--use-rope-scaling", "rope_scaling",
    lambda m: scaling_kind(m) == "llama3",
    when=lambda m: has_rope(m) and not has_mla(m))  # fmt: skip
LINEAR_STRETCH = row("rope.scaling.factor", "--rotary-seq-len-interpolation-factor",
    "seq_len_interpolation_factor", lambda m: _whole(scaling(m).factor),
    when=stretched("linear"))  # fmt: skip
LATENT_STRETCH = row(
    "rope.scaling.kind",
    "--rope-type",
    "rope_type",
    lambda m: "yarn" if scaling_kind(m) == "yarn" else "rope",
    when=_latent_rope,
)
POSITIONS: tuple[MegatronRow, ...] = (
    row("position rope.scaling.kind", "--position-embedding-type", "position_embedding_type",
        _position, refuses=_no_position),
    row("max_positions", "--max-position-embeddings", "", when=lambda m: m.position == "learned"),
    row("rope.theta", "--rotary-base", "rotary_base", lambda m: _whole(m.rope.theta), when=has_rope,
        no_flag=unless(lambda m: m.rope.theta % 1 == 0, "a rotary base that is no whole number")),
    without("rope.local_theta", "a rotary base of {value:g} in layers with windows"),
    row("rotary_share", "--rotary-percent", "rotary_percent", default=1.0,
        when=lambda m: has_rope(m) and not has_mla(m)),
    row("rotary_share", when=_latent_rope,
        refuses=unless(lambda m: m.rotary_share == 1.0, "latent heads that rotate in part")),
    row("rope.scaling.kind rope.scaling.long_factor rope.scaling.short_factor",
        refuses=_no_stretch, when=has_rope),
    LLAMA3_STRETCH,
    row("rope.scaling.factor", "", "rope_scaling_factor",
        when=stretched("llama3"), no_flag=_no_llama3_flag),
    LINEAR_STRETCH,
    row("rope.scaling.truncate rope.scaling.attention_factor rope.scaling.original_positions",
        refuses=_no_yarn, when=has_rope),
    row("rope.scaling.factor", "--rotary-scaling-factor", "yarn_rotary_scaling_factor",
        when=_yarn_alone),
    row("rope.scaling.original_positions", "--yarn-original-max-position-embeddings",
        "yarn_original_max_position_embeddings", when=_yarn_alone),
    row("rope.scaling.beta_fast", "--yarn-beta-fast", "yarn_beta_fast", when=_yarn_alone),
    row("rope.scaling.beta_slow", "--yarn-beta-slow", "yarn_beta_slow", when=_yarn_alone),
    row("rope.scaling.mscale", "--mscale", "yarn_mscale", _latent_mscale("mscale", 1.0),
        when=_yarn_alone),
    row("rope.scaling.mscale_all_dim", "--mscale-all-dim", "yarn_mscale_all_dim",
        _latent_mscale("mscale_all_dim", 0.0), when=_yarn_alone),
    row("rope.scaling.truncate", "--no-yarn-correction-range-round-to-int",
        "yarn_correction_range_round_to_int", lambda m: yes(not scaling(m).truncate), None,
        bridge=as_it_is("rope.scaling.truncate"), when=_yarn_alone),
    LATENT_STRETCH,
    row("rope.scaling.factor", "--rotary-scaling-factor", "rotary_scaling_factor",
        when=_latent_yarn),
    row("rope.scaling.original_positions", "", "original_max_position_embeddings",
        when=_latent_yarn, no_flag=_no_yarn_flag),
    row("rope.scaling.beta_fast", "", "beta_fast", when=_latent_yarn),
    row("rope.scaling.beta_slow", "", "beta_slow", when=_latent_yarn),
    row("rope.scaling.mscale", "--mscale", "mscale", _latent_mscale("mscale", 1.0),
        when=_latent_yarn),
    row("rope.scaling.mscale_all_dim", "--mscale-all-dim", "mscale_all_dim",
        _latent_mscale("mscale_all_dim", 0.0), when=_latent_yarn),
)  # fmt: skip


def _whole(number: float) -> int | float:
    return int(number) if number % 1 == 0 else number
