"""Which layers a pipeline stage may hold: sums over its blocks of runs of the model's layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import inf

from constraints.layout import LayoutContext

# Layers of each kind, then those of each kind that recompute.
Holding = tuple[int, ...]


class Holdings:
    """What stages may hold; `each`: layers of every block that recompute ("shared" only);
    `apart`: multi-token prediction stands in the block before the last."""

    def __init__(self, ctx: LayoutContext, each: int, apart: bool = False) -> None:
        self.ctx, self.each, self.apart = ctx, each, apart
        self._runs: dict[tuple[int, int], frozenset[Holding]] = {}

    def within(self, stage: int, per_layer: Sequence[float], most_s: float) -> dict[Holding, float]:
        """What a stage may hold, and perhaps more, with its seconds: `most_s` at most.

        `per_layer`: seconds of one more of each number of a holding, none negative.
        """
        found: dict[Holding, float] = {}
        blocks = self.ctx.stage_blocks(stage)
        least_s = min(per_layer[: self.ctx.kind_count])
        room = most_s / least_s if least_s > 0.0 else inf
        for sizes in self.chunk_sizes(blocks, room):
            sums = {(0,) * (2 * self.ctx.kind_count): 0.0}
            for block, choices in zip(blocks, sizes, strict=True):
                fitting = (size for size in choices if size <= room)
                runs = {own for size in fitting for own in self.runs(block, size)}
                sums = _added(sums, runs, per_layer, most_s)
            found |= sums
        return found

    def chunk_sizes(self, blocks: Sequence[int], room: float) -> Iterator[list[range]]:
        """Sizes that the chunks of a stage may have together, or more (rule chunks-balanced).

        `room`: layers of the stage.
        """
        ctx = self.ctx
        least = {block: ctx.least_layers(block, self.apart) for block in blocks}
        if len(blocks) == 1:
            yield [range(least[blocks[0]], int(min(room, float(ctx.layers))) + 1)]
            return
        most = min(room, float(ctx.layers))
        for base in range(int(most) // (len(blocks) - 1) + 1):
            yield [
                range(max(least[block], base - fewer), base + 2 + (fewer > 0))
                for block, fewer in ((own, self._fewer(own)) for own in blocks)
            ]

    def _fewer(self, block: int) -> int:
        """How many layers less than any other chunk of its stage a block may have; 0: the others
        may have one less than it, as it than they."""
        if block == self._last or (self.apart and block == self._last - 1):
            return self.ctx.fewer_layers(block, self.apart)
        return 0

    @cached_property
    def _last(self) -> int:
        return self.ctx.blocks - 1

    def runs(self, block: int, size: int) -> frozenset[Holding]:
        """Kinds of the layers that a block of this size may hold, and of those that recompute."""
        place = min(block, 1) + (block == self._last)
        if (place, size) not in self._runs:
            self._runs[place, size] = frozenset(self._every_run(block, size))
        return self._runs[place, size]

    def _every_run(self, block: int, size: int) -> Iterator[Holding]:
        ctx = self.ctx
        starts = range(ctx.layers - size + 1)
        if block == 0:
            starts = starts[:1]
        elif block == self._last:
            starts = starts[-1:]
        taken = {"none": 0, "all": size}.get(ctx.recomputation, min(self.each, size))
        for start in starts:
            yield tuple(
                row[start + count] - row[start] for count in (size, taken) for row in ctx.prefix
            )


def _added(
    sums: dict[Holding, float], runs: Iterable[Holding], per_layer: Sequence[float], most_s: float
) -> dict[Holding, float]:
    """One block more on a stage, within its time."""
    priced = [
        (own, sum(count * seconds for count, seconds in zip(own, per_layer, strict=True)))
        for own in runs
    ]
    return {
        tuple(map(int.__add__, held, own)): seconds + own_s
        for held, seconds in sums.items()
        for own, own_s in priced
        if seconds + own_s <= most_s
    }
