"""How Megatron says state-space layers: rows of `megatron_table`, and a hybrid's pattern.

Megatron-core 0.19: Mamba-2 in its hybrid model, whose layers are a mixer, attention, a feed-forward
block or experts each (core/models/hybrid/hybrid_layer_allocation.py); gated delta nets in the GPT
model (core/ssm/gated_delta_net).
"""

from __future__ import annotations

from constraints.rule import Layout
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron.flags import Flag, flag
from planner.launch.dialects.megatron.row import MegatronRow, pattern, row, switch

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
