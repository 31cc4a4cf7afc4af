"""How Megatron-LM and Megatron-Bridge say a model: one table for both.

Flags and defaults: megatron-core 0.19, `megatron/training/arguments.py`, `argument_utils.py` and
`core/transformer/transformer_config.py`; fields of Megatron-Bridge 0.6.2: `gpt_provider.py`,
`mla_provider.py`. Bridge's fields are all written, so that its own defaults do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    attention_scale,
    constants,
    has_mla,
    has_rope,
    nothing,
    scaling_kind,
)
from planner.launch.dialects.megatron.rows import (
    CHUNK,
    DELTA_CHUNK,
    MegatronRow,
    is_delta,
    is_hybrid,
    pattern,
    row,
    switch,
    without,
)
from planner.launch.model_rows import names_of_model, parts_of, value_of_text
from planner.launch.registry import dialect_toml

# What `F.gelu` under Megatron's fused bias is: the tanh approximation.
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_SILU = ("silu", "swish")
_SQUARED_RELU = ("relu2", "squared_relu")
# Over what the loss that balances experts is taken -> its name.
LOSSES = {"batch": "aux_loss", "sequence": "seq_aux_loss"}


def is_clamped(model: ModelSpec) -> bool:
    """Whether the SwiGLU of the experts is gpt-oss's clamped and shifted one."""
    return model.moe is not None and model.moe.clamp is not None


def _activation(model: ModelSpec) -> str:
    """Bridge's name of the activation; empty where Megatron has none such."""
    if model.gated:
        return ("quick_gelu" if is_clamped(model) else "silu") if model.activation in _SILU else ""
    if model.activation in _SQUARED_RELU:
        return "squared_relu"
    return "gelu" if model.activation in _GELU else ""


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


def window_marks(model: ModelSpec) -> list[bool]:
    """Which layers have a sliding window; empty if none has."""
    slides = [kind.attention == "sliding" for kind in model.kind_sequence]
    return slides if any(slides) else []


def expert_marks(model: ModelSpec) -> list[bool]:
    """Which layers have experts."""
    return [kind.ffn == "moe" for kind in model.kind_sequence]


_POSITIONS = {"learned": "learned_absolute"}


def _whole(number: float) -> int | float:
    return int(number) if number % 1 == 0 else number


def _facts(model: ModelSpec) -> Mapping[str, object]:
    """What rows of `model.toml` name besides the model."""
    moe, slide, expert = model.moe, window_marks(model), expert_marks(model)
    seen = (model.sliding_window or 1) - 1
    delta, state = is_delta(model), [kind.attention == "state" for kind in model.kind_sequence]
    yarn = has_rope(model) and scaling_kind(model) == "yarn" and not has_mla(model)
    return {
        "activation": _activation(model),
        "all_experts": all(expert),
        "all_slide": all(slide),
        "attention_scale": attention_scale(model),
        "balancing": LOSSES[moe.aux_loss_over] if moe and moe.aux_loss else "none",
        "chunk": DELTA_CHUNK if delta else CHUNK,
        "clamped": is_clamped(model),
        "constants": constants(model),
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


_NAMES = names_of_model(_facts)


def _row(entry: Mapping[str, Any]) -> MegatronRow:
    """A row of `model.toml`."""
    fields, flag, field = entry["fields"], entry.get("flag", ""), entry.get("field", "")
    if "lacks" in entry:
        return without(fields, entry["lacks"])
    value, default, more = parts_of(entry, _NAMES, ("refuses", "departs", "no_flag"))
    if entry.get("switch"):
        return switch(fields, flag, field, value, **more)
    if "bridge" in entry:
        more["bridge"] = value_of_text(entry["bridge"], _NAMES)
    return row(fields, flag, field, value, default, **more)


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
