"""The op table of a model: the pieces of which pipeline stages consist (layers of any kind,
embedding, head with its loss, multi-token prediction), and sums over their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.frameworks.profile import load_framework
from planner.job.recompute import Module
from planner.job.specs import LayerKind, ModelSpec
from planner.predict.ops.adapters import with_tuning
from planner.predict.ops.attention import attention_rows, input_norm, layer_checkpoint, output_norm
from planner.predict.ops.checkpoint import stop_early, with_budget
from planner.predict.ops.context import OpContext, norm, piece_counts, present, residual
from planner.predict.ops.cross import cross_rows, gate_row
from planner.predict.ops.linear import column_parallel, linear_inputs
from planner.predict.ops.mlp import mlp_rows
from planner.predict.ops.moe import moe_rows
from planner.predict.ops.offload import with_offload
from planner.predict.ops.promotion import with_promotions
from planner.predict.ops.reads import with_reads, with_teacher
from planner.predict.ops.rows import Op, Piece, Saved, never_freed, never_recomputed, only_held
from planner.predict.ops.state_space import state_rows
from planner.predict.ops.vision import end_rows, tower_layer


def layer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of a layer; in a layer with only a feed-forward block, that block keeps the layer's
    checkpoint."""
    if kind.attention == "none":
        first, *rest = _ffn_rows(context, kind)
        return (replace(first, saved=(*first.saved, layer_checkpoint(context))), *rest)
    if kind.attention == "cross":
        return _cross_layer(context, kind)
    mixer = _mixer_rows(context, kind)
    return mixer if kind.ffn == "none" else (*mixer, *_ffn_rows(context, kind))


