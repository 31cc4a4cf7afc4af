"""The layout to try first: the usual split, or that at which a bound is attained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from constraints.layout import (
    LAYOUT_RULES,
    LayoutContext,
    LayoutVariables,
    block_taken,
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
) -> None:
    """Start from `first_blocks`."""
    blocks, again = first_blocks(ctx, start)
    for layer, wanted in zip(variables.layers, blocks, strict=True):
        model.add_hint(layer, wanted)
    for counts in variables.recomputed[:1]:
        for layer, wanted in zip(counts, again, strict=True):
            model.add_hint(layer, wanted)


def first_layout(ctx: LayoutContext, start: tuple[int, ...]) -> Layout | None:
    """The layout of `first_blocks`, if it obeys every rule."""
    layout = _with_counts(*first_blocks(ctx, start), ctx)
    return layout if all(rule.check(layout, ctx) for rule in LAYOUT_RULES) else None


def first_blocks(
    ctx: LayoutContext, start: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(layers of each block, how many of them recompute): the usual split or that of `start`, as
    few layers recomputed as fit there.

    `start`: layers of each stage; (): the usual ones.
    """
    blocks = chunks(start, ctx) if start else ctx.usual_split
    return blocks, _fewest_recomputed(blocks, ctx)


def chunks(stage_layers: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """Layers of each block: a stage's chunks as equal as they can be, that with the head the
    smallest."""
    blocks = [0] * ctx.blocks
    last = ctx.blocks - 1
    for stage, layers in enumerate(stage_layers):
        stage_blocks = ctx.stage_blocks(stage)
        left = layers
        if stage_blocks[-1] == last and len(stage_blocks) > 1:
            # The other chunks hold `fewer` more than this one.
            fewer = max(1, ctx.fewer_layers(last))
            even = -(((len(stage_blocks) - 1) * fewer - layers) // len(stage_blocks))
            blocks[last] = max(ctx.least_layers(last), even)
            left, stage_blocks = layers - blocks[last], stage_blocks[:-1]
        for index, block in enumerate(stage_blocks):
            blocks[block] = (left + len(stage_blocks) - 1 - index) // len(stage_blocks)
    return tuple(blocks)


def _fewest_recomputed(blocks: tuple[int, ...], ctx: LayoutContext) -> tuple[int, ...]:
    """Recomputed layers of each block: in partial modes the smallest common number that fits."""
    if ctx.recomputation in ("none", "all"):
        return blocks if ctx.recomputation == "all" else (0,) * len(blocks)
    for most in range(1, max(blocks)):
        taken = tuple(min(most, block) for block in blocks)
        layout = _with_counts(blocks, taken, ctx)
        if block_taken(layout, ctx) is not None and stage_memory.check(layout, ctx):
            return taken
    return blocks


def _with_counts(blocks: tuple[int, ...], taken: tuple[int, ...], ctx: LayoutContext) -> Layout:
    plain = Layout(ctx.pp, ctx.vpp, blocks, {}, ctx.placement)
    return replace(plain, recomputed={mode: plain.per_stage(taken) for mode in ctx.modes[:1]})
