"""Which layers' activations stay on the GPU while a framework offloads a share of them.

Megatron-Core moves activations in groups, one for each offloaded module of each layer, in forward
order. Of a model chunk's N groups a fraction f leaves ⌊N·(1-f)⌋, its last ones, on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

    from constraints.layout_context import LayoutContext
    from constraints.layout_variables import Expression, LayoutVariables


@dataclass(frozen=True)
class OffloadShares:
    """`fractions`: those among which a layout has one; `groups[kind]`: offloaded modules of a
    layer. No fractions: any."""

    fractions: tuple[float, ...]
    groups: tuple[int, ...]


def kept_groups(groups: int, fraction: float) -> int:
    """Groups of a chunk that stay, with the framework's own rounding of floats.

    Source: megatron-core 0.19.2, pipeline_parallel/fine_grained_activation_offload.py,
    `post_warmup_callback`. The last group of each module in the first backward of a step stays
    too; what is back ahead of its backward makes up for it.
    """
    return int(groups * (1 - fraction))


def leaving_layers(kinds: Sequence[int], groups: Sequence[int], fraction: float) -> tuple[int, int]:
    """(first layers of a block that leave with all their groups, those of which any group leaves).

    `kinds`: of the block's layers. They differ by the layer that the fraction divides, if any.
    """
    own = [groups[kind] for kind in kinds]
    kept = kept_groups(sum(own), fraction)
    whole = some = len(own)
    total = 0
    while total < kept:
        whole -= 1
        total += own[whole]
        some -= total <= kept
    return whole, some


def leaving_blocks(
    layout: Layout, ctx: LayoutContext, shares: OffloadShares
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`leaving_layers` of each block of a layout."""
    start, found = 0, list[tuple[int, int]]()
    for layers in layout.block_layers:
        own = ctx.kinds[start : start + layers]
        found.append(leaving_layers(own, shares.groups, layout.offload_fraction))
        start += layers
    return tuple(whole for whole, _ in found), tuple(some for _, some in found)


@dataclass(frozen=True)
class OffloadVariables:
    """Decision variables of a share: the index of the fraction, and per block and kind the layers
    that leave wholly (at most) and those of which anything leaves (at least)."""

    fraction: IntVar
    kind_whole: list[list[Expression]]
    kind_some: list[list[Expression]]


@dataclass(frozen=True)
class OffloadExpressible:
    """What the framework's one fraction can say about the layers that stay."""

    name: str = "offload-expressible"
    sentence: str = (
        "one fraction for all stages says which groups of activations leave the GPU: the last "
        "⌊N·(1-f)⌋ of a chunk's N stay"
    )
    source: str = (
        "megatron-core 0.19.2, --activation-offload-fraction: pipeline_parallel/"
        "fine_grained_activation_offload.py, post_warmup_callback"
    )

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Tie each block's layers that stay to the groups that its fraction leaves there."""
        shares, own = ctx.offload, variables.offload
        if shares is None or own is None:
            return
        most = ctx.layers * max(shares.groups)
        table = [kept_groups(n, f) for f in shares.fractions for n in range(most + 1)]
        for block, layers in enumerate(variables.kind_layers):
            groups = sum(n * size for n, size in zip(layers, shares.groups, strict=True))
            at = model.new_int_var(0, len(table) - 1, "")
            model.add(at == own.fraction * (most + 1) + groups)
            kept = model.new_int_var(0, most, f"kept_groups[{block}]")
            model.add_element(at, table, kept)
            whole, some = (
                sum(n * size for n, size in zip(left[block], shares.groups, strict=True))
                for left in (own.kind_whole, own.kind_some)
            )
            model.add(whole <= groups - kept)
            model.add(some >= groups - kept)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The layout's fraction is one that the framework may be given."""
        if ctx.offload is None:
            return layout.offload_fraction == 1.0
        given, allowed = layout.offload_fraction, ctx.offload.fractions
        return given in allowed if allowed else 0.0 < given <= 1.0
