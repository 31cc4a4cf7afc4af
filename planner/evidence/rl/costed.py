"""What a measured run of reinforcement learning costs, as far as it was run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from planner.predict.rl.plan import Phase, PhaseName


@dataclass(frozen=True, slots=True)
class Costed:
    """What a run costs: phases in order on both sides, seconds of a step (None where only a part of
    one was run), whether it fits and the bytes of one GPU."""

    phases: tuple[Phase, ...]
    step_s: float | None
    fits: bool
    usable_bytes: float
    binding: tuple[Phase, ...] = ()

    def seconds(self, names: Iterable[PhaseName]) -> float:
        """Seconds of phases together; those of the hand-over once, which both sides list."""
        wanted = set(names)
        by_name: dict[tuple[str, int], Phase] = {}
        for at, phase in enumerate(self.phases):
            key = (phase.name, 0 if phase.name == "transfer" else at)
            by_name.setdefault(key, phase)
        return math.fsum(one.seconds for one in by_name.values() if one.name in wanted)
