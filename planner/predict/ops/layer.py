"""Rows of one layer of any kind: a mixer of tokens, a feed-forward block, or both."""

from __future__ import annotations

from dataclasses import replace

from planner.job.modules import Module
from planner.job.specs import LayerKind
from planner.predict.ops.attention import (
    attention_rows,
    input_norm,
    layer_checkpoint,
    output_norm,
)
from planner.predict.ops.context import OpContext, residual
from planner.predict.ops.ffn import ffn_rows
from planner.predict.ops.rows import Op
from planner.predict.ops.state_space import state_rows


def layer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of a layer; a feed-forward block alone keeps the layer's checkpoint itself."""
    if kind.attention == "none":
        first, *rest = ffn_rows(context, kind)
        return (replace(first, saved=(*first.saved, layer_checkpoint(context))), *rest)
    mixer = _mixer_rows(context, kind)
    return mixer if kind.ffn == "none" else (*mixer, *ffn_rows(context, kind))


def _mixer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm, attention or a state space or both of the same input, residual."""
    return (
        *input_norm(context),
        *(attention_rows(context, kind) if kind.attention != "state" else ()),
        *(state_rows(context, kind) if kind.attention in ("state", "both") else ()),
        *output_norm(context),
        residual(context, "attention/residual", Module.NOTHING),
    )
