"""Which layers' activations stay on the GPU while a framework offloads a share of them.

Megatron-Core moves activations in groups, one for each offloaded module of each layer, in forward
order. Of a model chunk's N groups a fraction f leaves ⌊N·(1-f)⌋, its last ones, on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from constraints.context import Columns, Mask, RuleContext
from constraints.rule import Layout, shape_rule

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, CpModel, IntVar

    from constraints.layout_context import LayoutContext
    from constraints.layout_variables import Expression, LayoutVariables

# From so many modules on a chunk of one layer fails.
_SEVERAL = 2


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


def kept_ratio(fraction: float, most: int) -> Fraction | None:
    """A ratio r with ⌊n·r⌋ = `kept_groups` for all n up to `most`, as simple as can be found.

    None where rounding of floats leaves none.
    """
    kept = [kept_groups(n, fraction) for n in range(1, most + 1)]
    low = max((Fraction(own, n) for n, own in enumerate(kept, 1)), default=Fraction(0))
    high = min((Fraction(own + 1, n) for n, own in enumerate(kept, 1)), default=Fraction(1))
    if low >= high:
        return None
    middle, size = (low + high) / 2, 1
    while not low <= (found := middle.limit_denominator(size)) < high:
        size *= 2
    return found


def kept_at_most(groups: int, fraction: float) -> int:
    """Most groups that stay in all, however they are divided over blocks."""
    return min(groups, ceil(groups * (1.0 - fraction) * (1.0 + 1e-9)))


def _tie(
    model: CpModel,
    counts: tuple[Expression, IntVar],
    rounding: tuple[float, Fraction | None, int],
    chosen: BoolVarT,
) -> None:
    """Make the groups that stay follow from those of a block, if the fraction is the chosen one."""
    (groups, kept), (fraction, ratio, most) = counts, rounding
    if ratio is None:
        there = model.new_int_var(0, most, "")
        model.add(there == groups)
        rounded = model.new_int_var(0, most, "")
        model.add_element(there, [kept_groups(n, fraction) for n in range(most + 1)], rounded)
        model.add(kept == rounded).only_enforce_if(chosen)
        return
    over = ratio.denominator * kept - ratio.numerator * groups
    model.add(over <= 0).only_enforce_if(chosen)
    model.add(over > -ratio.denominator).only_enforce_if(chosen)


def _weighted(counts: Sequence[Expression], sizes: Sequence[int]) -> Expression:
    return sum(n * size for n, size in zip(counts, sizes, strict=True))


@dataclass(frozen=True)
class OffloadVariables:
    """Decision variables of a share: which of the fractions it is, and per block and kind the
    layers that leave wholly (at most) and those of which anything leaves (at least)."""

    chosen: Sequence[BoolVarT]
    kind_whole: list[list[Expression]]
    kind_some: list[list[Expression]]


_ONE_LAYER = (
    "megatron-core 0.19.2, pipeline_parallel/fine_grained_activation_offload.py: "
    "post_warmup_callback keeps the last group of each module of the chunk that runs backward "
    "first; finish_all_groups takes a chunk none of whose groups leave for done after the first"
)


@shape_rule(
    "offload-chunks",
    "with activations of several modules on the host every chunk has two layers or more",
    source=_ONE_LAYER,
    wording=lambda ctx: (
        f"with activations of several modules on the host every chunk needs two of "
        f"the {ctx.model.layers} layers or more: Megatron-Core fails in the second step with one "
        "(Chunk mismatch)"
    ),
)
def offload_chunks(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.offload_modules < _SEVERAL:
        return True
    fits: Mask = 2 * columns["pp"] * columns["vpp"] <= ctx.model.layers
    return fits


@dataclass(frozen=True)
class OffloadChunks:
    """What the framework's manager of offloaded activations survives."""

    name: str = "offload-chunk-layers"
    sentence: str = (
        "with activations of several modules on the host, the last chunk of a stage holds two "
        "layers or more, or is the stage's only one and has none"
    )
    source: str = _ONE_LAYER

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Not one layer in a stage's last chunk."""
        for block, least in _last_chunks(ctx):
            own = variables.layers[block]
            variables.hold(model, model.add(own > 1 if least else own != 1), self.name)

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Not one layer in a stage's last chunk."""
        return all(
            layout.block_layers[block] > 1 or layout.block_layers[block] == least == 0
            for block, least in _last_chunks(ctx)
        )


def _last_chunks(ctx: LayoutContext) -> Iterator[tuple[int, int]]:
    """(block, fewest layers) of the chunk of each stage that runs backward first."""
    if ctx.offload_modules < _SEVERAL:
        return
    for stage in range(ctx.pp):
        block = ctx.stage_blocks(stage)[-1]
        yield block, ctx.least_layers(block) if ctx.vpp == 1 else 1


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
        ratios = [kept_ratio(fraction, most) for fraction in shares.fractions]
        leaving: list[Expression] = []
        for block, layers in enumerate(variables.kind_layers):
            groups = _weighted(layers, shares.groups)
            kept = model.new_int_var(0, most, f"kept_groups[{block}]")
            for fraction, ratio, chosen in zip(shares.fractions, ratios, own.chosen, strict=True):
                _tie(model, (groups, kept), (fraction, ratio, most), chosen)
            leaving.append(_weighted(own.kind_some[block], shares.groups))
            model.add(_weighted(own.kind_whole[block], shares.groups) <= groups - kept)
            model.add(leaving[-1] >= groups - kept)
        # Follows from the rest; the solver's linear relaxation does not see it.
        total = sum(shares.groups[kind] * n for kind, n in enumerate(ctx.totals))
        least = [total - kept_at_most(total, own) for own in shares.fractions]
        model.add(sum(leaving) >= sum(x * n for x, n in zip(own.chosen, least, strict=True)))

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """The layout's fraction is one that the framework may be given."""
        if ctx.offload is None:
            return layout.offload_fraction == 1.0
        given, allowed = layout.offload_fraction, ctx.offload.fractions
        return given in allowed if allowed else 0.0 < given <= 1.0
