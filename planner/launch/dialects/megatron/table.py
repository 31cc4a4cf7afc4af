"""The table of model settings for Megatron-LM and Megatron-Bridge, from `model.toml`.

Flags and defaults: megatron-core 0.19, `megatron/training/arguments.py`, `argument_utils.py` and
`core/transformer/transformer_config.py`; fields of Megatron-Bridge 0.6.2: `gpt_provider.py`,
`mla_provider.py`. All Bridge fields are written, so its defaults do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from constraints.rule import Layout
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch import architecture
from planner.launch.dialects.megatron.flags import Flag, flag
from planner.launch.quoting import Value
from planner.launch.registry import dialect_toml


@dataclass(frozen=True, slots=True)
class MegatronRow(architecture.ArchitectureRow):
    """A row of the table. `key`: the flag; `field`: Bridge's field below `model.`; `bridge`: its
    value there if it differs from the flag's.

    `plain`: the flag's value is our field's value and is read back as that.
    """

    field: str = ""
    bridge: Callable[[ModelSpec], Value] | None = None
    # Why the command line cannot express a model that Bridge can.
    no_flag: Callable[[ModelSpec], str | None] = architecture.nothing
    plain: bool = False

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return self.key.removeprefix("--")

    def override(self, model: ModelSpec) -> Value:
        """The value of Bridge's field."""
        return (self.bridge or self.value)(model)


