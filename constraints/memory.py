"""The rule over layouts that every stage's peak stays within the memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, CpModel

    from constraints.layout_context import LayoutContext
    from constraints.layout_variables import Expression, LayoutVariables


@dataclass(frozen=True)
class MomentNumbers:
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

    def never_exceeds(self, other: MomentNumbers) -> bool:
        """Whether no layout holds more at this moment than at the other, term by term."""
        if self.freed_others or other.freed_others:
            return False
        rows = zip(self.layer, self.freed, other.layer, other.freed, strict=True)
        per_layer = all(
            own <= theirs and own - freed <= theirs - saved
            for layers, freed_here, others, freed_there in rows
            for own, freed, theirs, saved in zip(
                layers, freed_here, others, freed_there, strict=True
            )
        )
        maxima = zip(
            (*self.stage, *self.working, *self.working_recomputed, *self.gather),
            (*other.stage, *other.working, *other.working_recomputed, *other.gather),
            strict=True,
        )
        return per_layer and all(own <= theirs for own, theirs in maxima)


def undominated(moments: Iterable[MomentNumbers]) -> tuple[MomentNumbers, ...]:
    """The moments that some layout may have as its peak, in order."""
    kept: list[MomentNumbers] = []
    for own in moments:
        if any(own.never_exceeds(other) for other in kept):
            continue
        kept = [other for other in kept if not other.never_exceeds(own)] + [own]
    return tuple(kept)


@dataclass(frozen=True)
class MemoryNumbers:
    """Memory of one shape in whole units, rounded so that what fits here fits in truth.

    At each moment of a step every stage must stay within `limit`.
    """

    unit_bytes: int
    limit: int
    moments: tuple[MomentNumbers, ...]

    def peak(
        self,
        stage: int,
        layers: list[int],
        recomputed: list[int],
        others: Sequence[Sequence[int]] = (),
    ) -> int:
        """Peak of one stage that holds these layers of each kind, in units."""
        return max(own.size(stage, layers, recomputed, others) for own in self.moments)


@dataclass(frozen=True)
class StageMemory:
    """Every stage within the limit, each with its own micro-batches in flight."""

    name: str = "stage-memory"
    sentence: str = "the peak memory of every stage stays within the limit"
    source: str = (
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (micro-batches in flight); "
        "Rajbhandari et al. 2020, arXiv 1910.02054, section 5"
    )

    def stage_name(self, stage: int) -> str:
        """Name under which one stage's limit can be switched off."""
        return f"{self.name}[{stage}]"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Every moment of every stage within the limit."""
        memory = ctx.memory
        if memory is None:
            return
        for stage in range(ctx.pp):
            held = _Held(model, variables, ctx, stage)
            for own in memory.moments:
                constraint = model.add(held.size(own) <= memory.limit)
                variables.hold(model, constraint, self.stage_name(stage))

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Every moment of every stage within the limit."""
        memory = ctx.memory
        if memory is None:
            return True
        layers, again = ctx.counts(layout), ctx.recomputed_counts(layout)
        others = ctx.other_counts(layout)
        return all(
            memory.peak(stage, layers[stage], again[stage], [own[stage] for own in others])
            <= memory.limit
            for stage in range(ctx.pp)
        )


class _Held:
    """What one stage holds, as expressions of the solver's variables."""

    def __init__(
        self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext, stage: int
    ) -> None:
        self.model, self.variables, self.ctx, self.index = model, variables, ctx, stage
        self.layers = variables.stage(variables.kind_layers, stage, ctx)
        again = variables.stage(variables.kind_recomputed, stage, ctx)
        self.again = [] if ctx.recomputation == "none" else again
        self.others = [variables.stage(own, stage, ctx) for own in variables.kind_others]

    def size(self, moment: MomentNumbers) -> Expression:
        """Units at a moment, at least."""
        stage = self.index
        kept = _weighted(self.layers, moment.layer[stage])
        kept -= _weighted(self.again, moment.freed[stage])
        for counts, freed in zip(self.others, moment.freed_others, strict=True):
            kept -= _weighted(counts, freed[stage])
        working = [("layers", self.layers, moment.working)]
        working.append(("again", self.again, moment.working_recomputed))
        for mode, own in enumerate(zip(self.others, moment.working_others, strict=True)):
            working.append((f"other{mode}", *own))
        gather = [("layers", self.layers, moment.gather)]
        return moment.stage[stage] + kept + self._largest(working) + self._largest(gather)

    def _largest(
        self, candidates: list[tuple[str, list[Expression], tuple[int, ...]]]
    ) -> Expression:
        """A variable that is at least 0 and the size of each candidate with a positive count.

        Limits are upper bounds, so the solver keeps it at exactly that maximum.
        """
        sized = [
            (self._present(what, kind, counts[kind]), sizes[kind])
            for what, counts, sizes in candidates
            for kind in range(len(counts))
            if sizes[kind] > 0
        ]
        if not sized:
            return 0
        largest = self.model.new_int_var(0, max(size for _, size in sized), "")
        for present, size in sized:
            self.model.add(largest >= size * present)
        return largest

    def _present(self, what: str, kind: int, count: Expression) -> BoolVarT:
        most = self.ctx.layers
        return self.variables.present(self.model, what, self.index, kind, count, most)


def _weighted(counts: list[Expression], sizes: tuple[int, ...]) -> Expression:
    return sum(n * size for n, size in zip(counts, sizes, strict=False))
