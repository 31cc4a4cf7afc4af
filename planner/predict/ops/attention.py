"""Rows of the attention block: norm, projections, rotary, core attention, output, residual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.job.specs import LayerKind, MlaSpec
from planner.predict.ops.attention_core import core_row
from planner.predict.ops.context import WHOLE_LAYER, OpContext, elementwise, norm, present
from planner.predict.ops.linear import (
    column_parallel,
    linear_inputs,
    replicated,
    row_parallel,
    tp_entry,
)
from planner.predict.ops.rows import Op, Saved

# torchtitan's per-op policy keeps the block's input and the outputs of the ops that it lists.
_POLICY = Module.SELECTIVE_OP


def attention_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of attention in a layer of this kind, between the norms of its block."""
    mla = context.model.mla
    return (
        *(_mla_rows(context, mla) if mla else _qkv_rows(context)),
        *_l2_norm(context, kind),
        core_row(context, kind),
        *_gate(context),
        attention_output(context),
    )


def _gate(context: OpContext) -> tuple[Op, ...]:
    """The row that multiplies the output of attention by a sigmoid gate; empty if the model has no
    such gate. The query projection computes the gate as additional outputs."""
    model, width = context.model, float(context.model.attention_out_width)
    if not model.attention_gate:
        return ()
    # The gate and the output before it are kept; their product is the output projection's input.
    kept = context.kept("attention/gate", 2.0 * width, Shard.TP)
    row = elementwise(context, "attention/gate", width, Shard.TP, (3, 5))
    return (replace(row, saved=(kept,)),)


def layer_checkpoint(context: OpContext) -> Saved:
    """The tensor that is kept only if whole layers are recomputed: the input of the layer or, if
    the framework checkpoints the layer's parts, the input of each."""
    return Saved(
        "layer/checkpoint",
        context.saved.checkpoint_inputs * context.saved.residual_bytes * context.model.hidden,
        Shard.SEQUENCE,
        Module.NOTHING,
        only_with=WHOLE_LAYER,
    )


def input_norm(context: OpContext) -> tuple[Op, ...]:
    """Norm before attention, with the checkpoint of whole-layer recomputation."""
    checkpoint = layer_checkpoint(context)
    if context.model.block == "post":
        keeper = elementwise(context, "attention/input", 0.0, Shard.SEQUENCE, (0, 0))
        return (replace(keeper, saved=(checkpoint,)),)
    alone = Module.LAYERNORM if context.model.mla else context.norm_in_linear
    row = norm(context, "attention/norm", context.model.hidden, alone=alone)
    return (replace(row, saved=(*row.saved, checkpoint)),)


def output_norm(context: OpContext, name: str) -> tuple[Op, ...]:
    """Norm after a block (Gemma 2/3, OLMo 2)."""
    if context.model.block not in ("sandwich", "post"):
        return ()
    return (norm(context, name, context.model.hidden, of_product=True),)


def _qkv_rows(context: OpContext) -> tuple[Op, ...]:
    """Query, key and value projections of MHA, GQA and MQA, their norms and rotation."""
    model, name = context.model, "attention/qkv"
    bias = 1.0 if model.qkv_bias else 0.0
    width_q, width_kv = float(model.query_width), float(model.kv_width)
    width_out = width_q * (2.0 if model.attention_gate else 1.0)
    hidden = float(model.hidden)
    products = 1 if context.applies(context.saved.fused_qkv_families) else 3
    inputs = linear_inputs(context, name, hidden, context.norm_in_linear, consumers=products)
    outputs = (("q", width_q, Shard.TP), ("v", width_kv, Shard.KV))
    qkv = Op(
        name=name,
        kind=OpKind.GEMM,
        out_width=width_out,
        out_shard=Shard.TP,
        kv_out_width=2 * width_kv,
        in_width=hidden,
        parameters=(
            (width_out * (hidden + bias), ParamShard.TP),
            (2 * width_kv * (hidden + bias), ParamShard.KV),
        ),
        saved=(
            *inputs,
            *(
                Saved(f"attention/{of}_output", 2 * width, shard, Module.NOTHING, _POLICY)
                for of, width, shard in outputs
            ),
        ),
        collectives=tp_entry(context, name, hidden, WHOLE_LAYER),
    )
    return (qkv, *_qk_norm(context), *_rotary(context, width_q + width_kv))