def _cross_layer(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """A layer with cross-attention to images; samples without images skip it."""
    rows = (
        *input_norm(context),
        *cross_rows(context),
        gate_row(context, "attention"),
        residual(context, "attention/residual"),
        *_ffn_rows(context, kind.model_copy(update={"gated": True})),
    )
    return rows if context.model.images.across else tuple(only_held(op) for op in rows)


def _mixer_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm, then attention or a state space, or both on the same input, then the residual."""
    return (
        *input_norm(context),
        *(attention_rows(context, kind) if kind.attention != "state" else ()),
        *(state_rows(context, kind) if kind.attention in ("state", "both") else ()),
        *output_norm(context, "attention/post_norm"),
        *(gate_row(context, "attention") for _ in range(kind.gated)),
        residual(context, "attention/residual"),
    )


def _ffn_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """A dense block or experts, with the norms around it and the residual."""
    model = context.model
    experts = model.moe if kind.ffn == "moe" else None
    masked = kind.attention == "cross"
    dense = () if experts else mlp_rows(context, "mlp", float(model.ffn), Module.MLP)
    return (
        *_ffn_norm(context, kind),
        *(moe_rows(context, experts) if experts else dense),
        *output_norm(context, "ffn/post_norm"),
        *(gate_row(context, "ffn", masked=masked) for _ in range(kind.gated)),
        residual(context, "ffn/residual"),
    )


def _ffn_norm(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """Norm before the feed-forward block; empty if the block shares the norm of attention, or if
    the model norms only the outputs of its blocks."""
    if context.model.block in ("single", "post"):
        return ()
    alone = Module.LAYERNORM if kind.ffn == "moe" else context.norm_in_linear
    row = norm(context, "ffn/norm", context.model.hidden, alone=alone)
    copies = context.norm_input_bytes != context.saved.residual_bytes
    if context.model.block == "parallel" and not copies:
        # Both norms of parallel branches keep the same input.
        row = replace(row, saved=tuple(item for item in row.saved if item.name != "ffn/norm/input"))
    return (row,)


def embedding_rows(context: OpContext) -> tuple[Op, ...]:
    """Lookup, usually vocabulary-parallel, with any learned positions; backward scatters into fp32
    gradients."""
    model = context.model
    hidden = float(model.hidden)
    element = context.saved.residual_bytes
    shard = ParamShard.TP if context.saved.embedding_sharded else ParamShard.NONE
    rows = model.vocab + (model.vision.input_rows if model.vision else 0)
    parameters = [(rows * hidden, shard)]
    if model.position == "learned":
        parameters.append((model.max_positions * hidden, ParamShard.NONE))
    saved = [
        Saved("embedding/ids", context.saved.id_bytes, Shard.NONE, Module.NOTHING),
        *_shared_tables(context),
    ]
    if context.dropout:
        saved.append(Saved("embedding/dropout_mask", hidden, Shard.SEQUENCE, Module.NOTHING))
    return (
        Op(
            name="embedding",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            forward_bytes=2 * element * hidden,
            backward_bytes=(element + 8) * hidden,
            parameters=tuple(parameters),
            saved=tuple(saved),
            pads_vocabulary=True,
            rerun_with=Module.NOTHING,
        ),
    )


def _shared_tables(context: OpContext) -> tuple[Saved, ...]:
    """Tensors that all layers share: position ids, rotary tables, masks of unfused attention."""
    model, rules = context.model, context.saved
    nothing = Module.NOTHING
    rows = []
    if model.position == "learned":
        positions = rules.position_bytes * context.seq
        rows.append(Saved("embedding/positions", 0.0, Shard.NONE, nothing, fixed_bytes=positions))
    if model.position == "rope" and model.has_attention:
        windows = {kind.attention == "sliding" for kind in model.kinds}
        sets = len(windows) if rules.rotary_per_kind else 1
        tables = 2.0 * sets * rules.rotary_table_bytes * model.rotary_width
        per_token, fixed = (tables, 0.0) if rules.rotary_per_sequence else (0.0, tables)
        rows.append(
            Saved("layers/rotary", per_token, Shard.NONE, nothing, fixed_bytes=fixed * context.seq)
        )
        # Layers that compute their own tables receive fp32 angles, which a checkpoint keeps.
        angles = 4.0 * model.rotary_width * context.seq if rules.rotary_layer_bytes else 0.0
        rows.append(
            Saved("layers/angles", 0.0, Shard.NONE, nothing, Module.FULL, fixed_bytes=angles)
        )
    if context.attention == "eager":
        mask = rules.shared_mask_bytes * context.seq**2
        rows.append(Saved("layers/mask", 0.0, Shard.NONE, nothing, fixed_bytes=mask))
        size = rules.checkpoint_mask_bytes * context.seq
        rows.append(Saved("layers/mask", size, Shard.NONE, nothing, only_with=Module.FULL))
    return present(rows)


def head_rows(context: OpContext) -> tuple[Op, ...]:
    """Final norm, LM head (vocabulary-parallel) and cross-entropy. A tied head multiplies by the
    embedding's weights and has none of its own; in a pipeline the last stage has a copy, which the
    memory terms add."""
    model = context.model
    if model.scores:
        return _score_rows(context)
    hidden, vocab = float(model.hidden), float(model.vocab)
    bias = vocab if model.head_bias else 0.0
    value = 0.0 if model.tied_embeddings else vocab * hidden
    final_norm = norm(context, "head/norm", hidden, of_stream=True)
    inputs = linear_inputs(context, "head/logits", hidden, Module.NOTHING, low_precision=False)
    head = Op(
        name="head/logits",
        kind=OpKind.GEMM,
        out_width=vocab,
        out_shard=Shard.TP,
        in_width=hidden,
        parameters=((value + bias, ParamShard.TP),),
        saved=never_freed(inputs),
        low_precision=False,
        pads_vocabulary=True,
        rerun_with=Module.NOTHING,
    )
    return (never_recomputed(final_norm), head, *_softcap(context), _loss(context))


def _score_rows(context: OpContext) -> tuple[Op, ...]:
    """Final norm and a score for every token; a loss reads only the last token's. Every
    tensor-parallel rank has all weights of the score (transformers, modeling_layers.py,
    GenericForSequenceClassification)."""
    hidden = float(context.model.hidden)
    inputs = linear_inputs(context, "head/score", hidden, Module.NOTHING, low_precision=False)
    score = Op(
        name="head/score",
        kind=OpKind.GEMM,
        tokens=Shard.SEQUENCE,
        out_width=1.0,
        in_width=hidden,
        parameters=((hidden, ParamShard.NONE),),
        saved=never_freed(inputs),
        low_precision=False,
        rerun_with=Module.NOTHING,
    )
    return (never_recomputed(norm(context, "head/norm", hidden, of_stream=True)), score)


def _softcap(context: OpContext) -> tuple[Op, ...]:
    """Capped logits, cap * tanh(x / cap), op by op: a division, a tanh that is kept, a product."""
    if context.model.logits_softcap is None:
        return ()
    size = context.saved.activation_bytes
    return (_logits_row(context, "head/softcap", size, (6.0, 7.0), size, (3, 3)),)


def _loss(context: OpContext) -> Op:
    """Cross-entropy over the vocabulary: fp32 logits read and written a few times each way."""
    kernels = context.profile.kernels
    # The kernel scales elementwise rows by `memory_traffic`, but the loss has a factor of its own.
    passes = kernels.loss_traffic / kernels.memory_traffic
    kept = context.saved.logits_saved_bytes
    return _logits_row(context, "head/loss", kept, (14.0, 8.0), passes, (6, 3))


def _logits_row(
    context: OpContext,
    name: str,
    kept_bytes: float,
    moved: tuple[float, float],
    factor: float,
    kernels: tuple[int, int],
) -> Op:
    """A row over all logits. `kept_bytes`: bytes per logit that it keeps; `moved`: bytes per logit
    that it moves forward and backward, to be multiplied by `factor`."""
    vocab = float(context.model.vocab)
    shard = Shard.TP if context.saved.logits_sharded else Shard.NONE
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        tokens=Shard.TP,
        forward_bytes=moved[0] * vocab * factor,
        backward_bytes=moved[1] * vocab * factor,
        forward_kernels=kernels[0],
        backward_kernels=kernels[1],
        saved=(Saved(name, kept_bytes * vocab, shard, Module.NOTHING),),
        pads_vocabulary=True,
        rerun_with=Module.NOTHING,
    )


def mtp_rows(context: OpContext) -> tuple[Op, ...]:
    """One multi-token-prediction module (DeepSeek-V3, arXiv 2412.19437, section 2.2): two norms, a
    projection from 2h to h, a full layer, and a norm before the head; the head is in
    `mtp_loss_rows`."""
    hidden, name = float(context.model.hidden), "mtp/projection"
    inputs = linear_inputs(context, name, 2 * hidden, Module.FULL)
    return (
        norm(context, "mtp/norm_hidden", hidden),
        norm(context, "mtp/norm_embedding", hidden),
        column_parallel(name, (2 * hidden, hidden), inputs, (), Module.FULL),
        *layer_rows(context, context.model.mtp_kind),
        head_rows(context)[0],
    )


def mtp_loss_rows(context: OpContext) -> tuple[Op, ...]:
    """LM head and loss of one module: the same work as the head's, with the head's weights, which
    are not counted again."""
    rows = head_rows(context)[1:]
    return tuple(replace(op, parameters=()) if op.kind is OpKind.GEMM else op for op in rows)


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Number of parameters of a model: all (`total`), and those that one token uses (`active`: only
    the top-k experts)."""

    total: int
    embedding: int
    head: int
    active: int
    experts: int
    mtp: int


@dataclass(frozen=True, slots=True)
class ComponentParameters:
    """Parameters of one op of the model, such as "attention/qkv", summed over the `layers` that
    have it (1 for the embedding and the output head)."""

    name: str
    layers: int
    total: int

    @property
    def each(self) -> float:
        """Parameters in one layer, averaged if layers differ."""
        return self.total / self.layers


def pieces(context: OpContext) -> tuple[Piece, ...]:
    """The model's pieces: one for each kind of layer in the model's order, then the embedding, the
    head and, only if the model has MTP, one MTP module and its loss. The loss of MTP is on the
    head's pipeline stage, and so is the module unless it has a block of its own. `piece_counts`
    gives how often each occurs."""
    model = context.model
    layers = [_layer(context, kind) for kind in model.piece_kinds]
    embedding = _end(Piece("embedding", embedding_rows(context)), context)
    vocab_layers = [
        replace(embedding, ops=(*embedding.ops, *end_rows(context, _layer))),
        with_teacher(_end(Piece("head", head_rows(context)), context), context, pieces),
    ]
    if model.mtp_layers:
        vocab_layers.append(with_tuning(Piece("mtp", mtp_rows(context)), context))
        vocab_layers.append(with_tuning(Piece("mtp_loss", mtp_loss_rows(context)), context))
    return (*layers, *vocab_layers)


def _end(piece: Piece, context: OpContext) -> Piece:
    """Embedding or head as it is trained, with the rows of other models that a step reads."""
    return with_reads(with_tuning(piece, context), piece, context)


def _layer(context: OpContext, kind: LayerKind) -> Piece:
    """One layer as the job runs it: with adapters, casts, the framework's checkpoints, offload and
    the rows of models that are only read."""
    if kind.module == "vision":
        return tower_layer(context, kind, _layer)
    rows = layer_rows(context, kind)
    plain = Piece(f"layer[{kind.attention},{kind.ffn}]", rows)
    layer = with_promotions(with_tuning(plain, context, frozen=kind.frozen), context)
    if context.profile.recomputing.stops_early:
        layer = stop_early(layer)
    if context.memory_budget is not None:
        layer = with_budget(layer, context.memory_budget)
    return with_reads(with_offload(layer, context), plain, context)


@cache
def _plain_pieces(model: ModelSpec) -> tuple[Piece, ...]:
    """Pieces for counting parameters and FLOP, which no framework changes."""
    return pieces(OpContext(model, load_framework("megatron-core"), model.pretraining_seq))


def parameter_count(model: ModelSpec) -> ParameterCount:
    """Exact parameters: sums over the op table; `total` does not include MTP modules."""
    by_name = {piece.name: piece for piece in _plain_pieces(model)}
    per_kind = _plain_pieces(model)[: len(model.piece_kinds)]
    layers = sum(per_kind[index].parameters for index in model.piece_indices)
    experts = sum(
        op.parameter_count
        for index in model.piece_indices
        for op in per_kind[index].ops
        if op.kind is OpKind.GROUPED_GEMM
    )
    embedding, head = by_name["embedding"].parameters, by_name["head"].parameters
    total = layers + embedding + head
    idle = experts * (1 - model.moe.top_k / model.moe.experts) if model.moe else 0.0
    mtp = by_name["mtp"].parameters * model.mtp_layers if model.mtp_layers else 0.0
    return ParameterCount(
        total=round(total),
        embedding=round(embedding),
        head=round(head),
        active=round(total - idle),
        experts=round(experts),
        mtp=round(mtp),
    )


def _counted_pieces(model: ModelSpec) -> Iterator[tuple[Piece, int]]:
    """Each piece of the model, and how many of it the model has."""
    return zip(_plain_pieces(model), piece_counts(model), strict=True)


def parameters_by_component(model: ModelSpec) -> tuple[ComponentParameters, ...]:
    """Exact parameters of each op in model order, embedding first and head last; they add up to
    `parameter_count(model).total`, without multi-token prediction."""
    held: dict[str, tuple[int, float]] = {}
    for piece, count in _counted_pieces(model):
        if piece.name.startswith("mtp"):
            continue
        for op in piece.ops:
            if op.parameter_count:
                layers, total = held.get(op.name, (0, 0.0))
                held[op.name] = layers + count, total + count * op.parameter_count
    places = {"embedding": 0, "head": 2}
    in_order = sorted(held, key=lambda name: places.get(name.partition("/")[0], 1))
    return tuple(
        ComponentParameters(name, held[name][0], round(held[name][1])) for name in in_order
    )


def op_flop(op: Op, seq: float) -> float:
    """Forward FLOP of a row per token; a multiply-add is 2, attention counts the full square."""
    if op.is_product:
        width = op.out_width + op.kv_out_width
        return 2.0 * op.repeats * op.tokens_factor * width * op.in_width
    if op.kind is OpKind.ATTENTION:
        span = op.span or (min(seq, op.window) if op.window else seq)
        width = op.heads * (op.qk_head_dim + op.v_head_dim)
        return 2.0 * op.repeats * op.tokens_factor * width * span
    if op.kind is OpKind.SCAN:
        return 2.0 * op.out_width * op.in_width
    return 0.0


# FLOP of forward and backward over those of forward. Backward has two products per forward one, but
# fused attention has five for two, since it computes the scores again (Dao et al. 2022, arXiv
# 2205.14135, algorithm 4). Unfused attention computes the full square instead, which is more.
TRAINED, TRAINED_ATTENTION = 3.0, 3.5


def flop_per_token(model: ModelSpec, seq: float, causal: bool = False) -> float:
    """Model FLOP of one trained token: forward plus backward (3x forward), no recompute.

    With `causal` False attention counts the full square, as in most published MFU figures
    (Narayanan et al. 2021, arXiv 2104.04473, appendix; PaLM, arXiv 2204.02311, appendix B); with
    True only the lower triangle. Sliding layers count their window.
    """
    forward = 0.0
    for _, flop in _forward_flop(model, seq, causal=causal):
        forward += flop
    return TRAINED * forward


def least_flop_per_token(model: ModelSpec, seq: float) -> tuple[float, float]:
    """Least FLOP that a step executes per trained token, without recomputed layers: (linear layers
    that run in 8 or 4 bits if the job does, operations that stay in 16 bits: attention, scans,
    router, head). Attention counts the lower triangle."""
    low = wide = 0.0
    for op, flop in _forward_flop(model, seq, causal=True):
        if op.is_product and op.low_precision:
            low += TRAINED * flop
        else:
            wide += flop * (TRAINED_ATTENTION if op.kind is OpKind.ATTENTION else TRAINED)
    return low, wide


def _forward_flop(model: ModelSpec, seq: float, *, causal: bool) -> Iterator[tuple[Op, float]]:
    """Each row of the model's pieces, with the forward FLOP per token of all its occurrences."""
    for piece, count in _counted_pieces(model):
        for op in piece.ops:
            yield op, count * forward_share(op, causal=causal) * op_flop(op, seq)


def forward_share(op: Op, *, causal: bool) -> float:
    """Share of a row's full-square FLOP that counts: one half of attention without a window if
    `causal`, else all."""
    return 0.5 if causal and op.kind is OpKind.ATTENTION and not (op.window or op.span) else 1.0
