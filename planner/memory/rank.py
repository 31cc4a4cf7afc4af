"""What one rank of the grid holds of each piece of the model: parameters and bytes of tensors.

The plain-Python counterpart of the compiled terms, exact to the tensor: it reads the same op
table and is what the memory timeline is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.modules import Module
from planner.ops.context import OpContext
from planner.ops.rows import Op, OpKind, ParamShard, Piece, Saved, Shard


@dataclass(frozen=True, slots=True)
class RankShape:
    """Degrees and batch of a rank. `shards` = dp·cp divides dense parameters under ZeRO.

    `recompute` names the modules that run again in backward, in a `recompute_share` of the layers
    with `recompute_span` of them to a checkpoint. `sequence_parallel` matters only
    with tp > 1. `ep` and `etp` divide experts, whose ZeRO group is shards·tp/(ep·etp).
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    shards: int = 1
    zero: int = 0
    mbs: int = 1
    sequence_parallel: bool = True
    recompute: Module = Module.NOTHING
    recompute_share: float = 1.0
    recompute_span: int = 1

    @property
    def expert_shards(self) -> float:
        """Ranks that share the state of one expert."""
        return max(1.0, self.shards * self.tp / (self.ep * self.etp))

    def tokens(self, seq: int) -> float:
        """Tokens of a micro-batch on the rank: b·s/cp."""
        return self.mbs * seq / self.cp


@dataclass(frozen=True, slots=True)
class PieceOnRank:
    """Bytes and parameters of one piece on one rank, for one micro-batch.

    `kept`: from forward to backward under the recompute mode (`logits`: the loss's part of it);
    `again`: made again in backward; `casts`: low-precision copies of weights; `transient`:
    gradients of activations around the widest product, `weight_gradient` that of its weights.
    """

    name: str
    dense: float
    experts: float
    kept: float
    logits: float
    again: float
    casts: float
    transient: float
    weight_gradient: float

    @property
    def parameters(self) -> float:
        """Parameters on the rank before ZeRO."""
        return self.dense + self.experts


