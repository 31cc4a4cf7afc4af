"""The rule over layouts that every stage's peak stays within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from constraints.rule import Layout

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

    from constraints.layout import Expression, LayoutContext, LayoutVariables


@dataclass(frozen=True)
class MemoryNumbers:
    """Memory of one shape in whole units, rounded so that what fits here fits in truth.

    Index s is a stage, k a kind of layer. Peak of backward: stage[s] + layers·layer[s][k] -
    recomputed·freed[s][k] + working set + gather buffer. Peak of the optimizer step:
    optimizer_stage[s] + layers·optimizer_layer[k]. Each must not exceed `limit`. The working
    set is the largest among ends[s] (embedding, head, logits) and the kinds present, more where
    they recompute; the gather buffer belongs to the largest kind present.
    """

    unit_bytes: int
    limit: int
    stage: tuple[int, ...]
    layer: tuple[tuple[int, ...], ...]
    freed: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    working: tuple[int, ...]
    working_recomputed: tuple[int, ...]
    gather: tuple[int, ...]
    optimizer_stage: tuple[int, ...]
    optimizer_layer: tuple[int, ...]

    def peak(self, stage: int, layers: list[int], recomputed: list[int]) -> int:
        """Peak of one stage that holds these layers of each kind, in units."""
        kinds = range(len(layers))
        working = self.ends[stage]
        gather = 0
        backward = self.stage[stage]
        optimizer = self.optimizer_stage[stage]
        for kind in kinds:
            count, again = layers[kind], recomputed[kind]
            backward += count * self.layer[stage][kind] - again * self.freed[stage][kind]
            optimizer += count * self.optimizer_layer[kind]
            if count:
                working = max(working, self.working[kind])
                gather = max(gather, self.gather[kind])
            if again:
                working = max(working, self.working_recomputed[kind])
        return max(backward + working + gather, optimizer)


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
        """Both phases of every stage within the limit."""
        memory = ctx.memory
        if memory is None:
            return
        for stage in range(ctx.pp):
            layers = variables.stage(variables.kind_layers, stage, ctx)
            again = variables.stage(variables.kind_recomputed, stage, ctx)
            kept = sum(n * size for n, size in zip(layers, memory.layer[stage], strict=True)) - sum(
                n * size for n, size in zip(again, memory.freed[stage], strict=True)
            )
            working, gather = _buffers(model, layers, again, stage, ctx, memory)
            backward = model.add(memory.stage[stage] + kept + working + gather <= memory.limit)
            owned = sum(n * size for n, size in zip(layers, memory.optimizer_layer, strict=True))
            optimizer = model.add(memory.optimizer_stage[stage] + owned <= memory.limit)
            for constraint in (backward, optimizer):
                variables.hold(model, constraint, self.stage_name(stage))

    def check(self, layout: Layout, ctx: LayoutContext) -> bool:
        """Both phases of every stage within the limit."""
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
    stage: int,
    ctx: LayoutContext,
    memory: MemoryNumbers,
) -> tuple[Expression, Expression]:
    """(working set, gather buffer) of a stage: each the largest among what the stage holds."""
    working = [*zip(layers, memory.working, strict=True)]
    if ctx.recomputation != "none":
        working += zip(again, memory.working_recomputed, strict=True)
    gather = [*zip(layers, memory.gather, strict=True)]
    return (
        _largest_present(model, working, memory.ends[stage], ctx),
        _largest_present(model, gather, 0, ctx),
    )


def _largest_present(
    model: CpModel, candidates: list[tuple[Expression, int]], floor: int, ctx: LayoutContext
) -> Expression:
    """A variable that is at least `floor` and the size of each candidate with a positive count.

    Limits are upper bounds, so the solver keeps it at exactly that maximum.
    """
    larger = [(count, size) for count, size in candidates if size > floor]
    if not larger:
        return floor
    largest = model.new_int_var(floor, max(size for _, size in larger), "")
    for count, size in larger:
        present = model.new_bool_var("")
        model.add(count <= ctx.layers * present)
        model.add(largest >= size * present)
    return largest