def pattern(marks: list[bool]) -> str:
    """One mark per layer as an expression that Megatron evaluates: `([0]*3+[1]*58)`, or for a
    repeating pattern `([0,1]*16)`."""
    for period in range(2, len(marks) // 2 + 1):
        times, rest = divmod(len(marks), period)
        if not rest and marks == marks[:period] * times:
            unit = ",".join(str(int(mark)) for mark in marks[:period])
            return f"([{unit}]*{times})"
    runs = [(int(mark), len(list(run))) for mark, run in groupby(marks)]
    return "(" + "+".join(f"[{mark}]*{count}" for mark, count in runs) + ")"


# Original positions, low and high frequency factors, and the default factor, all built into
# `_apply_scaling` of rotary_pos_embedding.py; no flag sets them.
LLAMA3 = (8192, 1.0, 4.0)
LLAMA3_FACTOR = 8.0
# Original positions and rotations (beta_fast, beta_slow) of MLATransformerConfig, which have no
# flag.
MLA_YARN = (4096, 32.0, 1.0)


def rotates_plainly(model: ModelSpec) -> bool:
    """Whether the model has latent attention with rotary positions that are not scaled by yarn.
    Megatron's fused kernel for latent attention takes only yarn's (transformer_config.py,
    MLATransformerConfig)."""
    return (
        architecture.has_mla(model)
        and architecture.has_rope(model)
        and architecture.scaling_kind(model) != "yarn"
    )


PATTERN = "hybrid-layer-pattern"
SPEC = "spec"
PREDICTORS, BLOCKS = "/", "|"
DELTA_NET = "gated_delta_net"
_HYBRID = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
CHUNK, DELTA_CHUNK = 128, 64


def is_hybrid(model: ModelSpec) -> bool:
    """Whether Megatron trains the model as a hybrid, given as a layer pattern."""
    separate = any("none" in (kind.attention, kind.ffn) for kind in model.kinds)
    return (model.has_states and not is_delta(model)) or separate


def is_delta(model: ModelSpec) -> bool:
    """Whether the model's state-space layers are gated delta nets."""
    return model.state_space is not None and model.state_space.kind == "gated_delta"


def hybrid_flags(model: ModelSpec, layout: Layout) -> tuple[Flag, ...]:
    """The flags of a hybrid's layer pattern, with `|` between pipeline blocks and `/` before each
    prediction layer."""
    pattern, start, blocks = layer_pattern(model), 0, []
    for count in layout.block_layers if layout.pp > 1 else (len(pattern),):
        blocks.append(pattern[start : start + count])
        start += count
    predictors = (PREDICTORS + ("*E" if model.moe else "*-")) * model.mtp_layers
    return flag(f"--{SPEC}", *_HYBRID), flag(f"--{PATTERN}", BLOCKS.join(blocks) + predictors)


# `F.gelu` under Megatron's fused bias is the tanh approximation.
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_SILU = ("silu", "swish")
_SQUARED_RELU = ("relu2", "squared_relu")
# Megatron's name of the balancing loss, by the tokens that it is taken over.
LOSSES = {"batch": "aux_loss", "sequence": "seq_aux_loss"}


def is_clamped(model: ModelSpec) -> bool:
    """Whether the experts use gpt-oss's clamped and shifted SwiGLU."""
    return model.moe is not None and model.moe.clamp is not None


def activation_of(model: ModelSpec) -> str:
    """Bridge's name for the activation; empty if Megatron does not have it."""
    if model.gated:
        return ("quick_gelu" if is_clamped(model) else "silu") if model.activation in _SILU else ""
    if model.activation in _SQUARED_RELU:
        return "squared_relu"
    return "gelu" if model.activation in _GELU else ""


def linear_bias(model: ModelSpec) -> bool | None:
    """Whether all linear layers have biases; None if only some have, which Megatron cannot
    express."""
    found = {model.attention_out_bias}
    if any(kind.ffn == "dense" for kind in model.kinds):
        found.add(model.mlp_bias)
    if model.moe is not None:
        found |= {model.moe.expert_bias, model.moe.router_bias}
    if found == {True} and model.qkv_bias:
        return True
    return False if found == {False} else None


def window_marks(model: ModelSpec) -> list[bool]:
    """For each layer, whether it has a sliding window; empty if none has."""
    slides = [kind.attention == "sliding" for kind in model.kind_sequence]
    return slides if any(slides) else []


def expert_marks(model: ModelSpec) -> list[bool]:
    """For each layer, whether it has experts."""
    return [kind.ffn == "moe" for kind in model.kind_sequence]


_POSITIONS = {"learned": "learned_absolute"}


def _whole(number: float) -> int | float:
    return int(number) if number % 1 == 0 else number


def _facts(model: ModelSpec) -> Mapping[str, object]:
    """Names, in addition to the model, that rows of `model.toml` may use."""
    moe, slide, expert = model.moe, window_marks(model), expert_marks(model)
    seen = (model.sliding_window or 1) - 1
    delta, state = is_delta(model), [kind.attention == "state" for kind in model.kind_sequence]
    yarn = (
        architecture.has_rope(model)
        and architecture.scaling_kind(model) == "yarn"
        and not architecture.has_mla(model)
    )
    return {
        "activation": activation_of(model),
        "all_experts": all(expert),
        "all_slide": all(slide),
        "attention_scale": architecture.attention_scale(model),
        "balancing": LOSSES[moe.aux_loss_over] if moe and moe.aux_loss else "none",
        "chunk": DELTA_CHUNK if delta else CHUNK,
        "clamped": is_clamped(model),
        "constants": architecture.constants(model),
        "delta": delta,
        "expert_marks": [int(mark) for mark in expert],
        "expert_pattern": pattern(expert),
        "hybrid": is_hybrid(model),
        "kind": f"gated {model.activation}" if model.gated else model.activation,
        "linear_bias": linear_bias(model),
        "linear_factor": _whole(model.rope.scaling.factor) if model.rope.scaling else None,
        "mamba": model.has_states and not delta,
        "mixed": any(kind.attention == "both" for kind in model.kinds),
        "patterned": bool(layer_pattern(model)) if model.has_states else False,
        "position": "yarn" if yarn else _POSITIONS.get(model.position, model.position),
        "rotary_base": _whole(model.rope.theta),
        "slides": bool(slide),
        "space": model.state_space,
        "state_marks": [int(mark) for mark in state],
        "state_pattern": pattern(state),
        "width": model.ffn or (moe.ffn if moe else 0),
        "window": [seen, 0],
        "window_marks": [int(mark) for mark in slide],
        "window_pattern": pattern(slide),
        "window_text": f"{seen},0",
    }


_NAMES = architecture.names_of_model(_facts)


def _row(entry: Mapping[str, Any]) -> MegatronRow:
    """A row of `model.toml`. Without a stated value it takes that of its first field, for models
    that have the field's table. A switch is given, and is true for Bridge, if its value is true."""
    names = tuple(entry["fields"].split())
    if "lacks" in entry:
        return MegatronRow(names, refuses=architecture.without(names[0], entry["lacks"]).refuses)
    flag, field = entry.get("flag", ""), entry.get("field", "")
    value, default, more = architecture.parts_of(entry, _NAMES, ("refuses", "departs", "no_flag"))
    if value is None and (flag or field):
        value = architecture.as_it_is(names[0])
        more = {"when": architecture.has_table_of(names[0]), "plain": True} | more
    if value is not None and entry.get("switch"):
        holds, default = value, None
        value, more["bridge"] = lambda model: bool(holds(model)) or None, lambda m: bool(holds(m))
    elif "bridge" in entry:
        more["bridge"] = architecture.value_of_text(entry["bridge"], _NAMES)
    return MegatronRow(names, flag, value or architecture.nothing, default, field=field, **more)


_ROWS = {
    title: tuple(map(_row, rows)) for title, rows in dialect_toml("megatron", "model.toml").items()
}
POSITIONS = _ROWS["positions"]
MAMBA = tuple(entry for entry in _ROWS["states"] if entry.key.startswith("--mamba-"))
DELTA = tuple(
    entry for entry in _ROWS["states"] if entry.key.startswith("--linear-") and entry.plain
)
GROUPS: tuple[tuple[str, tuple[MegatronRow, ...]], ...] = (
    ("model", (*_ROWS["trunk"], *POSITIONS)),
    ("attention", _ROWS["attention"]),
    ("state spaces", _ROWS["states"]),
    ("experts", _ROWS["experts"]),
)
MEGATRON: tuple[MegatronRow, ...] = tuple(entry for _, rows in GROUPS for entry in rows)
_BY_FLAG = {entry.key: entry for entry in MEGATRON}
SWIGLU, QUICK_GEGLU = _BY_FLAG["--swiglu"], _BY_FLAG["--quick-geglu"]
SQUARED_RELU = _BY_FLAG["--squared-relu"]
GROUPED, LATENT = _BY_FLAG["--group-query-attention"], _BY_FLAG["--multi-latent-attention"]
WINDOW_SKIPS, EXPERT_LAYERS = _BY_FLAG["--window-attn-skip-freq"], _BY_FLAG["--moe-layer-freq"]
BALANCING = _BY_FLAG["--moe-router-load-balancing-type"]
LINEAR_LAYERS, LATENT_STRETCH = _BY_FLAG["--linear-attention-freq"], _BY_FLAG["--rope-type"]
LLAMA3_STRETCH = _BY_FLAG["--use-rope-scaling"]
LINEAR_STRETCH = _BY_FLAG["--rotary-seq-len-interpolation-factor"]


def option(field: str) -> str:
    """The name, without dashes, of the flag for a field of the model. If a field has several flags,
    the one whose value is the field's value."""
    rows = [entry for entry in MEGATRON if entry.key and entry.fields[0] == field]
    (name,) = {entry.name for entry in rows if entry.plain} or {entry.name for entry in rows}
    return name


def _as_flag(entry: MegatronRow) -> architecture.ArchitectureRow:
    """The row as the command line uses it. It also refuses models that only Megatron-Bridge can
    express, since no flag can."""
    refuses = entry.refuses
    if entry.no_flag is not architecture.nothing:
        refuses = lambda model: entry.refuses(model) or entry.no_flag(model)  # noqa: E731
    return architecture.ArchitectureRow(
        entry.fields, entry.key, entry.value, entry.default, entry.when, refuses, entry.departs
    )


def _as_field(entry: MegatronRow) -> architecture.ArchitectureRow:
    """The row for Megatron-Bridge, whose field is always written."""
    key = f"model.{entry.field}" if entry.field else ""
    return architecture.ArchitectureRow(
        entry.fields, key, entry.override, when=entry.when, refuses=entry.refuses,
        departs=entry.departs,
    )  # fmt: skip


FLAGS: tuple[architecture.ArchitectureRow, ...] = tuple(_as_flag(entry) for entry in MEGATRON)
BRIDGE: tuple[architecture.ArchitectureRow, ...] = tuple(_as_field(entry) for entry in MEGATRON)
