"""Core attention: its row, what it keeps for backward, its context-parallel traffic."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.frameworks.tables import SavedTensors
from planner.job.modules import Module
from planner.job.specs import LayerKind
from planner.predict.ops.context import WHOLE_LAYER, OpContext, present
from planner.predict.ops.rows import Collective, Op, Saved


def core_row(context: OpContext, kind: LayerKind) -> Op:
    """Core attention: kept queries, keys, values; scores if eager, log-sum-exp if flash."""
    model = context.model
    mla = model.mla
    qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else model.head_dim
    v_dim = mla.v_head_dim if mla else model.head_dim
    kv_heads = model.heads if mla else model.kv_heads
    window = model.sliding_window if kind.attention == "sliding" else None
    parameters = ((float(model.heads), ParamShard.TP),) if model.attention_sinks else ()
    return Op(
        name="attention/core",
        kind=OpKind.ATTENTION,
        heads=float(model.heads),
        kv_heads=float(kv_heads),
        qk_head_dim=float(qk_dim),
        v_head_dim=float(v_dim),
        window=float(window or 0),
        forward_kernels=1 if context.attention == "flash" else 4,
        backward_kernels=2 if context.attention == "flash" else 6,
        parameters=parameters,
        saved=_core_saved(context, float(qk_dim), float(v_dim), float(kv_heads)),
        collectives=_context_parallel(context, float(qk_dim), float(v_dim), float(kv_heads)),
        rerun_with=Module.FULL | Module.CORE_ATTENTION,
    )


def _core_saved(
    context: OpContext, qk_dim: float, v_dim: float, kv_heads: float
) -> tuple[Saved, ...]:
    """Queries, keys and values, and what the kernel family adds to them."""
    model = context.model
    freed = WHOLE_LAYER | (Module.MLA_UP_PROJ if model.mla else Module.NOTHING)
    query = Saved(
        "attention/q", context.saved.activation_bytes * model.heads * qk_dim, Shard.TP, freed
    )
    if context.attention == "flash":
        # Log-sum-exp, fp32 per head (FlashAttention, arXiv 2205.14135, algorithm 1), and 24
        # bytes of random state; the output is the input of the output projection.
        lse = Saved(
            "attention/lse",
            4.0 * model.heads,
            Shard.TP,
            Module.FULL | Module.CORE_ATTENTION,
            fixed_bytes=24.0,
        )
        if context.saved.fused_expands_kv_heads and _copies_heads(context, kv_heads):
            kv_heads = float(model.heads)
        if model.mla and context.saved.fused_pads_values and v_dim < qk_dim:
            padded = Saved("attention/v", query.bytes_per_token, Shard.TP, freed)
            key, _ = _key_value(context, qk_dim, v_dim, kv_heads, freed)
            return (query, key, padded, lse)
        return (query, *_key_value(context, qk_dim, v_dim, kv_heads, freed), lse)
    projected = _key_value(context, qk_dim, v_dim, kv_heads, freed)
    if context.saved.expands_kv_heads and _copies_heads(context, kv_heads):
        expanded = _expanded_key_value(context, qk_dim, v_dim, projected)
        return (query, *expanded, *_scores(context))
    return (query, *projected, *_scores(context))


def _products_copy(context: OpContext) -> bool:
    """Whether the batched products of unfused attention copy strided operands."""
    batched = context.saved.batched_products_copy and not context.one_sequence
    return context.attention == "eager" and batched


def _copies_heads(context: OpContext, kv_heads: float) -> bool:
    """Whether several query heads share a key/value head that is copied for each."""
    broadcast = context.saved.broadcasts_one_kv_head and kv_heads == 1
    broadcast = broadcast and not _products_copy(context)
    return kv_heads < context.model.heads and not broadcast


def _key_value(
    context: OpContext, qk_dim: float, v_dim: float, kv_heads: float, freed: Module
) -> tuple[Saved, Saved]:
    """Keys and values as projected.

    Rotary makes new queries and keys; values stay a view, and keep alive the whole output of a
    fused projection, unless a batched product has to copy them.
    """
    model, saved = context.model, context.saved
    shard = Shard.TP if model.mla else Shard.KV
    width = kv_heads * v_dim
    fused = context.applies(saved.fused_qkv_families) and saved.value_is_view
    views = fused and model.position == "rope" and not model.mla
    copied = _products_copy(context)
    if model.mla and saved.batched_products_copy and not copied:
        # The up-projection makes keys and values; keys are copied to join their rotated part.
        width += kv_heads * model.mla.qk_nope_head_dim
    if views and not copied:
        width += float(model.query_width + model.kv_width)
        shard = Shard.TP
    element = saved.activation_bytes
    return (
        Saved("attention/k", element * kv_heads * qk_dim, shard, freed),
        Saved("attention/v", element * width, shard, freed),
    )


def _expanded_key_value(
    context: OpContext, qk_dim: float, v_dim: float, projected: tuple[Saved, Saved]
) -> tuple[Saved, ...]:
    """Keys and values copied for every query head inside the core attention.

    Where the core is recomputed, its inputs are kept instead.
    """
    element, heads = context.saved.activation_bytes, context.model.heads
    freed = WHOLE_LAYER | Module.CORE_ATTENTION
    return (
        Saved("attention/k_expanded", element * heads * qk_dim, Shard.TP, freed),
        Saved("attention/v_expanded", element * heads * v_dim, Shard.TP, freed),
        *(replace(row, only_with=Module.CORE_ATTENTION) for row in projected),
    )


def score_parts(saved: SavedTensors, *, dropout: bool) -> tuple[float, float, float]:
    """Bytes of a score that unfused attention keeps: of the softmax's output, of the operand of the
    product with the values if that is another tensor, of dropout's mask."""
    element, softmax = saved.activation_bytes, saved.score_bytes
    operand = element if softmax and (softmax != element or dropout) else 0.0
    return softmax, operand, 1.0 if dropout else 0.0


