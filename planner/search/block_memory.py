"""Which stages of a shape have the memory for which holdings."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from constraints.layout import LayoutContext
from planner.cost.tables import Array
from planner.search.block_holdings import Integers


class StagesThatHold:
    """The memory rule of `constraints.memory` for layouts without further modes or offload."""

    def __init__(self, ctx: LayoutContext) -> None:
        self.pp, self.kinds, self.memory = ctx.pp, ctx.kind_count, ctx.memory
        if ctx.memory is None:
            return
        phases = ctx.memory.phases
        # [moment, stage] of what is pinned; [moment, stage, number of a holding] of one more each.
        self._pinned = np.array([phase.stage for phase in phases], dtype=np.int64)
        per_layer = np.array([phase.layer for phase in phases], dtype=np.int64)
        freed = np.array([phase.freed[0] for phase in phases], dtype=np.int64)
        self._each = np.concatenate([per_layer, -freed], axis=2)
        # [moment, number of a holding] of what the largest present counts of.
        self._working = np.array(
            [(*phase.working, *phase.working_recomputed[0]) for phase in phases], dtype=np.int64
        )
        self._gather = np.array([phase.gather for phase in phases], dtype=np.int64)
        none = ((0,) * self.kinds,) * 2
        self._done = np.array([(phase.done or none)[:2] for phase in phases], dtype=np.int64)
        self._two_layers = np.array([phase.two_layers for phase in phases])
        self._ordered = any(phase.ordered for phase in phases)

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """([moment, stage] of what is pinned, [moment, stage, number of a holding] of one more of
        each) as shares of the limit, without what counts once however many there are; at moments
        that every stage has."""
        if self.memory is None:
            return np.zeros((0, self.pp)), np.zeros((0, self.pp, 2 * self.kinds))
        always = ~self._two_layers
        return self._pinned[always] / self.memory.limit, self._each[always] / self.memory.limit

    def fits(self, stages: list[int], held: Integers) -> NDArray[np.bool_]:
        """[stage, holding]: whether the memory of each of some stages holds it."""
        if self.memory is None:
            return np.ones((len(stages), len(held)), dtype=np.bool_)
        there = held > 0
        working = np.where(there, self._working[:, None], 0).max(axis=2)
        gather = np.where(there[:, : self.kinds], self._gather[:, None], 0).max(axis=2)
        sizes = self._each[:, stages] @ held.T + self._pinned[:, stages, None]
        plain = held[:, : self.kinds] > held[:, self.kinds :]
        if self._ordered:
            # Of the last kind present alone.
            later = np.cumsum(there[:, self.kinds - 1 :: -1], axis=1)[:, ::-1] > 1
            plain, there = plain & ~later, there & ~np.tile(later, 2)
        left = np.concatenate([plain, there[:, self.kinds :] & ~plain], axis=1)
        done = np.where(left, self._done.reshape(len(self._done), 1, -1), 0).max(axis=2)
        sizes += (working + gather + done)[:, None]
        spared = self._two_layers[:, None] & (held[:, : self.kinds].sum(axis=1) < 2)
        return np.asarray((spared[:, None] | (sizes <= self.memory.limit)).all(axis=0))
