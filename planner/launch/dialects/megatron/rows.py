"""Rows of Megatron's table with functions of their own: rotary positions, layers with states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from constraints.rule import Layout
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    as_it_is,
    has_mla,
    has_rope,
    has_table_of,
    nothing,
    scaling,
    scaling_kind,
    stretched,
)
from planner.launch.architecture import without as absent
from planner.launch.dialects.megatron.flags import Flag, flag
from planner.launch.quoting import Value


@dataclass(frozen=True, slots=True)
class MegatronRow(ArchitectureRow):
    """`key`: the flag; `field`: Bridge's, below `model.`; `bridge`: its value there if another.

    `plain`: the flag has the value of our field, and is read back as it.
    """

    field: str = ""
    bridge: Callable[[ModelSpec], Value] | None = None
    # Why the command line has not what Bridge has.
    no_flag: Callable[[ModelSpec], str | None] = nothing
    plain: bool = False

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return self.key.removeprefix("--")

    def override(self, model: ModelSpec) -> Value:
        """Bridge's value."""
        return (self.bridge or self.value)(model)


def row(
    fields: str,
    flag: str = "",
    field: str = "",
    value: Callable[[ModelSpec], Value] | None = None,
    default: Value = ...,  # type: ignore[assignment]
    **more: object,
) -> MegatronRow:
    """A row, its fields as words; without a value as `planner.launch.architecture.row` has it."""
    names = tuple(fields.split())
    if (flag or field) and value is None:
        value = as_it_is(names[0])
        more = {"when": has_table_of(names[0]), "plain": True} | more
    return MegatronRow(names, flag, value or nothing, default, field=field, **more)  # type: ignore[arg-type]


def switch(
    fields: str,
    flag: str,
    field: str = "",
    is_on: Callable[[ModelSpec], object] | None = None,
    **more: object,
) -> MegatronRow:
    """A flag that is there, and true for Bridge, where `is_on` holds: without it, where the field
    itself is true."""
    first = fields.partition(" ")[0]
    holds = is_on or as_it_is(first)
    if is_on is None:
        more = {"when": has_table_of(first), "plain": True} | more
    bridge = {"bridge": lambda model: bool(holds(model))}
    return row(fields, flag, field, lambda model: yes(bool(holds(model))), None, **bridge, **more)


def without(name: str, phrase: str) -> MegatronRow:
    """A field that Megatron does not know."""
    absence = absent(name, phrase)
    return MegatronRow(absence.fields, refuses=absence.refuses)


def yes(value: bool) -> bool | None:
    """A switch: present or not."""
    return True if value else None


def unless(right: Callable[[ModelSpec], bool], phrase: str) -> Callable[[ModelSpec], str | None]:
    """The phrase where a model is not right."""
    return lambda model: None if right(model) else phrase


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


PATTERN = "hybrid-layer-pattern"
SPEC = "spec"
PREDICTORS, BLOCKS = "/", "|"
DELTA_NET = "gated_delta_net"
_HYBRID = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
_CHUNK = 128
DELTA_CHUNK = 64
_CONVOLUTION = 4


def is_hybrid(model: ModelSpec) -> bool:
    """Whether Megatron trains it as a hybrid, by a pattern of layers."""
    separate = any("none" in (kind.attention, kind.ffn) for kind in model.kinds)
    return (model.has_states and not _is_delta(model)) or separate


def _is_delta(model: ModelSpec) -> bool:
    return model.state_space is not None and model.state_space.kind == "gated_delta"


def _is_mamba(model: ModelSpec) -> bool:
    return model.has_states and not _is_delta(model)


def _no_state(model: ModelSpec) -> str | None:
    space = model.state_space
    if space is None or not model.has_states:
        return None
    if any(kind.attention == "both" for kind in model.kinds):
        return "attention and a state space side by side in a layer"
    if space.kind in ("mamba1", "lightning"):
        return f"{space.kind} layers: it has Mamba-2 and gated delta nets"
    if space.kind == "mamba2" and not layer_pattern(model):
        return "a Mamba-2 mixer and a feed-forward block in one layer: they are two of its layers"
    if space.kind == "gated_delta" and is_hybrid(model):
        return "gated delta nets without a feed-forward block in their layer"
    return None


