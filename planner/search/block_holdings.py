"""The layers that a pipeline stage may hold: sums over its blocks of runs of the model's layers.

A block's run starts no earlier than after the fewest layers that the blocks before it must hold,
and ends no later than before the fewest of the blocks after it. If kinds of layers repeat, most
blocks may hold the same runs and most stages the same sums, so these are computed once per process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from constraints.layout_context import LayoutContext

Integers = NDArray[np.int64]
# Codes of holdings have 64 bits.
_LARGEST_CODE = 2**62


@dataclass(frozen=True, eq=False)
class Sequence:
    """The kinds of a model's layers, first to last; one object per model.

    A run has one count of layers for each kind, and one count of recomputing layers for each kind.
    These counts are the digits of a code in base layers + 1; the highest digit is the total. Codes
    add up as the counts do.
    """

    kinds: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return len(self.kinds)

    @cached_property
    def prefix(self) -> tuple[list[int], list[int]]:
        """By n: the code of the first n layers, and what recomputing them adds."""
        half = len(self.weights) // 2
        each = [self.weights[kind] + self.weights[-1] for kind in self.kinds]
        again = [self.weights[half + kind] for kind in self.kinds]
        return [0, *accumulate(each)], [0, *accumulate(again)]

    @cached_property
    def weights(self) -> list[int]:
        """Increment of a code for one more of each count; the last one is the total."""
        return [(self.layers + 1) ** digit for digit in range(2 * max(self.kinds) + 3)]

    @property
    def coded(self) -> bool:
        """Whether codes are small enough for integers."""
        return self.weights[-1] * (self.layers + 1) < _LARGEST_CODE

    @cached_property
    def repeats(self) -> tuple[int, int]:
        """(s, p): from layer s on, every layer has the kind of the layer p places later."""
        found = [(self._settled(period), period) for period in range(1, self.layers + 1)]
        return min(found, key=sum)

    def _settled(self, period: int) -> int:
        """First layer from which on the kinds repeat with a period."""
        settled = self.layers - period
        while settled > 0 and self.kinds[settled - 1] == self.kinds[settled - 1 + period]:
            settled -= 1
        return settled


@lru_cache(maxsize=64)
def sequence(kinds: tuple[int, ...]) -> Sequence:
    """The sequence of a model's layers."""
    return Sequence(kinds)


class Block(NamedTuple):
    """The runs that a block may hold: the model's first layers, its last ones, or any run from
    layer `first` on that starts at most `width` layers later (0: anywhere).

    `least`: fewest layers. `fewer`: by how many layers it may fall short of the other chunks of its
    stage; with 0, the others may also have one layer less than it.
    """

    place: Literal["first", "middle", "last"]
    first: int
    width: int
    least: int
    fewer: int


class Recompute(NamedTuple):
    """The `mode`: all layers recompute, or none; or (`shared`) each block recomputes its first
    `each` layers, or all of them if it has fewer."""

    mode: str
    each: int


def stage_blocks(ctx: LayoutContext, stage: int, most_layers: int) -> tuple[Block, ...]:
    """The blocks of a stage; equal for stages that may hold the same, up to `most_layers`
    layers."""
    return tuple(_block(ctx, block, most_layers) for block in ctx.stage_blocks(stage))


def _block(ctx: LayoutContext, block: int, most_layers: int) -> Block:
    least, last = ctx.least_layers(block), ctx.blocks - 1
    before = block - (ctx.least_layers(0) == 0 and block > 0)
    behind = last - block - (ctx.least_layers(last) == 0 and block < last)
    width = ctx.layers - before - behind
    if block == last:
        return Block("last", before, width, least, ctx.fewer_layers(block))
    if block == 0:
        return Block("first", 0, width, least, 0)
    settled, period = sequence(ctx.kinds).repeats
    first = before if before < settled else settled + (before - settled) % period
    every = max(0, settled - first) + period
    return Block("middle", first, 0 if width - most_layers + 1 >= every else width, least, 0)


class Holdings(NamedTuple):
    """[holding, number]: layers of each kind, then recomputing layers of each kind. `sums`: how
    many were formed to find them, in how many `calls`."""

    numbers: Integers
    sums: int
    calls: int


@lru_cache(maxsize=1 << 14)
def holdings(
    model: Sequence, blocks: tuple[Block, ...], recompute: Recompute, most_layers: int
) -> Holdings:
    """A superset of the layers that a stage of at most `most_layers` layers may hold."""
    limit = (most_layers + 1) * model.weights[-1]
    found, formed, calls = [np.zeros(0, dtype=np.int64)], 0, 0
    for sizes in _chunk_sizes(blocks, most_layers):
        sums = np.zeros(1, dtype=np.int64)
        for block, choices in zip(blocks, sizes, strict=True):
            runs = {code for size in choices for code in run_codes(model, block, recompute, size)}
            totals = np.add.outer(sums, np.array(sorted(runs), dtype=np.int64))
            formed, calls = formed + totals.size, calls + 1
            sums = np.unique(totals[totals < limit])
        found.append(sums)
    codes = np.unique(np.concatenate(found))
    base = model.layers + 1
    numbers = np.stack([codes // weight % base for weight in model.weights[:-1]], axis=1)
    return Holdings(numbers, formed, calls)


def _chunk_sizes(blocks: tuple[Block, ...], most_layers: int) -> Iterator[list[range]]:
    """A superset of the sizes that the chunks of a stage may have together (rule
    chunks-balanced)."""
    if len(blocks) == 1:
        yield [range(blocks[0].least, most_layers + 1)]
        return
    for base in range(most_layers // (len(blocks) - 1) + 1):
        yield [
            range(
                max(block.least, base - block.fewer),
                min(most_layers + 1, base + 2 + (block.fewer > 0)),
            )
            for block in blocks
        ]


@lru_cache(maxsize=1 << 14)
def run_codes(model: Sequence, block: Block, recompute: Recompute, size: int) -> frozenset[int]:
    """Codes of the runs of `size` layers that a block may hold. Its first layers recompute."""
    taken = {"none": 0, "all": size}.get(recompute.mode, min(recompute.each, size))
    held, again = model.prefix
    return frozenset(
        held[start + size] - held[start] + again[start + taken] - again[start]
        for start in _starts(model, block, size)
    )


def _starts(model: Sequence, block: Block, size: int) -> range:
    """Where a run of this size may start."""
    if block.width and size > block.width:
        return range(0)
    if block.place == "first":
        return range(1)
    if block.place == "last":
        return range(model.layers - size, model.layers - size + 1)
    settled, period = model.repeats
    starts = max(0, settled - block.first) + period  # later ones repeat these
    if block.width:
        starts = min(starts, block.width - size + 1)
    return range(block.first, block.first + starts)
