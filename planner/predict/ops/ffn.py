"""Rows of the feed-forward block: norms around a dense block or experts, and the residual."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import Shard
from planner.job.modules import Module
from planner.job.specs import LayerKind
from planner.predict.ops.context import OpContext, norm, residual
from planner.predict.ops.mlp import mlp_rows
from planner.predict.ops.moe import moe_rows
from planner.predict.ops.rows import Op


def ffn_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of one feed-forward block of the given kind."""
    moe = context.model.moe
    body = moe_rows(context, moe) if kind.ffn == "moe" and moe else _dense_rows(context)
    return (
        *_input_norm(context, kind),
        *body,
        *_output_norm(context),
        residual(context, "ffn/residual", Module.NOTHING),
    )


def _input_norm(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm before the block; none when one norm feeds both branches or norms come after."""
    if context.model.block in ("single", "post"):
        return ()
    hidden, alone = context.model.hidden, context.norm_in_linear
    if kind.ffn == "moe":
        alone = Module.LAYERNORM
    row = norm(context, "ffn/norm", hidden, Shard.SEQUENCE, Module.NOTHING, alone=alone)
    copies = context.norm_input_bytes != context.saved.residual_bytes
    if context.model.block == "parallel" and not copies:
        # Both norms of parallel branches keep the same input.
        row = replace(row, saved=tuple(item for item in row.saved if item.name != "ffn/norm/input"))
    return (row,)


def _output_norm(context: OpContext) -> tuple[Op, ...]:
    if context.model.block not in ("sandwich", "post"):
        return ()
    hidden = context.model.hidden
    nothing = Module.NOTHING
    return (norm(context, "ffn/post_norm", hidden, Shard.SEQUENCE, nothing, of_product=True),)


def _dense_rows(context: OpContext) -> tuple[Op, ...]:
    """Column-parallel up (and gate), activation, row-parallel down."""
    return mlp_rows(context, "mlp", float(context.model.ffn), Module.MLP)
