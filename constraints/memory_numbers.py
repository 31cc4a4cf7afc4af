"""Memory of the pipeline stages in each phase of a step, as integers for rules and solver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from operator import le, mul, sub


@dataclass(frozen=True)
class PhaseNumbers:
    """Memory of every stage at one phase of a step, in whole units.

    Index s is a stage, k a kind of layer: stage[s] + layers·layer[s][k] - recomputed·freed[s][k] +
    working set + gather buffer + what the first layer in backward leaves. The working set is the
    largest among the kinds present, and among those that recompute; the gather buffer belongs to
    the largest kind present. What the first layer in backward leaves (`done`: for plain layers,
    then for those that recompute) is the largest among the kinds present, or that of the last kind
    present if kinds are `ordered`. A kind whose layers recompute counts there only if none of them
    is plain. With `two_layers`, stages with fewer than two layers do not have the phase.
    """

    stage: tuple[int, ...]
    layer: tuple[tuple[int, ...], ...]
    freed: tuple[tuple[int, ...], ...]
    working: tuple[int, ...]
    working_recomputed: tuple[int, ...]
    gather: tuple[int, ...]
    done: tuple[tuple[int, ...], ...] = ()
    ordered: bool = False
    two_layers: bool = False

    def size(self, stage: int, layers: Sequence[int], recomputed: Sequence[int]) -> int:
        """Units in use on one stage with `layers[kind]` layers, `recomputed[kind]` of which
        recompute."""
        kept: int = sum(map(mul, layers, self.layer[stage]))
        kept -= sum(map(mul, recomputed, self.freed[stage]))
        working = (*compress(self.working, layers), *compress(self.working_recomputed, recomputed))
        gather = compress(self.gather, layers)
        largest = max((0, *working)) + max((0, *gather))
        return self.stage[stage] + kept + largest + self.left_done(layers, recomputed)

    def left_done(self, layers: Sequence[int], recomputed: Sequence[int]) -> int:
        """Units that remain after the first layer of backward."""
        plain = list(map(sub, layers, recomputed))
        again = [0 if kept else taken for kept, taken in zip(plain, recomputed, strict=True)]
        last = max((kind for kind, count in enumerate(layers) if count), default=0)
        return max(
            (
                size
                for sizes, held in zip(self.done, (plain, again), strict=False)
                for kind, (size, count) in enumerate(zip(sizes, held, strict=False))
                if count and (kind == last or not self.ordered)
            ),
            default=0,
        )

    def never_exceeds(self, other: PhaseNumbers) -> bool:
        """Whether no layout uses more memory in this phase than in `other`, compared term by term.
        Each layout that has this phase has the other too."""
        return self.two_layers >= other.two_layers and all(map(le, self._terms, other._terms))

    @cached_property
    def _terms(self) -> tuple[int, ...]:
        """Every term of the memory, and what is left of a layer of each kind if it recomputes."""
        left = (map(sub, *pair) for pair in zip(self.layer, self.freed, strict=True))
        return tuple(
            chain(
                self.stage, self.working, self.gather, *self.layer, *left,
                self.working_recomputed, *self.done,
            )
        )  # fmt: skip


def undominated(phases: Iterable[PhaseNumbers]) -> tuple[PhaseNumbers, ...]:
    """The phases that can be the peak of some layout, in order."""
    kept: list[PhaseNumbers] = []
    for phase in phases:
        if any(phase.never_exceeds(other) for other in kept):
            continue
        kept = [other for other in kept if not other.never_exceeds(phase)] + [phase]
    return tuple(kept)


@dataclass(frozen=True)
class MemoryNumbers:
    """Memory of one shape in integer units, rounded so that a layout that fits here really fits.

    In each phase of a step every stage must stay within `limit`.
    """

    unit_bytes: int
    limit: int
    phases: tuple[PhaseNumbers, ...]

    def peak(self, stage: int, layers: Sequence[int], recomputed: Sequence[int]) -> int:
        """Peak of one stage in units; counts as in `PhaseNumbers.size`."""
        return max(
            phase.size(stage, layers, recomputed)
            for phase in self.phases
            if sum(layers) > 1 or not phase.two_layers
        )