def _no_shape(model: ModelSpec) -> str | None:
    """mamba_mixer.py, MambaMixer.__init__; gated_delta_net."""
    space = model.state_space
    if space is None or not model.has_states or space.kind not in ("mamba2", "gated_delta"):
        return None
    if space.projection_bias or space.conv_bias == _is_delta(model) or not space.gated_norm:
        return "state-space layers with other biases or without a gated norm"
    if _is_mamba(model) and space.conv != _CONVOLUTION:
        return f"a convolution over {space.conv} tokens: Mamba-2's is over {_CONVOLUTION}"
    return None


def _chunk(model: ModelSpec) -> str | None:
    chunk = DELTA_CHUNK if _is_delta(model) else _CHUNK
    space = model.state_space
    if space is None or not model.has_states or space.chunk == chunk:
        return None
    return f"its scans are in chunks of {chunk} tokens, not of {space.chunk}: the same result"


def _marks(model: ModelSpec) -> list[bool]:
    return [kind.attention == "state" for kind in model.kind_sequence]


_ALL = "kind heads head_dim groups state conv conv_bias projection_bias chunk gated_norm"
_SHAPE = " ".join(f"state_space.{name}" for name in (*_ALL.split(), "step_rank", "inner_norms"))

MAMBA: tuple[MegatronRow, ...] = (
    row("state_space.heads", "--mamba-num-heads", "mamba_num_heads", when=_is_mamba),
    row("state_space.head_dim", "--mamba-head-dim", "mamba_head_dim", when=_is_mamba),
    row("state_space.groups", "--mamba-num-groups", "mamba_num_groups", when=_is_mamba),
    row("state_space.state", "--mamba-state-dim", "mamba_state_dim", when=_is_mamba),
)
DELTA: tuple[MegatronRow, ...] = (
    row("state_space.conv", "--linear-conv-kernel-dim", "linear_conv_kernel_dim", when=_is_delta),
    row("state_space.state", "--linear-key-head-dim", "linear_key_head_dim", when=_is_delta),
    row("state_space.head_dim", "--linear-value-head-dim", "linear_value_head_dim", when=_is_delta),
    row("state_space.groups", "--linear-num-key-heads", "linear_num_key_heads", when=_is_delta),
    row("state_space.heads", "--linear-num-value-heads", "linear_num_value_heads", when=_is_delta),
)  # fmt: skip
LINEAR_LAYERS = row("layer_kinds", "--linear-attention-freq", "linear_attention_freq",
                    lambda m: pattern(_marks(m)), bridge=lambda m: list(map(int, _marks(m))),
                    when=_is_delta)  # fmt: skip

STATES: tuple[MegatronRow, ...] = (
    row(f"layer_kinds {_SHAPE}", refuses=_no_state),
    row(_SHAPE, refuses=_no_shape, departs=_chunk),
    *MAMBA,
    row("state_space.kind", "--experimental-attention-variant", "experimental_attention_variant",
        lambda _: DELTA_NET, when=_is_delta),
    LINEAR_LAYERS,
    *DELTA,
    switch("attention_gate", "--attention-output-gate", "attention_output_gate"),
    row("moe.latent", "--moe-latent-size", "moe_latent_size",
        when=lambda m: m.moe is not None and m.moe.latent is not None),
)  # fmt: skip


def hybrid_flags(model: ModelSpec, layout: Layout) -> tuple[Flag, ...]:
    """The pattern of layers, `|` between the blocks of a pipeline, `/` before each prediction."""
    pattern, start, blocks = layer_pattern(model), 0, []
    for count in layout.block_layers if layout.pp > 1 else (len(pattern),):
        blocks.append(pattern[start : start + count])
        start += count
    predictors = (PREDICTORS + ("*E" if model.moe else "*-")) * model.mtp_layers
    return flag(f"--{SPEC}", *_HYBRID), flag(f"--{PATTERN}", BLOCKS.join(blocks) + predictors)
