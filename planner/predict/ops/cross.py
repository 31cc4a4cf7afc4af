"""Rows of cross-attention to images (Llama 3.2), whose keys and values belong to image tiles.

Each token of a sample attends to all tokens of its images, which are not part of the row:
`ImageLoad.seen` image tokens per token. Queries and keys each have a norm, and neither is rotated.
A mask marks the tiles of each image, so fused kernels cannot share key/value heads: these are
copied for every query head, and the mask is kept (transformers 5.23, modeling_mllama.py,
MllamaTextCrossAttention; integrations/sdpa_attention.py, use_gqa_in_sdpa).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.job.specs import LayerKind
from planner.predict.ops.attention import attention_output, norms_of_heads
from planner.predict.ops.attention_core import core_row
from planner.predict.ops.context import WHOLE_LAYER, OpContext, elementwise, present
from planner.predict.ops.linear import column_parallel, linear_inputs, tp_entry
from planner.predict.ops.rows import Op, Saved, times

# Bytes of an element of the mask.
_MASK = 2.0


def cross_rows(context: OpContext) -> tuple[Op, ...]:
    """All rows of cross-attention, between the norm of its block and the residual."""
    return (
        _query(context),
        *_keys_and_values(context),
        *_norms(context),
        _core(context),
        attention_output(context),
    )


def gate_row(context: OpContext, block: str, *, masked: bool = False) -> Op:
    """The row that multiplies a block's output by a learned factor. It keeps the scaled tensor,
    which the factor's gradient needs. `masked`: a mask of rows in the type of the weights was
    multiplied with the output before, so the kept tensor has the residual's type."""
    hidden = float(context.model.hidden)
    row = elementwise(context, f"{block}/gated", hidden, Shard.SEQUENCE, (2, 4))
    kept = context.kept(f"{block}/scaled", hidden, Shard.SEQUENCE)
    if masked:
        kept = replace(kept, bytes_per_token=context.saved.residual_bytes * hidden)
    return replace(row, parameters=((1.0, ParamShard.NONE),), saved=(kept,))


def _query(context: OpContext) -> Op:
    hidden, name = float(context.model.hidden), "attention/q"
    inputs = linear_inputs(context, name, hidden, context.norm_in_linear)
    gathers = tp_entry(context, name, hidden, WHOLE_LAYER)
    return column_parallel(name, (hidden, float(context.model.query_width)), inputs, gathers)


def _keys_and_values(context: OpContext) -> Iterator[Op]:
    """Products of the projector's output, which all layers share; the projector's row lists it as
    kept."""
    model = context.model
    for name in ("attention/k", "attention/v"):
        width = float(model.kv_width)
        yield Op(
            name=name,
            kind=OpKind.GEMM,
            tokens_factor=model.images.seen,
            kv_out_width=width,
            in_width=float(model.hidden),
            parameters=((width * model.hidden, ParamShard.KV),),
            rerun_with=WHOLE_LAYER,
        )


def _norms(context: OpContext) -> Iterator[Op]:
    """A norm of each head of queries, and of each head of keys."""
    count = context.norm_parameters * context.model.head_dim
    for row, _ in norms_of_heads(context, per_head=True, gated=False):
        factor = context.model.images.seen if row.name.endswith("k_norm") else 1.0
        yield times(replace(row, parameters=((count, ParamShard.NONE),)), factor)


def _core(context: OpContext) -> Op:
    """Core attention of every token over the tokens of the sample's images."""
    images, model = context.model.images, context.model
    row = core_row(replace(context, seq=images.across), LayerKind())
    copied = model.heads / model.kv_heads if context.attention == "flash" else 1.0
    saved = tuple(
        replace(kept, bytes_per_token=kept.bytes_per_token * images.seen * copied)
        if kept.name in _OF_IMAGES
        else kept
        for kept in row.saved
    )
    padded = -(-images.across // _ALIGNED) * _ALIGNED
    # Unfused attention adds the mask to the scores and does not keep it.
    size = _MASK * padded * (context.attention == "flash")
    mask = Saved("attention/mask", size, Shard.NONE, WHOLE_LAYER | Module.CORE_ATTENTION)
    return replace(row, span=float(images.across), saved=(*saved, *present((mask,))))


# Tensors of keys and values in core attention; the mask's rows are padded to whole vectors.
_OF_IMAGES = ("attention/k", "attention/v", "attention/k_expanded", "attention/v_expanded")
_ALIGNED = 8