def padded_vocabulary(context: OpContext, tp: int) -> float:
    """Vocabulary after the framework's rounding to a multiple of tp times its unit."""
    rules = context.profile.parallelism
    vocab = context.model.vocab
    if not rules.vocabulary_padded:
        return float(vocab)
    unit = rules.vocabulary_multiple * tp
    return float(-(-vocab // unit) * unit)


def tensor_share(shard: Shard, context: OpContext, shape: RankShape) -> float:
    """Share of a per-token tensor on the rank (`planner.ops.rows.Shard`)."""
    model = context.model
    kv_heads = model.heads if model.mla else model.kv_heads
    split = shape.tp if shape.sequence_parallel else 1
    return {
        Shard.NONE: 1.0,
        Shard.TP: 1 / shape.tp,
        Shard.SEQUENCE: 1 / split,
        Shard.KV: 1 / min(shape.tp, kv_heads),
        Shard.ROUTED: shape.etp / shape.tp,
        Shard.ROUTED_TP: 1 / shape.tp,
        Shard.EXPERT_TP: 1 / shape.etp,
    }[shard]


def saved_bytes(row: Saved, context: OpContext, shape: RankShape) -> float:
    """Bytes of one saved tensor on the rank."""
    tokens = shape.tokens(context.seq)
    size = row.bytes_per_token * tokens * tensor_share(row.shard, context, shape)
    if row.name == "head/loss":
        size *= padded_vocabulary(context, shape.tp) / context.model.vocab
    return size + row.fixed_bytes / shape.cp


def rank_parameters(piece: Piece, context: OpContext, shape: RankShape) -> tuple[float, float]:
    """(dense, expert) parameters of a piece on the rank before ZeRO; vocabulary rows padded."""
    model = context.model
    kv_heads = model.heads if model.mla else model.kv_heads
    divisor = {
        ParamShard.NONE: 1,
        ParamShard.TP: shape.tp,
        ParamShard.KV: min(shape.tp, kv_heads),
        ParamShard.EXPERT: shape.ep * shape.etp,
    }
    padding = padded_vocabulary(context, shape.tp) / model.vocab
    totals = {False: 0.0, True: 0.0}
    for op in piece.ops:
        for count, shard in op.parameters:
            pads = op.pads_vocabulary and shard is ParamShard.TP
            totals[shard is ParamShard.EXPERT] += count * (padding if pads else 1) / divisor[shard]
    return totals[False], totals[True]


def weight_elements(op: Op, shape: RankShape) -> float:
    """Elements of the matrices of a product on the rank: what autocast copies."""
    if op.kind not in (OpKind.GEMM, OpKind.GROUPED_GEMM):
        return 0.0
    split = shape.ep * shape.etp if op.kind is OpKind.GROUPED_GEMM else shape.tp
    return op.groups * (op.out_width + op.kv_out_width) * op.in_width / split


def widest_product(piece: Piece, context: OpContext, shape: RankShape) -> tuple[float, float]:
    """(elements of the largest input of a product, elements of one of its weights) on the rank."""
    tokens = shape.tokens(context.seq)
    widest = weight = 0.0
    for op in piece.ops:
        if op.kind is OpKind.ATTENTION or op.pads_vocabulary:
            continue
        rows = tokens * op.tokens_factor * tensor_share(op.tokens, context, shape)
        size = rows * op.in_width * tensor_share(op.in_shard, context, shape)
        if size > widest:
            widest, weight = size, weight_elements(op, shape) / op.groups
    return widest, weight


def gradient_transient_bytes(widest: float, context: OpContext, shape: RankShape) -> float:
    """Gradients of activations alive beside everything kept, at the layer's widest point.

    Inside the feed-forward block: those of its product, of both factors and of the gate's input
    (of the activation's output and input without a gate), and three of the residual's width.
    """
    saved = context.saved
    stream = shape.tokens(context.seq) * context.model.hidden
    tensors = 4.0 if context.model.gated else 2.0
    return saved.activation_bytes * tensors * widest + 3.0 * saved.residual_bytes * stream


def recomputed_bytes(
    none: float, left: float, piece: Piece, shape: RankShape
) -> tuple[float, float]:
    """(kept, brought back at once) by a layer, of whose `none` bytes recomputation leaves `left`.

    A checkpoint of n layers keeps the input of its first and brings back the tensors of all;
    where every k-th layer recomputes, layers count as their average. The compiled counterpart is
    `planner.cost.layer.recompute_costs`.
    """
    if not piece.name.startswith("layer["):
        return left, max(0.0, none - left)
    share, span = shape.recompute_share, shape.recompute_span
    return (1.0 - share) * none + share * left / span, max(0.0, span * none - left)


def piece_on_rank(piece: Piece, context: OpContext, shape: RankShape) -> PieceOnRank:
    """All figures of one piece."""
    rows = [row for op in piece.ops for row in op.saved]
    none = sum(saved_bytes(r, context, shape) for r in rows if r.kept_under(Module.NOTHING))
    left = sum(saved_bytes(r, context, shape) for r in rows if r.kept_under(shape.recompute))
    kept, again = recomputed_bytes(none, left, piece, shape)
    dense, experts = rank_parameters(piece, context, shape)
    casts = sum(weight_elements(op, shape) for op in piece.ops)
    widest, weight = widest_product(piece, context, shape)
    return PieceOnRank(
        name=piece.name,
        dense=dense,
        experts=experts,
        kept=kept,
        logits=sum(saved_bytes(r, context, shape) for r in rows if r.name == "head/loss"),
        again=again,
        casts=context.saved.weight_cast_bytes * casts,
        transient=gradient_transient_bytes(widest, context, shape),
        weight_gradient=context.saved.activation_bytes * weight,
    )
