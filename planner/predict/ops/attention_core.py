"""Core attention: its row, the tensors that it keeps for backward, and its context-parallel
traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.frameworks.tables import SavedTensors
from planner.job.recompute import Module
from planner.job.specs import LayerKind
from planner.predict.ops.context import WHOLE_LAYER, OpContext, present
from planner.predict.ops.rows import Collective, Op, Saved

# Recompute modes that run the core of attention again.
_CORE = Module.FULL | Module.CORE_ATTENTION


@dataclass(frozen=True)
class _Heads:
    """Core attention of a layer: width of a head of queries and keys, width of a head of values,
    and number of heads of keys and values."""

    context: OpContext
    qk_dim: float
    v_dim: float
    kv_heads: float

    @property
    def shard(self) -> Shard:
        """Sharding of keys and values."""
        return Shard.TP if self.context.model.mla else Shard.KV

    @property
    def copied(self) -> bool:
        """Whether attention copies each key/value head for all the query heads that share it. False
        if there are as many key/value heads as query heads."""
        broadcast = self.context.saved.broadcasts_one_kv_head and self.kv_heads == 1
        broadcast = broadcast and not _products_copy(self.context)
        return self.kv_heads < self.context.model.heads and not broadcast


def core_row(context: OpContext, kind: LayerKind) -> Op:
    """Core attention: keeps queries, keys, values; scores if eager, log-sum-exp if flash."""
    model, mla, flash = context.model, context.model.mla, context.attention == "flash"
    qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else model.head_dim
    v_dim = mla.v_head_dim if mla else model.head_dim
    kv_heads = model.heads if mla else model.kv_heads
    heads = _Heads(context, float(qk_dim), float(v_dim), float(kv_heads))
    window = model.sliding_window if kind.attention == "sliding" else None
    return Op(
        name="attention/core",
        kind=OpKind.ATTENTION,
        heads=float(model.heads),
        kv_heads=heads.kv_heads,
        qk_head_dim=heads.qk_dim,
        v_head_dim=heads.v_dim,
        window=float(window or 0),
        forward_kernels=1 if flash else 4,
        backward_kernels=2 if flash else 6,
        parameters=((float(model.heads), ParamShard.TP),) if model.attention_sinks else (),
        saved=_core_saved(heads),
        collectives=_context_parallel(heads),
        rerun_with=_CORE,
    )


def _core_saved(heads: _Heads) -> tuple[Saved, ...]:
    """Queries, keys and values, and the further tensors that the kernel family keeps."""
    context, model, saved = heads.context, heads.context.model, heads.context.saved
    freed = WHOLE_LAYER | (Module.MLA_UP_PROJ if model.mla else Module.NOTHING)
    query = context.kept("attention/q", model.heads * heads.qk_dim, Shard.TP, freed)
    if context.attention == "flash":
        # Log-sum-exp, fp32 per head (FlashAttention, arXiv 2205.14135, algorithm 1), and 24
        # bytes of random state; the output is the input of the output projection.
        lse = Saved("attention/lse", 4.0 * model.heads, Shard.TP, _CORE, fixed_bytes=24.0)
        if saved.fused_expands_kv_heads and heads.copied:
            heads = replace(heads, kv_heads=float(model.heads))
        key, value = _key_value(heads, freed)
        if model.mla and saved.fused_pads_values and heads.v_dim < heads.qk_dim:
            value = Saved("attention/v", query.bytes_per_token, Shard.TP, freed)
        return (query, key, value, lse)
    projected = _key_value(heads, freed)
    if saved.expands_kv_heads and heads.copied:
        projected = _expanded_key_value(heads, projected)
    return (query, *_scaled(context, freed), *projected, *_scores(context))


def _scaled(context: OpContext, freed: Module) -> tuple[Saved, ...]:
    """The scaled queries that are kept in addition to the output of the fused projection; empty if
    the framework keeps none (`scales_queries`). If queries and keys are normed, the norms output
    new tensors, so only the values keep the projection's output alive, and the norms keep queries
    and keys of it in fp32."""
    model = context.model
    if not context.saved.scales_queries:
        return ()
    width = float(model.query_width)
    if model.qk_norm != "none":
        width = 0.0 if context.mode == "fp32" else width + model.kv_width
    return present((context.kept("attention/q_scaled", width, Shard.TP, freed),))


def _products_copy(context: OpContext) -> bool:
    """Whether the batched matrix products of unfused (`eager`) attention make contiguous copies of
    their operands; they do not if a micro-batch is a single sequence."""
    batched = context.saved.batched_products_copy and not context.one_sequence
    return context.attention == "eager" and batched


def _key_value(heads: _Heads, freed: Module) -> tuple[Saved, ...]:
    """Keys and values as projected. Rotary makes new queries and keys; values remain a view, which
    keeps the whole output of a fused projection alive, unless a batched product copies them."""
    context, model, saved = heads.context, heads.context.model, heads.context.saved
    shard, width = heads.shard, heads.kv_heads * heads.v_dim
    fused = context.applies(saved.fused_qkv_families) and saved.value_is_view
    views = fused and model.position == "rope" and not model.mla
    copied = _products_copy(context)
    if model.mla and saved.batched_products_copy and not copied:
        # The up-projection makes keys and values; keys are copied to join their rotated part.
        width += heads.kv_heads * model.mla.qk_nope_head_dim
    if views and not copied:
        width += float(model.query_width + model.kv_width)
        shard = Shard.TP
    return (
        context.kept("attention/k", heads.kv_heads * heads.qk_dim, shard, freed),
        context.kept("attention/v", width, shard, freed),
    )


def _expanded_key_value(heads: _Heads, projected: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Keys and values copied for every query head inside core attention. If core attention is
    recomputed, the copies are dropped and `projected`, the keys and values before copying, are kept
    instead."""
    context, count = heads.context, heads.context.model.heads
    freed = WHOLE_LAYER | Module.CORE_ATTENTION
    return (
        context.kept("attention/k_expanded", count * heads.qk_dim, Shard.TP, freed),
        context.kept("attention/v_expanded", count * heads.v_dim, Shard.TP, freed),
        *(replace(row, only_with=Module.CORE_ATTENTION) for row in projected),
    )


