"""The op table of a model: pieces a pipeline stage can hold, and sums over their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from planner.cost.codes import OpKind
from planner.job.frameworks.profile import load_framework
from planner.job.specs import LayerKind, ModelSpec
from planner.predict.ops.checkpoint import stop_early, with_budget
from planner.predict.ops.context import OpContext
from planner.predict.ops.layer import layer_rows
from planner.predict.ops.offload import with_offload
from planner.predict.ops.rows import Op, Piece
from planner.predict.ops.vocab_layers import embedding_rows, head_rows, mtp_loss_rows, mtp_rows


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model. `active`: used by one token (top-k of the experts)."""

    total: int
    embedding: int
    head: int
    active: int
    experts: int
    mtp: int


@dataclass(frozen=True, slots=True)
class ComponentParameters:
    """Parameters of one op of the model, summed over the layers that hold it.

    `name`: the op, as in "attention/qkv". `layers`: how many layers hold it (1 for the embedding
    and the output head). `each`: parameters in one of them, averaged where they differ.
    """

    name: str
    layers: int
    total: int

    @property
    def each(self) -> float:
        """Parameters in one layer."""
        return self.total / self.layers


def pieces(context: OpContext) -> tuple[Piece, ...]:
    """Layer kinds in the model's order, then embedding, head and, if any, one MTP module and its
    loss, which share a stage with the head unless the module stands apart."""
    model = context.model
    layers = [_layer(context, kind) for kind in model.kinds]
    vocab_layers = [
        Piece("embedding", embedding_rows(context)),
        Piece("head", head_rows(context)),
    ]
    if model.mtp_layers:
        vocab_layers.append(Piece("mtp", mtp_rows(context)))
        vocab_layers.append(Piece("mtp_loss", mtp_loss_rows(context)))
    return (*layers, *vocab_layers)


def _layer(context: OpContext, kind: LayerKind) -> Piece:
    """One layer, with the rows that checkpoints of the framework run again."""
    rows = layer_rows(context, kind)
    layer = Piece(f"layer[{kind.attention},{kind.ffn}]", rows)
    if context.profile.recomputing.stops_early:
        layer = stop_early(layer)
    if context.memory_budget is not None:
        layer = with_budget(layer, context.memory_budget)
    return with_offload(layer, context)


@cache
def _plain_pieces(model: ModelSpec) -> tuple[Piece, ...]:
    """Pieces for counting parameters and FLOP, which no framework changes."""
    return pieces(OpContext(model, load_framework("megatron-core"), model.pretraining_seq))


def parameter_count(model: ModelSpec) -> ParameterCount:
    """Exact parameters: sums over the op table; MTP modules are counted apart from `total`."""
    by_name = {piece.name: piece for piece in _plain_pieces(model)}
    per_kind = _plain_pieces(model)[: len(model.kinds)]
    layers = sum(per_kind[index].parameters for index in model.kind_indices)
    experts = sum(_expert_parameters(per_kind[index]) for index in model.kind_indices)
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


def _counted_pieces(model: ModelSpec) -> tuple[tuple[Piece, int], ...]:
    """Each piece of the model with the number of times that the model holds it."""
    all_pieces = _plain_pieces(model)
    counts = [model.kind_indices.count(index) for index in range(len(model.kinds))]
    counts += [1, 1] + [model.mtp_layers] * (len(all_pieces) - len(model.kinds) - 2)
    return tuple(zip(all_pieces, counts, strict=True))


def parameters_by_component(model: ModelSpec) -> tuple[ComponentParameters, ...]:
    """Exact parameters of each op in model order; without multi-token prediction they add up to
    `parameter_count(model).total`."""
    held: dict[str, tuple[int, float]] = {}
    for piece, count in _counted_pieces(model):
        if piece.name.startswith("mtp"):
            continue
        for op in piece.ops:
            if op.parameter_count:
                layers, total = held.get(op.name, (0, 0.0))
                held[op.name] = layers + count, total + count * op.parameter_count
    in_order = sorted(held, key=_model_order)
    return tuple(
        ComponentParameters(name, held[name][0], round(held[name][1])) for name in in_order
    )


def _model_order(name: str) -> int:
    """The embedding first and the output head last, layers between them as they are."""
    return {"embedding": 0, "head": 2}.get(name.partition("/")[0], 1)


def _expert_parameters(piece: Piece) -> float:
    return sum(op.parameter_count for op in piece.ops if op.kind is OpKind.GROUPED_GEMM)


def op_flop(op: Op, seq: int) -> float:
    """Forward FLOP of a row per token; a multiply-add is 2, attention counts the full square."""
    if op.is_product:
        return 2.0 * op.tokens_factor * (op.out_width + op.kv_out_width) * op.in_width
    if op.kind is OpKind.ATTENTION:
        span = min(seq, op.window) if op.window else seq
        return 2.0 * op.heads * (op.qk_head_dim + op.v_head_dim) * span
    if op.kind is OpKind.SCAN:
        return 2.0 * op.out_width * op.in_width
    return 0.0


def flop_per_token(model: ModelSpec, seq: int, causal: bool = False) -> float:
    """Model FLOP of one trained token: forward plus backward (3x forward), no recompute.

    With `causal` False attention counts the full square, as most published MFU figures do
    (Narayanan et al. 2021, arXiv 2104.04473, appendix; PaLM, arXiv 2204.02311, appendix B);
    with True only the lower triangle. Sliding layers count their window.
    """
    forward = 0.0
    for piece, count in _counted_pieces(model):
        for op in piece.ops:
            share = 0.5 if causal and op.kind is OpKind.ATTENTION and not op.window else 1.0
            forward += count * share * op_flop(op, seq)
    return 3.0 * forward
