"""Lower bounds on the time and memory of each side's choices, and which pairs may still matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.predict.rl.plan import EngineLayout
from planner.search.rl.sides import Alone, Group
from planner.search.rl.trainers import TrainerSide

Floats = NDArray[np.float64]
# Rounding tolerance for equal figures.
SAME = 1e-9


@dataclass
class Bounds:
    """Lower bounds for each choice of one side: `seconds` of a step, and `shares` of its GPUs'
    memory. `exact`: the choice was costed in full."""

    seconds: Floats
    shares: Floats
    exact: NDArray[np.bool_]

    def within(self, share: float) -> Floats:
        """Seconds of the choices that need no more than a share of memory; infinite for the
        others."""
        return np.where(self.shares <= share + SAME, self.seconds, inf)


@dataclass
class Options:
    """The two sides of one group. `leaves`: the trainer's tensors go to the host while engines
    sample; otherwise they stay on its GPUs.

    `beside`: least share of a GPU that each row occupies while engines sample. `most`: share of its
    memory that a trainer may fill to fit surely enough. `known`: (row, engine) pairs that were
    costed together.
    """

    group: Group
    leaves: bool
    side: TrainerSide
    alone: Alone
    layouts: tuple[EngineLayout, ...]
    trainers: Bounds
    engines: Bounds
    beside: Floats
    most: float
    known: set[tuple[int, int]] = field(default_factory=set)
    # (share, open choices at it), valid until something is costed.
    _open: tuple[float, tuple[float, str, int]] | None = None

    def changed(self) -> None:
        """Record that a choice was costed."""
        self._open = None

    def trainer_s(self, share: float) -> Floats:
        """Seconds of each trainer within a memory share, alone."""
        return self.trainers.within(min(share, self.most))

    def fits_together(self, row: int, engine: int, share: float) -> bool:
        """Whether a trainer may leave room for an engine within a memory share, by the lower bounds
        of both."""
        return bool(self.engines.shares[engine] + self.beside[row] <= share + SAME)

    def bounds(self, share: float) -> Floats:
        """For each trainer, a lower bound on the step with any engine for which it leaves room."""
        order = np.argsort(self.engines.shares)
        fastest = np.minimum.accumulate(self.engines.seconds[order])
        room = share - self.beside + SAME
        at = np.searchsorted(self.engines.shares[order], room, side="right") - 1
        engine_s = np.where(at >= 0, fastest[np.maximum(at, 0)], inf)
        return self.joint(self.trainer_s(share), engine_s)

    def engine_bounds(self, share: float) -> Floats:
        """For each engine, a lower bound on the step with any trainer that leaves it room."""
        order, beside = self._by_beside
        fastest = np.minimum.accumulate(self.trainer_s(share)[order])
        room = share - self.engines.shares + SAME
        at = np.searchsorted(beside, room, side="right") - 1
        trainer_s = np.where(at >= 0, fastest[np.maximum(at, 0)], inf)
        return self.joint(trainer_s, self.engines.seconds)

    @cached_property
    def _by_beside(self) -> tuple[NDArray[np.int64], Floats]:
        """Trainers ordered by their memory beside engines, and those amounts. The initial bounds
        are used; full costs are never lower."""
        order = np.argsort(self.beside, kind="stable")
        return order, self.beside[order].copy()

    def engines_beside(self, row: int, share: float) -> Floats:
        """Seconds of each engine for which a trainer leaves room; infinite for the others."""
        room = share - float(self.beside[row])
        return self.engines.within(room)

    def joint(self, trainer: Floats | float, engine: Floats | float) -> Floats:
        """A lower bound on the step's seconds from the seconds of its two sides."""
        both = np.maximum(trainer, engine) if self.group.together else np.add(trainer, engine)
        return np.asarray(both, dtype=np.float64)

    def bound(self, row: int, engine: int) -> float:
        """A lower bound on the step's seconds with a trainer and an engine."""
        return float(self.joint(self.trainers.seconds[row], self.engines.seconds[engine]))

    def next_open(self, share: float) -> tuple[float, str, int]:
        """(bound, side, index) of the choice to cost next: one that no bound of an exact pair
        excludes. Infinite if everything that matters is exact."""
        if self._open is None or self._open[0] != share:
            self._open = share, self._next_open(share)
        return self._open[1]

    def _next_open(self, share: float) -> tuple[float, str, int]:
        bounds = self.bounds(share)
        first = int(np.argmin(bounds))
        beside = self.engines_beside(first, share)
        best = int(np.argmin(beside))
        if bounds[first] == inf:
            return inf, "", 0
        if not self.engines.exact[best]:
            return float(bounds[first]), "engine", best
        if not self.trainers.exact[first]:
            return float(bounds[first]), "trainer", first
        bounds[self.trainers.exact] = inf
        others = self.engine_bounds(share)
        others[self.engines.exact] = inf
        row, engine = int(np.argmin(bounds)), int(np.argmin(others))
        if bounds[row] <= others[engine]:
            return float(bounds[row]), "trainer", row
        return float(others[engine]), "engine", engine
