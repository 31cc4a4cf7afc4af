"""Which stages of a shape have the memory for a holding, for all stages at once."""

from __future__ import annotations

import numpy as np

from constraints.layout import LayoutContext
from planner.search.block_holdings import Holding


class StagesThatHold:
    """The memory rule of `constraints.memory` for layouts without further modes or offload."""

    def __init__(self, ctx: LayoutContext) -> None:
        self.kinds, self.limit = ctx.kind_count, 0
        self._everywhere = (1 << ctx.pp) - 1
        self._known: dict[Holding, int] = {}
        self._unlimited = ctx.memory is None
        if ctx.memory is None:
            return
        self.limit, moments = ctx.memory.limit, ctx.memory.moments
        # [moment, stage] of what is pinned; [moment, stage, number of a holding] of one more each.
        self._pinned = np.array([own.stage for own in moments], dtype=np.int64)
        per_layer = np.array([own.layer for own in moments], dtype=np.int64)
        freed = np.array([own.freed for own in moments], dtype=np.int64)
        self._each = np.concatenate([per_layer, -freed], axis=2)
        # [moment, number of a holding] of what the largest present counts of.
        self._working = np.array(
            [(*own.working, *own.working_recomputed) for own in moments], dtype=np.int64
        )
        self._gather = np.array([own.gather for own in moments], dtype=np.int64)

    def stages(self, held: Holding) -> int:
        """A bit for each stage, the first the lowest: 1 where the memory holds it."""
        if self._unlimited:
            return self._everywhere
        if held not in self._known:
            self._known[held] = self._stages(held)
        return self._known[held]

    def _stages(self, held: Holding) -> int:
        counts = np.array(held, dtype=np.int64)
        there = counts > 0
        working = np.where(there, self._working, 0).max(axis=1)
        gather = np.where(there[: self.kinds], self._gather, 0).max(axis=1)
        sizes = self._pinned + self._each @ counts + (working + gather)[:, None]
        fits = (sizes <= self.limit).all(axis=0)
        return sum(1 << stage for stage in np.flatnonzero(fits).tolist())
