"""Rows of one layer of any kind: a mixer of tokens, a feed-forward block, or both."""

from __future__ import annotations

from dataclasses import replace

from planner.job.recompute import Module
from planner.job.specs import LayerKind
from planner.predict.ops.attention import (
    attention_rows,
    input_norm,
    layer_checkpoint,
    output_norm,
)
from planner.predict.ops.context import OpContext, norm, residual
from planner.predict.ops.mlp import mlp_rows
from planner.predict.ops.moe import moe_rows
from planner.predict.ops.rows import Op
from planner.predict.ops.state_space import state_rows


def layer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of a layer; a feed-forward block alone keeps the layer's checkpoint itself."""
    if kind.attention == "none":
        first, *rest = _ffn_rows(context, kind)
        return (replace(first, saved=(*first.saved, layer_checkpoint(context))), *rest)
    mixer = _mixer_rows(context, kind)
    return mixer if kind.ffn == "none" else (*mixer, *_ffn_rows(context, kind))


def _mixer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm, attention or a state space or both of the same input, residual."""
    return (
        *input_norm(context),
        *(attention_rows(context, kind) if kind.attention != "state" else ()),
        *(state_rows(context, kind) if kind.attention in ("state", "both") else ()),
        *output_norm(context, "attention/post_norm"),
        residual(context, "attention/residual"),
    )


def _ffn_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norms around a dense block or experts, and the residual."""
    model = context.model
    experts = model.moe if kind.ffn == "moe" else None
    dense = () if experts else mlp_rows(context, "mlp", float(model.ffn), Module.MLP)
    return (
        *_ffn_norm(context, kind),
        *(moe_rows(context, experts) if experts else dense),
        *output_norm(context, "ffn/post_norm"),
        residual(context, "ffn/residual"),
    )


def _ffn_norm(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm before the block; none when one norm feeds both branches or norms come after."""
    if context.model.block in ("single", "post"):
        return ()
    alone = Module.LAYERNORM if kind.ffn == "moe" else context.norm_in_linear
    row = norm(context, "ffn/norm", context.model.hidden, alone=alone)
    copies = context.norm_input_bytes != context.saved.residual_bytes
    if context.model.block == "parallel" and not copies:
        # Both norms of parallel branches keep the same input.
        row = replace(row, saved=tuple(item for item in row.saved if item.name != "ffn/norm/input"))
    return (row,)
