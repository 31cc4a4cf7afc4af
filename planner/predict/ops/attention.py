"""Rows of the attention block: norm, projections, rotary, core attention, output, residual."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.modules import Module
from planner.job.specs import LayerKind
from planner.predict.ops.attention_core import core_row
from planner.predict.ops.context import (
    WHOLE_LAYER,
    OpContext,
    elementwise,
    linear_inputs,
    norm,
)
from planner.predict.ops.rows import Collective, Op, Saved

# Kept by torchtitan's per-op policy: the block's input and the outputs of the ops it lists.
_POLICY = Module.SELECTIVE_OP


def attention_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of attention of the given kind, between the norms of its block."""
    projections = _mla_rows(context) if context.model.mla else _qkv_rows(context)
    return (
        *projections,
        *_l2_norm(context, kind),
        core_row(context, kind),
        *_gate(context),
        _output(context),
    )


def _gate(context: OpContext) -> tuple[Op, ...]:
    """A sigmoid gate on the output of attention, one more output of the query projection."""
    model, width = context.model, float(context.model.attention_out_width)
    if not model.attention_gate:
        return ()
    # The gate and the output before it; the product is the input of the output projection.
    kept = Saved(
        "attention/gate", 2.0 * context.saved.activation_bytes * width, Shard.TP, WHOLE_LAYER
    )
    row = elementwise(context, "attention/gate", width, Shard.TP, 3, 5)
    return (replace(row, saved=(kept,)),)


def layer_checkpoint(context: OpContext) -> Saved:
    """What recomputation of the whole layer keeps: its input."""
    return Saved(
        "layer/checkpoint",
        context.saved.residual_bytes * context.model.hidden,
        Shard.SEQUENCE,
        Module.NOTHING,
        only_with=WHOLE_LAYER,
    )


def input_norm(context: OpContext) -> tuple[Op, ...]:
    """Norm before attention, with the checkpoint that whole-layer recomputation keeps."""
    model = context.model
    checkpoint = layer_checkpoint(context)
    if model.block == "post":
        keeper = elementwise(context, "attention/input", 0.0, Shard.SEQUENCE, 0, 0)
        return (replace(keeper, saved=(checkpoint,)),)
    alone = Module.LAYERNORM if model.mla else context.norm_in_linear
    row = norm(context, "attention/norm", model.hidden, Shard.SEQUENCE, Module.NOTHING, alone=alone)
    return (replace(row, saved=(*row.saved, checkpoint)),)


def output_norm(context: OpContext) -> tuple[Op, ...]:
    """Norm after attention (Gemma 2/3, OLMo 2)."""
    if context.model.block not in ("sandwich", "post"):
        return ()
    return (
        norm(
            context,
            "attention/post_norm",
            context.model.hidden,
            Shard.SEQUENCE,
            Module.NOTHING,
            of_product=True,
        ),
    )


def tp_entry(
    context: OpContext, name: str, width: float, rerun_with: Module
) -> tuple[Collective, ...]:
    """Tensor-parallel traffic before a column-parallel linear (Korthikanti 2022, section 4.2).

    Under sequence parallelism: all-gather forward; backward gathers the input once more for the
    weight gradient, unless forward kept it gathered, and reduce-scatters the input gradient, both
    beside a GEMM. Without it the kernel turns each all-gather/reduce-scatter pair into the
    all-reduce it equals.
    """
    size = 2.0 * width
    again = Collective(
        f"{name}/gather_again",
        CollectiveKind.ALL_GATHER,
        "tp",
        size,
        0,
        1,
        hidden_backward=Hidden.BEHIND_GEMM,
        rerun_with=Module.NOTHING,
        sequence_parallel_only=True,
    )
    return (
        Collective(
            f"{name}/gather",
            CollectiveKind.ALL_GATHER,
            "tp",
            size,
            1,
            0,
            hidden_forward=Hidden.TP_OVERLAP,
            rerun_with=rerun_with,
        ),
        *(() if context.saved.keeps_gathered_inputs else (again,)),
        Collective(
            f"{name}/scatter_gradient",
            CollectiveKind.REDUCE_SCATTER,
            "tp",
            size,
            0,
            1,
            hidden_backward=Hidden.BEHIND_GEMM,
            rerun_with=Module.NOTHING,
        ),
    )


def tp_exit(name: str, width: float, rerun_with: Module) -> tuple[Collective, ...]:
    """Tensor-parallel traffic after a row-parallel linear: scatter, and gather its gradient."""
    size = 2.0 * width
    return (
        Collective(
            f"{name}/scatter",
            CollectiveKind.REDUCE_SCATTER,
            "tp",
            size,
            1,
            0,
            hidden_forward=Hidden.TP_OVERLAP,
            rerun_with=rerun_with,
        ),
        Collective(
            f"{name}/gather_gradient",
            CollectiveKind.ALL_GATHER,
            "tp",
            size,
            0,
            1,
            hidden_backward=Hidden.TP_OVERLAP,
            rerun_with=Module.NOTHING,
        ),
    )