def _qk_norm(context: OpContext) -> tuple[Op, ...]:
    """Norms of queries and keys: per head (Qwen3, Gemma 3) or over the full width (OLMo 2)."""
    model = context.model
    if model.qk_norm == "none":
        return ()
    per_head = model.qk_norm == "head"
    shard = ParamShard.NONE if per_head else ParamShard.TP
    rows = []
    # Transformer Engine's module computes both gradients in one call.
    kernels = 1.0 if context.saved.norms_in_linears else 2.0
    for row, width in norms_of_heads(context, per_head=per_head, gated=model.attention_gate):
        count = context.norm_parameters * (model.head_dim if per_head else width)
        rows.append(replace(row, backward_kernels=kernels, parameters=((count, shard),)))
    return tuple(rows)


def _l2_norm(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Rows that divide queries and keys by their length (L2 norm); empty unless the model does so
    in this kind of layer. This norm has no learned scale, so no normalised tensor is kept."""
    if not context.model.qk_l2_norm or kind.attention != "sliding":
        return ()
    rows = []
    for row, _ in norms_of_heads(context, per_head=True, gated=False):
        scaled = (f"{row.name}/normalised", f"{row.name}/weight")
        saved = tuple(kept for kept in row.saved if kept.name not in scaled)
        rows.append(replace(row, saved=saved, parameters=()))
    return tuple(rows)


def norms_of_heads(
    context: OpContext, *, per_head: bool, gated: bool
) -> Iterator[tuple[Op, float]]:
    """The rows of the query norm and of the key norm, each with its width in elements per token.
    `per_head`: each head has statistics of its own, and all heads share the scale of one head; else
    one norm spans all heads. `gated`: half of the query projection's output is a gate, which the
    kept input of the query norm keeps alive too."""
    model = context.model
    for name, width, heads, shard in (
        ("q_norm", float(model.query_width), model.heads, Shard.TP),
        ("k_norm", float(model.kv_width), model.kv_heads, Shard.KV),
    ):
        viewed = width if gated and name == "q_norm" else 0.0
        row = norm(context, f"attention/{name}", width, shard, of_product=True, viewed=viewed)
        count = heads if per_head else 1
        copy_bytes = context.saved.norm_weight_copy_bytes * width / count
        saved = tuple(_of_heads(context, kept, count, copy_bytes) for kept in row.saved)
        yield replace(row, saved=saved), width


def _of_heads(context: OpContext, kept: Saved, count: int, copy_bytes: float) -> Saved:
    """A tensor that a norm keeps, changed for a norm of `count` separate heads: statistics for each
    head, and a weight copy of `copy_bytes` bytes. Other tensors are unchanged."""
    match kept.name.rpartition("/")[2]:
        case "statistics":
            return replace(kept, bytes_per_token=context.norm_statistics_bytes * count)
        case "weight":
            return replace(kept, fixed_bytes=copy_bytes)
    return kept


def _rotary(context: OpContext, width: float) -> tuple[Op, ...]:
    """The row of rotary embedding; empty if the model has none. Forward and backward each read and
    write queries and keys once. It keeps only cosines and sines, and those only if each layer
    computes its own."""
    if context.model.position != "rope":
        return ()
    passes = 2.0 * context.profile.kernels.rotary_traffic
    row = elementwise(context, "attention/rope", width, Shard.TP, (passes, passes))
    tables = context.saved.rotary_layer_bytes * context.model.rotary_width
    if not tables:
        return (row,)
    kept = Saved("attention/rotary", 0.0, Shard.NONE, WHOLE_LAYER, fixed_bytes=tables * context.seq)
    return (replace(row, saved=(kept,)),)


def _mla_rows(context: OpContext, mla: MlaSpec) -> tuple[Op, ...]:
    """Multi-head latent attention (arXiv 2405.04434, equations 9-18).

    Down-projections are replicated over tp, up-projections are split by heads. Of the two products
    that read the layer's input, the first lists it as kept.
    """
    heads, hidden = float(context.model.heads), float(context.model.hidden)
    q_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    kv_up_width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    kv_rank, rotated = float(mla.kv_lora_rank), float(mla.qk_rope_head_dim)
    rank = float(mla.q_lora_rank or 0)
    first = "attention/q_down" if rank else "attention/q"
    inputs = linear_inputs(context, first, hidden, Module.LAYERNORM, consumers=2)
    query: tuple[Op, ...]
    if rank:
        query = (
            replicated(first, (hidden, rank), inputs),
            norm(context, "attention/q_norm", rank, of_product=True),
            _mla_up(context, "attention/q_up", rank, q_width),
        )
    else:
        gathers = tp_entry(context, first, hidden, WHOLE_LAYER)
        query = (column_parallel(first, (hidden, q_width), inputs, gathers, Module.FULL),)
    again = WHOLE_LAYER | Module.MLA_UP_PROJ
    return (
        *query,
        replicated("attention/kv_down", (hidden, kv_rank + rotated), ()),
        norm(context, "attention/kv_norm", kv_rank, of_product=True, viewed=rotated),
        _mla_up(context, "attention/kv_up", kv_rank, kv_up_width),
        elementwise(context, "attention/rope_and_concat", 2 * q_width, Shard.TP, (2, 2), again),
    )


def _mla_up(context: OpContext, name: str, rank: float, width: float) -> Op:
    """Up-projection from the normalised latent, which is gathered over tp first."""
    inputs = linear_inputs(context, name, rank, context.norm_in_linear)
    gathers = tp_entry(context, name, rank, WHOLE_LAYER)
    return column_parallel(name, (rank, width), inputs, gathers, WHOLE_LAYER | Module.MLA_UP_PROJ)


def _output_widths(context: OpContext) -> tuple[float, float]:
    """Width of the attention output in elements per token, as a pair: of the tensor that attention
    keeps, and of a separate copy that the output projection reads and keeps (0 if both use the same
    tensor). Only flash attention may have a separate copy: its output is reordered, or padded to
    the width of the queries."""
    model, width = context.model, float(context.model.attention_out_width)
    if context.attention != "flash":
        return width, 0.0
    if model.mla and context.saved.fused_pads_values:
        return float(model.query_width), width
    return width, width if context.applies(context.saved.rotary_concat_families) else 0.0


def attention_output(context: OpContext) -> Op:
    """Output projection (row-parallel); its input is the attention output."""
    model = context.model
    width = float(model.attention_out_width)
    shared, copied = _output_widths(context)
    kept = context.kept("attention/output", shared, Shard.TP, Module.FULL)
    plain = context.kept("attention/output_copied", copied, Shard.TP, Module.FULL)
    # An fp8 product keeps its quantised input in addition to the output that attention keeps.
    quantised = context.quantised_input_bytes * width
    copy = Saved("attention/output_quantised", quantised, Shard.TP, WHOLE_LAYER)
    # Heads that come back by an all-to-all form a new tensor for the projection; attention keeps
    # its output in the order of heads as well (Transformer Engine, context_parallel.py; DeepSpeed,
    # sequence/layer.py).
    twice = context.exchanges_heads and context.attention == "flash" and not quantised
    freed = WHOLE_LAYER | Module.CORE_ATTENTION
    returned = context.kept("attention/output_exchanged", twice * width, Shard.TP, freed)
    return row_parallel(
        "attention/out_proj",
        (width, float(model.hidden)),
        (kept, *present((plain, copy, replace(returned, exchanged=True)))),
        bias=model.attention_out_bias,
    )
