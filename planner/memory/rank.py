"""What one rank of the grid holds of each piece of the model: parameters and bytes of tensors.

The plain-Python counterpart of the compiled terms, exact to the tensor: it reads the same op
table and is what the memory timeline is made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.modules import Module
from planner.ops.context import OpContext
from planner.ops.offload import offloaded_rows
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

    `table`: parameters of the vocabulary table that embedding, head and MTP use. `kept`: bytes from
    forward to backward under the recompute mode (`logits`: the loss's part of them); `again`: made
    again in backward; `casts`: low-precision copies of weights (`casts_kept`: those that backward
    finds); `working`: gradients of activations alive inside its backward beside everything kept;
    `weight_gradient`: weight gradients made there before they are accumulated; `weight_kept`: what
    they read, kept until then where they are deferred. `offloaded`: bytes on the host, which `kept`
    is less, and `duplicated` those that a layer holds twice once they are back.
    """

    name: str
    dense: float
    experts: float
    table: float
    kept: float
    logits: float
    again: float
    casts: float
    casts_kept: float
    working: float
    weight_gradient: float
    weight_kept: float
    recomputes: bool
    offloaded: float = 0.0
    duplicated: float = 0.0

    @property
    def parameters(self) -> float:
        """Parameters on the rank before ZeRO."""
        return self.dense + self.experts


