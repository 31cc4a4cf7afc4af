"""The rule over layouts that every stage's peak stays within the memory limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

    from constraints.layout import Expression, LayoutContext, LayoutVariables


@dataclass(frozen=True)
class MomentNumbers:
    """Memory of every stage at one moment of a step, in whole units.

    Index s is a stage, k a kind of layer: stage[s] + layers·layer[s][k] - recomputed·freed[s][k]
    + working set + gather buffer. The working set is the largest among the kinds present, and
    among those that recompute; the gather buffer belongs to the largest kind present.
    """

    stage: tuple[int, ...]
    layer: tuple[tuple[int, ...], ...]
    freed: tuple[tuple[int, ...], ...]
    working: tuple[int, ...]
    working_recomputed: tuple[int, ...]
    gather: tuple[int, ...]

    def size(self, stage: int, layers: list[int], recomputed: list[int]) -> int:
        """Units that one stage with these layers of each kind holds."""
        total = self.stage[stage]
        working = gather = 0
        for kind, (count, again) in enumerate(zip(layers, recomputed, strict=True)):
            total += count * self.layer[stage][kind] - again * self.freed[stage][kind]
            if count:
                working = max(working, self.working[kind])
                gather = max(gather, self.gather[kind])
            if again:
                working = max(working, self.working_recomputed[kind])
        return total + working + gather

    def never_exceeds(self, other: MomentNumbers) -> bool:
        """Whether no layout holds more at this moment than at the other, term by term."""
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

    def peak(self, stage: int, layers: list[int], recomputed: list[int]) -> int:
        """Peak of one stage that holds these layers of each kind, in units."""
        return max(own.size(stage, layers, recomputed) for own in self.moments)


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
            layers = variables.stage(variables.kind_layers, stage, ctx)
            again = variables.stage(variables.kind_recomputed, stage, ctx)
            for own in memory.moments:
                kept = sum(
                    n * size for n, size in zip(layers, own.layer[stage], strict=True)
                ) - sum(n * size for n, size in zip(again, own.freed[stage], strict=True))
                working, gather = _buffers(model, layers, again, ctx, own)
                constraint = model.add(own.stage[stage] + kept + working + gather <= memory.limit)
                variables.hold(model, constraint, self.stage_name(stage))

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Every moment of every stage within the limit."""
        memory = ctx.memory
        if memory is None:
            return True
        layers, again = ctx.counts(layout), ctx.recomputed_counts(layout)
        return all(
            memory.peak(stage, layers[stage], again[stage]) <= memory.limit
            for stage in range(ctx.pp)
        )


def _buffers(
    model: CpModel,
    layers: list[Expression],
    again: list[Expression],
    ctx: LayoutContext,
    memory: MomentNumbers,
) -> tuple[Expression, Expression]:
    """(working set, gather buffer) of a stage: each the largest among what the stage holds."""
    working = [*zip(layers, memory.working, strict=True)]
    if ctx.recomputation != "none":
        working += zip(again, memory.working_recomputed, strict=True)
    gather = [*zip(layers, memory.gather, strict=True)]
    return (
        _largest_present(model, working, ctx),
        _largest_present(model, gather, ctx),
    )


def _largest_present(
    model: CpModel, candidates: list[tuple[Expression, int]], ctx: LayoutContext
) -> Expression:
    """A variable that is at least 0 and the size of each candidate with a positive count.

    Limits are upper bounds, so the solver keeps it at exactly that maximum.
    """
    larger = [(count, size) for count, size in candidates if size > 0]
    if not larger:
        return 0
    largest = model.new_int_var(0, max(size for _, size in larger), "")
    for count, size in larger:
        present = model.new_bool_var("")
        model.add(count <= ctx.layers * present)
        model.add(largest >= size * present)
    return largest
