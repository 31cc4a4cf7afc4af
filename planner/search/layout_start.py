"""From which layout CP-SAT starts: the usual split, or that at which a bound is attained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from constraints.layout import (
    LayoutContext,
    LayoutVariables,
    block_recomputed,
    stage_memory,
)
from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel


def hint(
    model: CpModel,
    variables: LayoutVariables,
    ctx: LayoutContext,
    start: tuple[int, ...],
    apart: bool | None,
) -> None:
    """Start from the usual split or that of `start`, as few layers recomputed as fit there.

    `start`: layers of each stage; (): the usual ones. `apart`: whether multi-token prediction
    starts before the head's block; None: with the head.
    """
    blocks = chunks(start, ctx, bool(apart)) if start else ctx.usual_split
    for own, wanted in zip(variables.layers, blocks, strict=True):
        model.add_hint(own, wanted)
    if variables.apart is not None:
        model.add_hint(variables.apart, bool(apart))
    again = _fewest_recomputed(blocks, ctx, bool(apart))
    for own, wanted in zip(variables.recomputed, again, strict=True):
        model.add_hint(own, wanted)
    if ctx.offload is not None and variables.offload is not None:
        least = _least_fraction(blocks, again, ctx, ctx.offload.fractions)
        for chosen, fraction in zip(variables.offload.chosen, ctx.offload.fractions, strict=True):
            model.add_hint(chosen, fraction == least)


def _least_fraction(
    blocks: tuple[int, ...], again: tuple[int, ...], ctx: LayoutContext, tried: tuple[float, ...]
) -> float:
    """The smallest fraction of activations that must leave for a layout to fit."""
    layout = _with_counts(blocks, again, ctx)
    ordered = sorted(tried)
    fits = (
        own for own in ordered if stage_memory.check(replace(layout, offload_fraction=own), ctx)
    )
    return next(fits, ordered[-1])


def chunks(
    stage_layers: tuple[int, ...], ctx: LayoutContext, apart: bool = False
) -> tuple[int, ...]:
    """Layers of each block: a stage's chunks as equal as they can be, those with the head or with
    multi-token prediction the smallest; the head's has none where that is apart."""
    blocks = [0] * ctx.blocks
    last = ctx.blocks - 1
    light = (last, last - 1) if apart else (last,)
    for stage, layers in enumerate(stage_layers):
        own = ctx.stage_blocks(stage)
        left = layers
        if own[-1] in light and len(own) > 1:
            # The other chunks hold `fewer` more than this one.
            fewer = max(1, ctx.fewer_layers(own[-1], apart))
            even = -(((len(own) - 1) * fewer - layers) // len(own))
            alone = apart and own[-1] == last
            blocks[own[-1]] = 0 if alone else max(ctx.least_layers(own[-1], apart), even)
            left, own = layers - blocks[own[-1]], own[:-1]
        for index, block in enumerate(own):
            blocks[block] = (left + len(own) - 1 - index) // len(own)
    return tuple(blocks)


def _fewest_recomputed(
    blocks: tuple[int, ...], ctx: LayoutContext, apart: bool = False
) -> tuple[int, ...]:
    """Recomputed layers of each block: in partial modes the smallest common number that fits."""
    if ctx.recomputation in ("none", "all"):
        return blocks if ctx.recomputation == "all" else (0,) * len(blocks)
    for most in range(1, max(blocks)):
        taken = tuple(min(most, own) for own in blocks)
        layout = replace(_with_counts(blocks, taken, ctx), mtp_apart=apart)
        if block_recomputed(layout, ctx) is not None and stage_memory.check(layout, ctx):
            return taken
    return blocks


def _with_counts(blocks: tuple[int, ...], taken: tuple[int, ...], ctx: LayoutContext) -> Layout:
    plain = Layout(ctx.pp, ctx.vpp, blocks, (0,) * ctx.pp, ctx.placement)
    none = ((0,) * ctx.pp,) * ctx.others
    return replace(plain, recomputed=plain.per_stage(taken), others=none)