def padded_vocabulary(context: OpContext, tp: int) -> float:
    """Vocabulary after the framework's rounding to a multiple of tp times its unit.

    Without padding the first ranks hold the larger shares: tp times ceil(vocabulary / tp).
    """
    rules = context.profile.parallelism
    unit = (rules.vocabulary_multiple if rules.vocabulary_padded else 1) * tp
    return float(-(-context.model.vocab // unit) * unit)


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


def on_rank(
    amount: float, op: Op, shard: ParamShard, context: OpContext, shape: RankShape
) -> float:
    """What a rank has of an amount that goes with parameters of a row (their number, bytes of
    their state), before ZeRO; vocabulary rows padded."""
    model = context.model
    divisor = {
        ParamShard.NONE: 1,
        ParamShard.TP: shape.tp,
        ParamShard.KV: min(shape.tp, model.heads if model.mla else model.kv_heads),
        ParamShard.EXPERT: shape.ep * shape.etp,
    }[shard]
    pads = op.pads_vocabulary and shard is ParamShard.TP
    padding = padded_vocabulary(context, shape.tp) / model.vocab if pads else 1
    return amount * padding / divisor


def rank_parameters(piece: Piece, context: OpContext, shape: RankShape) -> tuple[float, float]:
    """(dense, expert) parameters of a piece on the rank before ZeRO; vocabulary rows padded."""
    totals = {False: 0.0, True: 0.0}
    for op in piece.ops:
        for count, shard in op.parameters:
            totals[shard is ParamShard.EXPERT] += on_rank(count, op, shard, context, shape)
    return totals[False], totals[True]


def weight_elements(op: Op, shape: RankShape) -> float:
    """Elements of the matrices of a product on the rank: what autocast copies."""
    if op.kind not in (OpKind.GEMM, OpKind.GROUPED_GEMM):
        return 0.0
    split = shape.ep * shape.etp if op.kind is OpKind.GROUPED_GEMM else shape.tp
    return op.groups * (op.out_width + op.kv_out_width) * op.in_width / split


def product_sizes(op: Op, context: OpContext, shape: RankShape) -> tuple[float, float]:
    """Elements of a product's input and output on the rank."""
    kv_heads = context.model.heads if context.model.mla else context.model.kv_heads
    rows = shape.tokens(context.seq) * op.tokens_factor * tensor_share(op.tokens, context, shape)
    into = op.in_width * tensor_share(op.in_shard, context, shape)
    out = op.out_width * tensor_share(op.out_shard, context, shape)
    return rows * into, rows * (out + op.kv_out_width / min(shape.tp, kv_heads))


def working_bytes(
    piece: Piece, context: OpContext, shape: RankShape, parameters: float
) -> tuple[float, float]:
    """(gradients of activations, weight gradients) alive at the widest point of a backward.

    Unfused, inside the feed-forward block: gradients of its product, of both factors and of the
    gate's input (of the activation's output and input without a gate), three of the residual's
    width, and one weight's gradient. Fused: input and output of the largest product, the tensors
    gathered over tp, and the gradients of all the piece's weights where they are made beside
    the buffer that accumulates them.
    """
    state = context.profile.in_mode(context.mode).state
    element, stream = context.saved.activation_bytes, shape.tokens(context.seq)
    stream *= context.model.hidden
    products = [
        (op, *product_sizes(op, context, shape))
        for op in piece.ops
        if op.kind in (OpKind.GEMM, OpKind.GROUPED_GEMM) and not op.pads_vocabulary
    ]
    if not products:
        return 0.0, 0.0
    if state.unfused_backward:
        widest, into, _ = max(products, key=lambda product: product[1])
        tensors = 4.0 if context.model.gated else 2.0
        one = element * weight_elements(widest, shape) / widest.groups
        return element * tensors * into + 3.0 * context.saved.residual_bytes * stream, one
    gathered = state.gathered_tensors * element * stream if shape.tp > 1 else 0.0
    largest = max(into + out for _, into, out in products)
    return element * largest + gathered, state.weight_gradient_bytes * parameters


def operands_bytes(piece: Piece, context: OpContext, shape: RankShape) -> float:
    """16-bit inputs and gradients of outputs of a piece's products, which weight gradients read.

    Qi et al. 2024, arXiv 2401.10241, Table 1; compiled in `planner.cost.piece_compute`.
    """
    padding = padded_vocabulary(context, shape.tp) / context.model.vocab
    total = 0.0
    for op in piece.ops:
        if op.kind in (OpKind.GEMM, OpKind.GROUPED_GEMM):
            into, out = product_sizes(op, context, shape)
            total += into + (padding * out if op.pads_vocabulary else out)
    return 2.0 * total


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


def offloaded_bytes(
    piece: Piece, modules: Module, context: OpContext, shape: RankShape
) -> tuple[float, float]:
    """(bytes that leave the GPU under `modules`, bytes that a layer that is back holds twice) of a
    piece; compiled in `planner.cost.piece_memory`."""
    left = copied = 0.0
    for row in offloaded_rows(piece):
        size = saved_bytes(row, context, shape)
        there = not row.only_with or bool(row.only_with & modules)
        if there and size >= context.profile.activation_offload.least_bytes:
            left += row.leaves * size if row.kept_under(modules) else 0.0
            copied += row.copies * size
    return left, copied - left


def piece_on_rank(piece: Piece, context: OpContext, shape: RankShape) -> PieceOnRank:
    """All figures of one piece."""
    rows = [row for op in piece.ops for row in op.saved]
    none = sum(saved_bytes(r, context, shape) for r in rows if r.kept_under(Module.NOTHING))
    left = sum(saved_bytes(r, context, shape) for r in rows if r.kept_under(shape.recompute))
    kept, again = recomputed_bytes(none, left, piece, shape)
    dense, experts = rank_parameters(piece, context, shape)
    casts = context.saved.weight_cast_bytes * sum(weight_elements(op, shape) for op in piece.ops)
    working, weight_gradient = working_bytes(piece, context, shape, dense + experts)
    offloaded, duplicated = offloaded_bytes(piece, shape.recompute, context, shape)
    return PieceOnRank(
        name=piece.name,
        dense=dense,
        experts=experts,
        table=table_parameters(context, shape) if _is_end(piece) else 0.0,
        kept=kept - offloaded,
        logits=sum(saved_bytes(r, context, shape) for r in rows if r.name == "head/loss"),
        again=again,
        casts=casts,
        # Ends are never recomputed; a checkpointed layer makes its casts again.
        casts_kept=0.0 if shape.recompute & Module.FULL and not _is_end(piece) else casts,
        working=working,
        weight_gradient=weight_gradient,
        weight_kept=operands_bytes(piece, context, shape),
        recomputes=bool(shape.recompute),
        offloaded=offloaded,
        duplicated=duplicated,
    )


def with_loss(module: PieceOnRank, loss: PieceOnRank) -> PieceOnRank:
    """A module of multi-token prediction and its loss, which has no parameters, as one piece."""
    return replace(
        module,
        kept=module.kept + loss.kept,
        logits=loss.logits,
        casts=module.casts + loss.casts,
        casts_kept=module.casts_kept + loss.casts_kept,
        weight_kept=module.weight_kept + loss.weight_kept,
    )


def _is_end(piece: Piece) -> bool:
    return piece.name in ("embedding", "head")


def table_parameters(context: OpContext, shape: RankShape) -> float:
    """Parameters of the vocabulary table on the rank, padding included."""
    return padded_vocabulary(context, shape.tp) * context.model.hidden / shape.tp
