"""The memory of pipeline stages in each phase of a step, as whole numbers that rules and solver
read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseNumbers:
    """Memory of every stage at one moment of a step, in whole units.

    Index s is a stage, k a kind of layer, o another recompute mode of a mix: stage[s] +
    layers·layer[s][k] - recomputed·freed[s][k] - others·freed_others[o][s][k] + working set +
    gather buffer. The working set is the largest among the kinds present, and among those that
    recompute, in each mode; the gather buffer belongs to the largest kind present.
    """

    stage: tuple[int, ...]
    layer: tuple[tuple[int, ...], ...]
    freed: tuple[tuple[int, ...], ...]
    working: tuple[int, ...]
    working_recomputed: tuple[int, ...]
    gather: tuple[int, ...]
    freed_others: tuple[tuple[tuple[int, ...], ...], ...] = ()
    working_others: tuple[tuple[int, ...], ...] = ()

    def size(
        self,
        stage: int,
        layers: list[int],
        recomputed: list[int],
        others: Sequence[Sequence[int]] = (),
    ) -> int:
        """Units that one stage with these layers of each kind holds; `others`[mode][kind]."""
        total = self.stage[stage]
        working = gather = 0
        for kind, (count, again) in enumerate(zip(layers, recomputed, strict=True)):
            total += count * self.layer[stage][kind] - again * self.freed[stage][kind]
            if count:
                working = max(working, self.working[kind])
                gather = max(gather, self.gather[kind])
            if again:
                working = max(working, self.working_recomputed[kind])
        for mode, counts in enumerate(others):
            for kind, count in enumerate(counts):
                total -= count * self.freed_others[mode][stage][kind]
                if count:
                    working = max(working, self.working_others[mode][kind])
        return total + working + gather

    def never_exceeds(self, other: PhaseNumbers) -> bool:
        """Whether no layout holds more at this moment than at the other, term by term."""
        if self.freed_others or other.freed_others:
            return False
        rows = zip(self.layer, self.freed, other.layer, other.freed, strict=True)
        per_layer = all(
            layer <= theirs and layer - freed <= theirs - saved
            for layers, freed_here, others, freed_there in rows
            for layer, freed, theirs, saved in zip(
                layers, freed_here, others, freed_there, strict=True
            )
        )
        maxima = zip(
            (*self.stage, *self.working, *self.working_recomputed, *self.gather),
            (*other.stage, *other.working, *other.working_recomputed, *other.gather),
            strict=True,
        )
        return per_layer and all(item <= theirs for item, theirs in maxima)


def undominated(phases: Iterable[PhaseNumbers]) -> tuple[PhaseNumbers, ...]:
    """The moments that some layout may have as its peak, in order."""
    kept: list[PhaseNumbers] = []
    for phase in phases:
        if any(phase.never_exceeds(other) for other in kept):
            continue
        kept = [other for other in kept if not other.never_exceeds(phase)] + [phase]
    return tuple(kept)


@dataclass(frozen=True)
class MemoryNumbers:
    """Memory of one shape in whole units, rounded so that what fits here fits in truth.

    At each moment of a step every stage must stay within `limit`.
    """

    unit_bytes: int
    limit: int
    phases: tuple[PhaseNumbers, ...]

    def peak(
        self,
        stage: int,
        layers: list[int],
        recomputed: list[int],
        others: Sequence[Sequence[int]] = (),
    ) -> int:
        """Peak of one stage that holds these layers of each kind, in units."""
        return max(phase.size(stage, layers, recomputed, others) for phase in self.phases)