def score_parts(saved: SavedTensors, *, dropout: bool) -> tuple[float, float, float]:
    """Bytes that unfused attention keeps per score, as three numbers: for the softmax's output (or
    its exponents, if the softmax is written in separate operators); for the matrix that is
    multiplied with the values (0 if it is the softmax's output itself); for dropout's mask (0
    without dropout)."""
    element, softmax = saved.activation_bytes, saved.score_bytes
    another = saved.softmax_in_operators or softmax != element or dropout
    operand = element if softmax and another else 0.0
    return softmax, operand, 1.0 if dropout else 0.0


def _scores(context: OpContext) -> tuple[Saved, ...]:
    """Scores after softmax, the operand of the product with the values, and masks.

    In 16 bits with dropout: 2 + 2 + 1 bytes a score (Korthikanti 2022: 5as/h). A sink adds a column
    of scores, with the index of the largest; a cap keeps the tanh of the scores.
    """
    saved, heads, seq = context.saved, context.model.heads, context.seq
    freed = WHOLE_LAYER | Module.CORE_ATTENTION
    softmax, operand, mask = score_parts(saved, dropout=context.dropout)
    capped = seq if context.model.attention_softcap else 0
    sink = softmax + saved.sink_index_bytes if context.model.attention_sinks else 0.0
    scores = (softmax + operand + mask) * heads * seq
    masks = saved.layer_mask_bytes * seq**2
    return (
        *present(
            (
                context.kept("attention/capped_scores", heads * capped, Shard.TP, freed),
                Saved("attention/sink", sink * heads, Shard.TP, freed),
            )
        ),
        Saved("attention/scores", scores, Shard.TP, freed, fixed_bytes=masks),
    )


def _context_parallel(heads: _Heads) -> tuple[Collective, ...]:
    """Exchanges of context parallelism in each of its forms; a key's `exchange` picks one or two.

    A ring passes keys and values, in backward also their gradients (Liu et al. 2023, arXiv
    2310.01889). Gathered keys and values are gathered again in backward, where their gradients are
    scattered (Llama 3, arXiv 2407.21783, section 3.3.2). An all-to-all distributes queries, keys
    and values by heads and returns the output, and does the same for gradients in backward
    (DeepSpeed-Ulysses, arXiv 2309.14509, section 3.2). Bytes are those of the whole sequence,
    divided by its tokens.
    """
    width, shard = heads.qk_dim + heads.v_dim, heads.shard
    size = 2.0 * heads.kv_heads * width
    gather, to_all = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL
    ring = CollectiveKind.RING_EXCHANGE
    # Two tensors, one of each width.
    exchanged = (
        ("qo", heads.context.model.heads * width, Shard.TP),
        ("kv", heads.kv_heads * width, shard),
    )
    beside = Hidden.BEHIND_ATTENTION
    return (
        Collective("attention/cp_gather", gather, "cp", size, 1, 2, shard, rerun_with=_CORE),
        *(
            Collective(
                f"attention/cp_heads_{name}", to_all, "cp", sent, 2, 2, item, rerun_with=_CORE
            )
            for name, sent, item in exchanged
        ),
        Collective("attention/cp_ring", ring, "cp", size, 1, 2, shard, beside, beside, _CORE),
    )
