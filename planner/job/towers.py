"""A vision tower's layers in the form of a model's layers whose tokens are patches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from planner.job.specs import ModelSpec, tower_kinds
from planner.job.tuned_layers import ALL_LINEAR, in_groups
from planner.job.tuning import VISION_TOWER, Tuning
from planner.job.vision import TowerSpec

# Tower layers with the same names as a language model's, where peft finds them by these names.
_SAME_NAMES: Mapping[str, tuple[str, ...]] = {
    "qwen2_5_vl": ("gate", "up", "down"),
    "clip": ("q", "k", "v"),
    "moonvit": ("q", "k", "v"),
    "siglip": ("q", "k", "v"),
    "idefics3": ("q", "k", "v"),
    "internvl": ("q", "k", "v"),
    "pixtral": ("q", "k", "v", "o", "gate", "up", "down"),
    "llama4": ("q", "k", "v", "o"),
    "mllama": ("q", "k", "v", "o"),
}


@cache
def tower_model(tower: TowerSpec) -> ModelSpec:
    """The shape from which the op table's rows of a tower are made."""
    return ModelSpec(
        name="vision tower",
        family=f"vision_{tower.kind}",
        layers=tower.layers,
        hidden=tower.hidden,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.head_dim or tower.hidden // tower.heads,
        ffn=tower.ffn,
        vocab=1,
        max_positions=max(1, tower.positions),
        pretraining_seq=1,
        gated=tower.gated,
        activation=tower.activation,
        norm=tower.norm,
        position="rope" if tower.rotary else "none",
        qkv_bias=tower.qkv_bias,
        attention_out_bias=tower.out_bias,
        mlp_bias=tower.mlp_bias,
        norm_bias=tower.norm == "layernorm",
        qk_norm=tower.qk_norm,
        sliding_window=tower.window or None,
        layer_kinds=tower_kinds(tower),
    )


def part_targets(tuning: Tuning, part: str, kind: str = "") -> tuple[str, ...]:
    """Linear layers with adapters in one kind of tower layer, or in the projector: those whose
    names are requested, or all."""
    if not tuning.has_adapters or ALL_LINEAR in tuning.targets:
        return tuning.targets
    named = _SAME_NAMES.get(kind, ()) if part == VISION_TOWER else ()
    return tuple(name for name in in_groups(tuning.targets) if name in named)
