"""Rules that split a dimension of the model into equal parts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from constraints.axes import AXES, EXPERTS, WORLD, Axis, Cut, product_of
from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import ShapeRule, shape_rule

# Widths and tokens per rank of a low-precision GEMM must be multiples of these.
_WIDTH_MULTIPLES: Mapping[str, int] = {"fp8": 16, "mxfp8": 32, "nvfp4": 16}
_TOKEN_MULTIPLES: Mapping[str, int] = {"fp8": 8, "mxfp8": 32, "nvfp4": 16}


def _cut(axis: Axis, cut: Cut) -> ShapeRule:
    """Rule that a degree divides a number of the model; a number of 0 means no such part."""

    def number(ctx: RuleContext) -> int:
        return int(getattr(ctx.model, cut.number))

    return ShapeRule(
        name=cut.rule,
        sentence=cut.sentence,
        source=cut.source,
        test=lambda columns, ctx: divides(columns[axis.name], number(ctx)),
        wording=lambda ctx: f"{axis.name} must divide {cut.wording.format(number(ctx))}",
    )


CUTS = {cut.rule: _cut(axis, cut) for axis in AXES.values() for cut in axis.cuts}


@shape_rule()
def kv_heads_by_tp(columns: Columns, ctx: RuleContext) -> Mask | bool:
    tp, kv_heads = columns["tp"], ctx.model.kv_heads
    # MLA's keys and values come from one latent for all heads, so heads-by-tp covers it.
    if ctx.framework.kv_heads_rule == "none" or ctx.model.has_mla:
        return True
    cut = divides(tp, kv_heads)
    if ctx.framework.kv_heads_rule == "multiple-or-divisor":
        return cut | equals(tp % kv_heads, 0)
    return cut


@shape_rule()
def state_heads_by_ranks(columns: Columns, ctx: RuleContext) -> Mask | bool:
    heads, groups = ctx.model.state_heads, ctx.model.state_groups
    if not heads:
        return True
    tp, cp = columns["tp"], columns["cp"]
    whole = divides(tp * cp, heads)
    if not groups:
        return whole
    left = np.maximum(1, groups // tp)
    return whole & divides(tp, groups) & (divides(cp, left) | equals(cp % left, 0))


def _ffn_wording(ctx: RuleContext) -> str:
    widths = {"FFN": ctx.model.ffn, "shared experts": ctx.model.shared_ffn}
    cut = [f"{width:,} ({what})" for what, width in widths.items() if width]
    return f"tp must divide {' and '.join(cut)}" if cut else "no dense FFN to cut: any tp"


@shape_rule(wording=_ffn_wording)
def ffn_by_tp(columns: Columns, ctx: RuleContext) -> Mask:
    tp = columns["tp"]
    return divides(tp, ctx.model.ffn) & divides(tp, ctx.model.shared_ffn)


@shape_rule()
def vocabulary_by_tp(columns: Columns, ctx: RuleContext) -> Mask | bool:
    return ctx.framework.vocabulary_padded or divides(columns["tp"], ctx.model.vocab)


@shape_rule()
def sequence_by_cp(columns: Columns, ctx: RuleContext) -> Mask:
    cp = columns["cp"]
    return equals(cp, 1) | divides(2 * cp, ctx.model.seq)


@shape_rule()
def sequence_by_tp_cp(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.sequence_parallel == "never":
        return True
    return divides(columns["tp"] * columns["cp"], ctx.model.seq)


@shape_rule()
def experts_fill_stage(columns: Columns, ctx: RuleContext) -> Mask:  # noqa: ARG001
    stage = product_of(WORLD, columns) // columns["pp"]
    return divides(product_of(EXPERTS, columns), stage)


@shape_rule(
    wording=lambda ctx: (
        f"{ctx.precision}: widths per rank must be multiples of "
        f"{_WIDTH_MULTIPLES.get(ctx.precision, 1)}, tokens per rank of "
        f"{_TOKEN_MULTIPLES.get(ctx.precision, 1)}"
    )
)
def low_precision_multiple(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.precision not in _WIDTH_MULTIPLES:
        return True
    model, multiple = ctx.model, _WIDTH_MULTIPLES[ctx.precision]
    tp_blocks, etp_blocks = columns["tp"] * multiple, columns["etp"] * multiple
    by_tp = (model.query_width, model.ffn, model.shared_ffn)
    tokens = columns["mbs"] * model.seq
    mask = divides(columns["cp"] * _TOKEN_MULTIPLES[ctx.precision], tokens)
    for width in by_tp:
        mask &= divides(tp_blocks, width)
    return mask & divides(etp_blocks, model.moe_ffn) & (model.hidden % multiple == 0)
