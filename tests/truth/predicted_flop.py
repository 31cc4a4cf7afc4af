"""FLOP of the op table against what torch's counter found in models of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.cost.codes import OpKind
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op, Piece
from planner.predict.ops.table import op_flop, pieces
from tests.truth.predicted import Compared, Row, figures_of, label, single_device


def compare_flop(row: Row) -> Iterator[Compared]:
    """FLOP of a layer and of the ends, forward and backward, as torch's counter takes them.

    The whole square of attention is counted, of sliding windows too. Backward multiplies twice
    what forward did; a fused kernel multiplies queries and keys once more. A checkpoint runs its
    layer again up to the last tensor that is needed. Grouped products, for which the counter has
    no formula, are left out here as there.
    """
    context, key = single_device(row)
    table = pieces(context)
    kinds, vocab_layers = context.model.kind_indices, table[len(context.model.kinds) :]
    layers = [_layer_flop(piece, context, Module(key.modules)) for piece in table]
    outside = sum(_products_flop(piece.ops, context) for piece in vocab_layers)
    forward, backward, attention, attention_backward = layers[kinds[-1]]
    sums = [sum(layers[kind][way] for kind in kinds) for way in (0, 1)]
    totals = (sums[0] + outside, sums[1] + 2 * outside)
    figures = (
        ("forward_per_layer", forward),
        ("backward_per_layer", backward),
        ("attention_forward_per_layer", attention),
        ("attention_backward_per_layer", attention_backward),
        ("forward_non_layer", outside),
        ("backward_non_layer", 2 * outside),
        ("forward", totals[0]),
        ("backward", totals[1]),
        ("step", sum(totals)),
        ("step_per_token", sum(totals) / context.seq),
    )
    yield from figures_of(row, label(row), figures)


def _layer_flop(
    piece: Piece, context: OpContext, recompute: Module
) -> tuple[float, float, float, float]:
    """(forward, backward, attention forward, attention backward) FLOP of a sequence."""
    again = [op for op in piece.ops if op.rerun_with & recompute]
    products, attention = _products_flop(piece.ops, context), _attention_flop(piece.ops, context)
    factor = 2.5 if context.attention == "flash" else 2.0
    attention_backward = factor * attention + _attention_flop(again, context)
    backward = 2 * products + _products_flop(again, context) + attention_backward
    return products + attention, backward, attention, attention_backward


def _products_flop(ops: Iterable[Op], context: OpContext) -> float:
    """FLOP of products over a sequence; experts only where their products are not grouped."""
    counted = {OpKind.GEMM}
    if context.saved.experts_see_all_tokens:
        counted.add(OpKind.GROUPED_GEMM)
    return context.seq * sum(op_flop(op, context.seq) for op in ops if op.kind in counted)


def _attention_flop(ops: Iterable[Op], context: OpContext) -> float:
    """FLOP of the two products of attention over the whole square of a sequence."""
    pads = context.attention == "flash" and context.saved.fused_pads_values
    total = 0.0
    for op in ops:
        if op.kind is OpKind.ATTENTION:
            values = op.qk_head_dim if pads else op.v_head_dim
            total += 2.0 * op.heads * (op.qk_head_dim + values) * context.seq**2
    return total
