"""A vision tower's layers as those of a model, whose tokens are patches."""

from __future__ import annotations

from functools import cache

from planner.job.specs import ModelSpec, tower_kinds
from planner.job.vision import TowerSpec


@cache
def tower_model(tower: TowerSpec) -> ModelSpec:
    """The shape that the op table's rows of a tower are made from."""
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
