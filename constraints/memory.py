"""The layout rule that the peak of every stage stays within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.layout_context import LayoutContext
from constraints.layout_variables import LayoutVariables
from constraints.memory_numbers import PhaseNumbers
from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, CpModel, IntVar

    from constraints.layout_variables import Expression


@dataclass(frozen=True)
class StageMemoryLimit:
    """Every stage stays within the limit, with its own number of micro-batches in flight."""

    name: str = "stage-memory"
    sentence: str = "the peak memory of every stage stays within the limit"
    source: str = (
        "Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (micro-batches in flight); "
        "Rajbhandari et al. 2020, arXiv 1910.02054, section 5"
    )

    def stage_name(self, stage: int) -> str:
        """Name that switches off the limit of one stage."""
        return f"{self.name}[{stage}]"

    def add(self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext) -> None:
        """Constrain every phase of every stage."""
        memory = ctx.memory
        if memory is None:
            return
        for stage in range(ctx.pp):
            held = _Held(model, variables, ctx, stage)
            for phase in memory.phases:
                size = held.size(phase) - held.spared(phase, memory.limit)
                constraint = model.add(size <= memory.limit)
                variables.hold(model, constraint, self.stage_name(stage))

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Whether every phase of every stage stays within the limit."""
        memory = ctx.memory
        if memory is None:
            return True
        layers, again = ctx.counts(layout), ctx.recomputed_counts(layout)
        return all(
            memory.peak(stage, layers[stage], again[stage]) <= memory.limit
            for stage in range(ctx.pp)
        )


class _Held:
    """Memory of one stage as expressions of the solver's variables."""

    def __init__(
        self, model: CpModel, variables: LayoutVariables, ctx: LayoutContext, stage: int
    ) -> None:
        self.model, self.variables, self.ctx, self.index = model, variables, ctx, stage
        self.layers = variables.stage(variables.kind_layers, stage, ctx)
        recomputed = variables.kind_recomputed
        self.again = variables.stage(recomputed, stage, ctx) if recomputed else []
        self.surely: set[tuple[str, int]] = set()

    def size(self, phase: PhaseNumbers) -> Expression:
        """A lower bound on the units in use during a phase."""
        stage = self.index
        kept = _weighted(self.layers, phase.layer[stage])
        kept -= _weighted(self.again, phase.freed[stage])
        working = [
            ("layers", self.layers, phase.working),
            ("again", self.again, phase.working_recomputed),
        ]
        gather = [("layers", self.layers, phase.gather)]
        done = self._done(phase) if any(map(any, phase.done)) else 0
        return phase.stage[stage] + kept + self._largest(working) + self._largest(gather) + done

    def spared(self, phase: PhaseNumbers, limit: int) -> Expression:
        """Units by which a stage with at most one layer may exceed the limit in a phase that it
        does not have."""
        fewest = sum(map(self.ctx.least_layers, self.ctx.stage_blocks(self.index)))
        if fewest > 1 or not phase.two_layers:
            return 0
        kinds, none = range(self.ctx.kind_count), [0] * self.ctx.kind_count
        most = max(
            phase.size(self.index, layers, again)
            for layers in [none, *([int(kind == one) for kind in kinds] for one in kinds)]
            for again in ([none, layers] if self.again else [none])
        )
        if most <= limit:
            return 0
        return (most - limit) * (1 - self._present("second", 0, sum(self.layers) - 1))

    def _done(self, phase: PhaseNumbers) -> IntVar:
        """A variable that is at least what remains after the first layer of backward."""
        largest = self.model.new_int_var(0, max(map(max, phase.done)), "")
        for kind, count in enumerate(self.layers):
            again = self.again[kind] if self.again else 0
            plain = self._surely_present("plain", kind, count - again)
            later = range(kind + 1, len(self.layers)) if phase.ordered else ()
            hidden = sum(self._surely_present("layers", k, self.layers[k]) for k in later)
            self.model.add(largest >= phase.done[0][kind] * (plain - hidden))
            if self.again:
                there = self._present("again", kind, again) - plain
                self.model.add(largest >= phase.done[1][kind] * (there - hidden))
        return largest

    def _surely_present(self, what: str, kind: int, count: Expression) -> BoolVarT:
        """A literal that implies that the stage has such layers, so that it cannot be set without
        them."""
        present = self._present(what, kind, count)
        if (what, kind) not in self.surely:
            self.surely.add((what, kind))
            self.model.add(count >= present)
        return present

    def _largest(
        self, candidates: list[tuple[str, list[Expression], tuple[int, ...]]]
    ) -> Expression:
        """A variable that is at least 0 and at least each candidate with a positive count.

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