def _qkv_rows(context: OpContext) -> tuple[Op, ...]:
    """Query, key and value projections of MHA, GQA and MQA, their norms and rotation."""
    model = context.model
    bias = 1.0 if model.qkv_bias else 0.0
    width_q, width_kv = float(model.query_width), float(model.kv_width)
    width_out = width_q * (2.0 if model.attention_gate else 1.0)
    hidden = float(model.hidden)
    qkv = Op(
        name="attention/qkv",
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
            *linear_inputs(
                context,
                "attention/qkv",
                hidden,
                Shard.SEQUENCE,
                1 if context.applies(context.saved.fused_qkv_families) else 3,
                context.norm_in_linear,
            ),
            Saved("attention/q_output", 2 * width_q, Shard.TP, Module.NOTHING, only_with=_POLICY),
            Saved("attention/v_output", 2 * width_kv, Shard.KV, Module.NOTHING, only_with=_POLICY),
        ),
        collectives=tp_entry(context, "attention/qkv", hidden, WHOLE_LAYER),
    )
    return (qkv, *_qk_norm(context), *_rotary(context, width_q + width_kv))


def _qk_norm(context: OpContext) -> tuple[Op, ...]:
    """Norms of queries and keys: per head (Qwen3, Gemma 3) or over the full width (OLMo 2)."""
    model = context.model
    if model.qk_norm == "none":
        return ()
    per_head = model.qk_norm == "head"
    rows = []
    for name, width, heads, shard in (
        ("q_norm", float(model.query_width), model.heads, Shard.TP),
        ("k_norm", float(model.kv_width), model.kv_heads, Shard.KV),
    ):
        # The gate is the other half of the query projection's output.
        viewed = width if model.attention_gate and name == "q_norm" else 0.0
        row = norm(
            context, f"attention/{name}", width, shard, Module.NOTHING,
            of_product=True, viewed=viewed,
        )  # fmt: skip
        if context.saved.norms_in_linears:
            # Transformer Engine's module for it: one call makes both gradients.
            row = replace(row, backward_kernels=1)
        count = context.norm_parameters * (model.head_dim if per_head else width)
        param_shard = ParamShard.NONE if per_head else ParamShard.TP
        saved = _qk_norm_saved(context, row, width, heads if per_head else 1)
        rows.append(replace(row, parameters=((count, param_shard),), saved=saved))
    return tuple(rows)


