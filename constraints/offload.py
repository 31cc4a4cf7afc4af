"""Layers whose activations stay on the GPU when a framework offloads a share of them.

Megatron-Core moves activations in groups, one per offloaded module and layer, in forward order. Of
the N groups of a model chunk, a fraction f leaves ⌊N·(1-f)⌋ on the GPU, the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask
from constraints.rule import Layout, shape_rule

if TYPE_CHECKING:
    from constraints.layout_context import LayoutContext

# From this number of modules on, a chunk of one layer fails.
SEVERAL_MODULES = 2


def kept_groups(groups: int, fraction: float) -> int:
    """Groups of a chunk that stay on the GPU, with the framework's own float rounding.

    Source: megatron-core 0.19.2, pipeline_parallel/fine_grained_activation_offload.py,
    `post_warmup_callback`. The last group of each module in the first backward of a step stays too;
    groups fetched ahead of their backward make up for that.
    """
    return int(groups * (1 - fraction))


def leaving_layers(kinds: Sequence[int], groups: Sequence[int], fraction: float) -> tuple[int, int]:
    """(first layers of a block all of whose groups leave, first layers any of whose groups leave).

    `kinds`: kinds of the block's layers. The two numbers differ by the layer that the fraction
    splits, if it splits one.
    """
    items = [groups[kind] for kind in kinds]
    kept = kept_groups(sum(items), fraction)
    whole = some = len(items)
    total = 0
    while total < kept:
        whole -= 1
        total += items[whole]
        some -= total <= kept
    return whole, some


def leaving_blocks(
    layout: Layout, ctx: LayoutContext, groups: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`leaving_layers` of each block of a layout."""
    start, found = 0, list[tuple[int, int]]()
    for layers in layout.block_layers:
        kinds = ctx.kinds[start : start + layers]
        found.append(leaving_layers(kinds, groups, ctx.offload_fraction))
        start += layers
    return tuple(whole for whole, _ in found), tuple(some for _, some in found)


def resident_counts(
    layout: Layout, ctx: LayoutContext, groups: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """[stage][kind]: layers with any group of activations on the GPU, and layers with all of them
    there. `groups[kind]`: offloaded modules per layer."""
    counts = ctx.counts(layout)
    leaving = leaving_blocks(layout, ctx, groups)
    whole, some = (ctx.first_layers(layout, blocks) for blocks in leaving)
    return _less(counts, whole), _less(counts, some)


def _less(layers: list[list[int]], leaving: list[list[int]]) -> list[list[int]]:
    return [
        [count - gone for count, gone in zip(*stage, strict=True)]
        for stage in zip(layers, leaving, strict=True)
    ]


@shape_rule()
def offload_chunks(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.offload_modules < SEVERAL_MODULES:
        return True
    fits: Mask = 2 * columns["pp"] * columns["vpp"] <= ctx.model.layers
    return fits