def _scores(context: OpContext) -> tuple[Saved, ...]:
    """Scores after softmax, the operand of the product with the values, masks.

    In 16 bits with dropout: 2 + 2 + 1 bytes a score (Korthikanti 2022: 5as/h). A sink is one more
    column of the scores, with the index of the largest; a cap keeps the tanh of the scores.
    """
    model, saved = context.model, context.saved
    element = saved.activation_bytes
    softmax, operand, mask = score_parts(saved, dropout=context.dropout)
    capped = Saved(
        "attention/capped_scores",
        element * model.heads * context.seq if model.attention_softcap else 0.0,
        Shard.TP,
        WHOLE_LAYER | Module.CORE_ATTENTION,
    )
    sink = softmax + saved.sink_index_bytes if model.attention_sinks else 0.0
    largest = Saved(
        "attention/sink",
        sink * model.heads,
        Shard.TP,
        WHOLE_LAYER | Module.CORE_ATTENTION,
    )
    return (
        *present((capped, largest)),
        Saved(
            "attention/scores",
            (softmax + operand + mask) * context.model.heads * context.seq,
            Shard.TP,
            WHOLE_LAYER | Module.CORE_ATTENTION,
            fixed_bytes=saved.layer_mask_bytes * context.seq**2,
        ),
    )


def _context_parallel(
    context: OpContext, qk_dim: float, v_dim: float, kv_heads: float
) -> tuple[Collective, ...]:
    """What context parallelism exchanges, in each of its ways; a key's `exchange` picks one or two.

    A ring passes keys and values, and in backward them and their gradients (Liu et al. 2023,
    arXiv 2310.01889). Gathered keys and values are gathered again in backward, where their
    gradients are scattered (Llama 3, arXiv 2407.21783, section 3.3.2). An all-to-all hands
    queries, keys and values out by heads and the output back, and their gradients in backward
    (DeepSpeed-Ulysses, arXiv 2309.14509, section 3.2). Bytes are those of the whole sequence per
    token of it.
    """
    size = 2.0 * kv_heads * (qk_dim + v_dim)
    shard = Shard.TP if context.model.mla else Shard.KV
    runs_again = Module.FULL | Module.CORE_ATTENTION
    return (
        Collective(
            "attention/cp_gather",
            CollectiveKind.ALL_GATHER,
            "cp",
            size,
            1,
            2,
            shard,
            rerun_with=runs_again,
        ),
        *(
            Collective(
                f"attention/cp_heads_{name}",
                CollectiveKind.ALL_TO_ALL,
                "cp",
                # Two tensors, one of each width.
                heads * (qk_dim + v_dim),
                2,
                2,
                item,
                rerun_with=runs_again,
            )
            for name, heads, item in (
                ("qo", float(context.model.heads), Shard.TP),
                ("kv", kv_heads, shard),
            )
        ),
        Collective(
            "attention/cp_ring",
            CollectiveKind.RING_EXCHANGE,
            "cp",
            size,
            1,
            2,
            shard,
            Hidden.BEHIND_ATTENTION,
            Hidden.BEHIND_ATTENTION,
            runs_again,
        ),
    )
