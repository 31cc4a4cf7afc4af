"""The inputs of layout rules for one shape, and the counts that follow from a layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

from constraints.memory_numbers import MemoryNumbers
from constraints.rule import Layout, Placement, stage_blocks

LayoutShape = Literal["any", "even-or-ends", "even", "greedy"]
# How many layers recompute: none; all; one number for every block (Megatron's block method), or all
# layers of a shorter block; or a number for each stage, which fills its chunks in order. Only in
# the last case may there be several modes.
Recomputation = Literal["none", "all", "shared", "free"]


@dataclass(frozen=True)
class LayoutContext:
    """The numbers of one shape that layout rules read.

    `kinds`: kind index of each layer, first to last. `memory`: None means unlimited. `modes`: names
    of the recompute modes that layers may use; layers at the start of a block use the first. At
    most one unless `recomputation` is free. `standalone_vocab`: the first block may hold just the
    embedding, and the last one just the head and loss (with multi-token prediction). `head_layers`:
    how many layers take as long as the rest of the last block, rounded. `mtp_standalone`: the
    framework can put multi-token prediction in the second-last block, leaving head and loss in the
    last; the solver never does.
    """

    pp: int
    vpp: int
    kinds: tuple[int, ...]
    layouts: LayoutShape = "any"
    recomputation: Recomputation = "none"
    memory: MemoryNumbers | None = None
    placement: Placement = "straight"
    modes: tuple[str, ...] = ()
    standalone_vocab: bool = False
    head_layers: int = 0
    mtp_standalone: bool = False
    # Number of activation groups of a layer that leave the GPU one after the other.
    offload_modules: int = 0
    # Share of the activation groups able to leave the GPU that do (`constraints.offload`).
    offload_fraction: float = 1.0
    # Layers of each block if there is no choice: the one split of `even` and `greedy` frameworks.
    usual_split: tuple[int, ...] = ()
    # Fewest layers of the first block, if a vision tower's further projectors add to them.
    first_block: int = 0

    @property
    def blocks(self) -> int:
        """Number of blocks of consecutive layers: pp·vpp."""
        return self.pp * self.vpp

    @property
    def may_part(self) -> bool:
        """Whether multi-token prediction may have its own block, which excludes the embedding's
        stage."""
        return self.mtp_standalone and self.standalone_vocab and self.pp > 2

    def least_layers(self, block: int, standalone: bool = False) -> int:
        """Fewest layers of a block. `standalone`: multi-token prediction is in the second-last
        block."""
        alone = self.standalone_vocab and self.blocks > 1 and block in (0, self.blocks - 1)
        usual = 0 if alone or (standalone and block == self.blocks - 2) else 1
        return max(usual, self.first_block) if block == 0 else usual

    def fewer_layers(self, block: int) -> int:
        """By how many layers a block may fall short of the other blocks of its stage."""
        return max(1, self.head_layers) if block == self.blocks - 1 else 1

    def stage_blocks(self, stage: int) -> tuple[int, ...]:
        """Blocks of one stage."""
        return stage_blocks(stage, self.pp, self.vpp, self.placement)

    @property
    def layers(self) -> int:
        """Transformer layers of the model."""
        return len(self.kinds)

    @property
    def kind_count(self) -> int:
        """Distinct kinds of layers."""
        return max(self.kinds) + 1

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.kinds.count(kind) for kind in range(self.kind_count))

    @cached_property
    def in_order(self) -> bool:
        """Whether each kind of layer forms one run (dense layers, then MoE)."""
        return list(self.kinds) == sorted(self.kinds)

    @cached_property
    def period(self) -> int:
        """Number of layers after which the sequence of kinds repeats; all of them if it does
        not."""
        for period in range(1, self.layers // 2 + 1):
            if all(kind == self.kinds[at % period] for at, kind in enumerate(self.kinds)):
                return period
        return self.layers

    @cached_property
    def prefix(self) -> tuple[tuple[int, ...], ...]:
        """prefix[kind][n]: how many of the first n layers have that kind."""
        return tuple(
            tuple(accumulate((int(one_kind == kind) for one_kind in self.kinds), initial=0))
            for kind in range(self.kind_count)
        )

    def counts(self, layout: Layout) -> list[list[int]]:
        """[stage][kind]: layers of each kind on each stage."""
        return self.first_layers(layout, layout.block_layers)

    def mode_counts(self, layout: Layout) -> list[list[list[int]]]:
        """[mode][stage][kind]: layers that recompute in each mode."""
        none = (0,) * self.blocks
        taken = block_taken(layout, self) or (none,) * len(self.modes)
        firsts = [self.first_layers(layout, blocks) for blocks in (none, *taken)]
        return [
            [
                [last - first for first, last in zip(*kinds, strict=True)]
                for kinds in zip(before, after, strict=True)
            ]
            for before, after in pairwise(firsts)
        ]

    def recomputed_counts(self, layout: Layout) -> list[list[int]]:
        """[stage][kind]: layers that recompute in the first mode."""
        none = [[0] * self.kind_count for _ in range(self.pp)]
        return next(iter(self.mode_counts(layout)), none)

    def first_layers(self, layout: Layout, takes: Sequence[int]) -> list[list[int]]:
        """[stage][kind]: counts among the first `takes[block]` layers of each block."""
        starts = accumulate(layout.block_layers, initial=0)
        blocks = []
        for start, take in zip(starts, takes, strict=False):
            end = min(start + take, self.layers)
            blocks.append([row[end] - row[min(start, self.layers)] for row in self.prefix])
        return [
            [sum(kind) for kind in zip(*(blocks[b] for b in self.stage_blocks(s)), strict=True)]
            for s in range(self.pp)
        ]


def block_taken(layout: Layout, ctx: LayoutContext) -> tuple[tuple[int, ...], ...] | None:
    """[n][block]: layers that use one of the first n + 1 modes; None if the framework cannot
    express it."""
    if not set(layout.recomputed) <= set(ctx.modes):
        return None
    if not ctx.modes:
        return ()
    if ctx.recomputation == "free":
        return _filled(layout, ctx.modes)
    if ctx.recomputation == "all":
        whole = list(layout.recomputed.values()) == [layout.stage_layers]
        return (layout.block_layers,) if whole else None
    count = shared_count(layout)
    return None if count is None else (tuple(min(count, n) for n in layout.block_layers),)


def shared_count(layout: Layout) -> int | None:
    """The smallest N such that every block recomputes min(N, its layers) in the layout's one mode;
    None if there is no such N."""
    for count in range(1, max(layout.block_layers) + 1):
        taken = layout.per_stage([min(count, layers) for layers in layout.block_layers])
        if [taken] == list(layout.recomputed.values()):
            return count
    return None


def running_sums(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Cumulative sums of rows of equal length."""
    return list(accumulate(rows, lambda row, more: [a + b for a, b in zip(row, more, strict=True)]))


def _filled(layout: Layout, modes: Sequence[str]) -> tuple[tuple[int, ...], ...] | None:
    """Each stage's counts, filling its chunks in order; None if nothing recomputes, or a count is
    too large."""
    if not any(map(any, layout.recomputed.values())):
        return None
    rows = (layout.recomputed.get(mode, (0,) * layout.pp) for mode in modes)
    blocks = [_filled_blocks(layout, wanted) for wanted in running_sums(rows)]
    filled = [block for block in blocks if block is not None]
    return tuple(filled) if len(filled) == len(blocks) else None


def _filled_blocks(layout: Layout, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Split a stage's count over its blocks, earlier chunks first; None if it is too large."""
    taken = [0] * len(layout.block_layers)
    for stage, left in enumerate(wanted):
        for block in layout.stage_blocks(stage):
            taken[block] = min(left, layout.block_layers[block])
            left -= taken[block]  # noqa: PLW2901
        if left:
            return None
    return tuple(taken)