def _l2_norm(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Queries and keys divided by their length: no scale, and so no normalised tensor to keep."""
    model = context.model
    if not model.qk_l2_norm or kind.attention != "sliding":
        return ()
    rows = []
    for name, width, heads, shard in (
        ("q_norm", float(model.query_width), model.heads, Shard.TP),
        ("k_norm", float(model.kv_width), model.kv_heads, Shard.KV),
    ):
        row = norm(context, f"attention/{name}", width, shard, Module.NOTHING, of_product=True)
        saved = _qk_norm_saved(context, row, width, heads)
        saved = tuple(kept for kept in saved if not kept.name.endswith(("/normalised", "/weight")))
        rows.append(replace(row, saved=saved, parameters=()))
    return tuple(rows)


def _qk_norm_saved(context: OpContext, row: Op, width: float, count: int) -> tuple[Saved, ...]:
    """The norm's rows with statistics of every head, and the weights of one."""
    weights = width / count if context.model.qk_norm == "head" else width
    copy = context.saved.norm_weight_copy_bytes * weights
    rows = []
    for kept in row.saved:
        if kept.name.endswith("/statistics"):
            rows.append(replace(kept, bytes_per_token=context.norm_statistics_bytes * count))
        elif kept.name.endswith("/weight"):
            rows.append(replace(kept, fixed_bytes=copy))
        else:
            rows.append(kept)
    return tuple(rows)


def _rotary(context: OpContext, width: float) -> tuple[Op, ...]:
    """Rotary embedding: one read and one write of queries and keys each way.

    It keeps nothing of them, but cosines and sines where each layer makes its own.
    """
    if context.model.position != "rope":
        return ()
    passes = 2.0 * context.profile.kernels.rotary_traffic
    row = elementwise(context, "attention/rope", width, Shard.TP, passes, passes)
    tables = context.saved.rotary_layer_bytes * context.model.rotary_width
    if not tables:
        return (row,)
    kept = Saved("attention/rotary", 0.0, Shard.NONE, WHOLE_LAYER, fixed_bytes=tables * context.seq)
    return (replace(row, saved=(kept,)),)


def _mla_rows(context: OpContext) -> tuple[Op, ...]:
    """Multi-head latent attention (arXiv 2405.04434, equations 9-18).

    The down-projections are replicated over tp; the up-projections are split by heads.
    """
    model = context.model
    mla = model.mla
    if mla is None:
        return ()
    heads = float(model.heads)
    q_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    kv_up_width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    kv_down_width = float(mla.kv_lora_rank + mla.qk_rope_head_dim)
    hidden = float(model.hidden)
    rows = []
    if mla.q_lora_rank:
        rank = float(mla.q_lora_rank)
        rows += [
            _mla_down(context, "attention/q_down", rank, consumers=2),
            norm(
                context,
                "attention/q_norm",
                rank,
                Shard.SEQUENCE,
                Module.NOTHING,
                of_product=True,
            ),
            _mla_up(context, "attention/q_up", rank, q_width),
        ]
    else:
        rows.append(
            Op(
                name="attention/q",
                kind=OpKind.GEMM,
                out_width=q_width,
                out_shard=Shard.TP,
                in_width=hidden,
                parameters=((q_width * hidden, ParamShard.TP),),
                saved=linear_inputs(
                    context, "attention/q", hidden, Shard.SEQUENCE, 2, Module.LAYERNORM
                ),
                collectives=tp_entry(context, "attention/q", hidden, WHOLE_LAYER),
            )
        )
    kv_down = _mla_down(context, "attention/kv_down", kv_down_width, consumers=0)
    rows += [
        kv_down,
        norm(
            context,
            "attention/kv_norm",
            float(mla.kv_lora_rank),
            Shard.SEQUENCE,
            Module.NOTHING,
            of_product=True,
            viewed=float(mla.qk_rope_head_dim),
        ),
        _mla_up(context, "attention/kv_up", float(mla.kv_lora_rank), kv_up_width),
        elementwise(
            context,
            "attention/rope_and_concat",
            2 * q_width,
            Shard.TP,
            2,
            2,
            WHOLE_LAYER | Module.MLA_UP_PROJ,
        ),
    ]
    return tuple(rows)


def _mla_down(context: OpContext, name: str, rank: float, consumers: int) -> Op:
    """Down-projection to the latent; the first of the two lists their shared input."""
    hidden = float(context.model.hidden)
    saved = (
        linear_inputs(context, name, hidden, Shard.SEQUENCE, consumers, Module.LAYERNORM)
        if consumers
        else ()
    )
    return Op(
        name=name,
        kind=OpKind.GEMM,
        tokens=Shard.SEQUENCE,
        out_width=rank,
        in_width=hidden,
        parameters=((rank * hidden, ParamShard.NONE),),
        saved=saved,
    )


def _mla_up(context: OpContext, name: str, rank: float, width: float) -> Op:
    """Up-projection from the normalised latent, which is gathered over tp first."""
    return Op(
        name=name,
        kind=OpKind.GEMM,
        out_width=width,
        out_shard=Shard.TP,
        in_width=rank,
        parameters=((width * rank, ParamShard.TP),),
        saved=linear_inputs(context, name, rank, Shard.SEQUENCE, 1, context.norm_in_linear),
        collectives=tp_entry(context, name, rank, WHOLE_LAYER),
        rerun_with=WHOLE_LAYER | Module.MLA_UP_PROJ,
    )


def _output_width(context: OpContext) -> float:
    """Elements kept of the attention output: one tensor that attention and the projection share,
    or flash attention's own, reordered or padded to the width of queries, beside the projection's.
    """
    model, width = context.model, float(context.model.attention_out_width)
    if context.attention != "flash":
        return width
    if model.mla and context.saved.fused_pads_values:
        return width + float(model.query_width)
    return 2.0 * width if context.applies(context.saved.rotary_concat_families) else width


def _output(context: OpContext) -> Op:
    """Output projection (row-parallel); its input is the attention output."""
    model = context.model
    width = float(model.attention_out_width)
    bias = float(model.hidden) if model.attention_out_bias else 0.0
    size = context.saved.activation_bytes * _output_width(context)
    kept = Saved("attention/output", size, Shard.TP, Module.FULL)
    # A product in fp8 keeps its own quantised input beside the output that attention keeps.
    quantised = context.quantised_input_bytes * width
    copy = Saved("attention/output_quantised", quantised, Shard.TP, WHOLE_LAYER)
    return Op(
        name="attention/out_proj",
        kind=OpKind.GEMM,
        out_width=float(model.hidden),
        in_width=width,
        in_shard=Shard.TP,
        parameters=((width * model.hidden, ParamShard.TP), (bias, ParamShard.NONE)),
        saved=(kept, copy) if quantised else (kept,),
        collectives=tp_exit("attention/out_proj", model.hidden, Module.FULL),
        rerun_with=WHOLE_LAYER,
    )
