"""Memory of one stage over a training step, phase by phase, with what holds it.

A view of the cost core: every phase's terms are the core's (`planner.cost.phases`), which walks
backward from the loss to the embedding; the peak is wherever their sum is largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from planner.cost.memory import set_aside_bytes
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import (
    EMBEDDING,
    FORWARD,
    FORWARD_END,
    HEAD,
    LOSS,
    MTP,
    OPTIMIZER,
    KeptCopies,
    Pass,
    in_update,
    total_bytes,
)
from planner.cost.phases import kept_copies, on_their_way
from planner.cost.terms import LIVE_TERMS, PhaseTerms
from planner.predict.stage import OneLayer, Stage

_PLACES = {LOSS: "loss", HEAD: "head", MTP: "mtp", EMBEDDING: "embedding"}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a phase keeps for backward: micro-batches of each part of the stage, the layers of which
    it keeps one more or less, and offloaded bytes that are on the GPU all the same."""

    copies: KeptCopies
    layers: tuple[OneLayer, ...]
    on_their_way: float


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Live bytes of a stage at the worst point of a phase, by term.

    `at`: the piece at whose backward that is; `in_flight`: micro-batches that keep something.
    """

    name: str
    total_bytes: float
    terms: Mapping[str, float]
    at: str = ""
    in_flight: float = 0.0
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Phases of the first step (no optimizer state until its end) and of every later one."""

    first_step: tuple[PhaseMemory, ...]
    later_steps: tuple[PhaseMemory, ...]

    @property
    def peak(self) -> PhaseMemory:
        """The phase that decides whether the job fits."""
        return max((*self.first_step, *self.later_steps), key=lambda phase: phase.total_bytes)

    def phase(self, name: str) -> PhaseMemory:
        """A phase of the later steps by name; KeyError if the step has none such."""
        return {phase.name: phase for phase in self.later_steps}[name]


def stage_timeline(stage: Stage, kinds: tuple[str, ...] = ()) -> MemoryTimeline:
    """The step of one stage; `kinds`: names of its kinds of layers."""
    *phases, optimizer = _step(stage, kinds)
    return MemoryTimeline(
        (*(_without_state(stage, phase) for phase in phases), optimizer), (*phases, optimizer)
    )


def _without_state(stage: Stage, phase: PhaseMemory) -> PhaseMemory:
    """A phase of the first step."""
    state = float(stage.rest.resting.optimizer_state)
    terms = {**phase.terms, "optimizer state": 0.0}
    return replace(phase, total_bytes=phase.total_bytes - state, terms=terms)


def _step(stage: Stage, kinds: tuple[str, ...]) -> Iterator[PhaseMemory]:
    """Phases of one step in order; forward and backward for the first and for later micro-batches,
    which find gradients of the earlier ones."""
    first, later, late = passes(stage.held, stage.grid.grad_acc, stage.inputs.framework)
    resting, moving = stage.rest
    settled = PhaseTerms(resting, moving._replace(optimizer_temporaries=0.0))
    begun = settled.moving._replace(gradients=moving.gradients * first.before)
    yield _phase("start", PhaseTerms(resting, begun))
    yield from _warm_up(stage, first)
    yield from _pass(stage, first, "", kinds)
    if later.counts:
        yield from _pass(stage, later, " (accumulating)", kinds)
    if late.counts:
        yield from _backward(stage, late, " (weight gradients deferred)", kinds)
    yield _phase("gradient reduction", settled)
    aside = set_aside_bytes(stage.key, stage.grid, stage.inputs.framework)
    yield _phase("optimizer", in_update(stage.rest, aside))


def _warm_up(stage: Stage, one_pass: Pass) -> Iterator[PhaseMemory]:
    """Forward of each micro-batch while those in flight grow, the last one left out."""
    count = ceil(one_pass.in_flight)
    for index in range(1, count):
        flight = float(index)
        early = one_pass._replace(
            in_flight=flight, head=min(one_pass.head, flight), deferred=0.0, head_deferred=0.0
        )
        yield phase_memory(stage, FORWARD, early, f"forward {index}/{count}")


def _pass(
    stage: Stage, one_pass: Pass, label: str, kinds: tuple[str, ...]
) -> Iterator[PhaseMemory]:
    """Forward and backward of one micro-batch."""
    count = ceil(one_pass.in_flight)
    name = f"forward {count}/{count}" if count > 1 else "forward"
    loss = "loss" if stage.holds.head else ""
    yield replace(phase_memory(stage, FORWARD, one_pass, name + label), at=loss)
    yield phase_memory(stage, FORWARD_END, one_pass, "forward end" + label)
    yield from _backward(stage, one_pass, label, kinds)


def _backward(
    stage: Stage, one_pass: Pass, label: str, kinds: tuple[str, ...]
) -> Iterator[PhaseMemory]:
    """The backward of a pass at its worst phase."""
    there = [
        phase
        for phase in range(FORWARD + 1, OPTIMIZER)
        if exists(phase, stage.holds, one_pass, stage.grid)
    ]
    worst = max(there, key=lambda phase: total_bytes(stage.terms(phase, one_pass)))
    yield phase_memory(stage, worst, one_pass, "backward" + label, kinds)


def phase_memory(
    stage: Stage, phase: int, one_pass: Pass, name: str, kinds: tuple[str, ...] = ()
) -> PhaseMemory:
    """One phase of a pass; the core's number for it (`planner.cost.phase_records`)."""
    terms, layers = stage.phase_detail(phase, one_pass)
    framework = stage.inputs.framework
    kept = Kept(
        kept_copies(phase, one_pass, stage.grid, framework),
        layers,
        on_their_way(phase, stage.holds, one_pass),
    )
    place = _PLACES.get(phase, kinds[layers[0].kind % len(kinds)] if layers and kinds else "")
    shown = _phase(name, terms)
    total = float(total_bytes(stage.terms(phase, one_pass)))
    return replace(shown, total_bytes=total, at=place, in_flight=one_pass.in_flight, kept=kept)


def _phase(name: str, terms: PhaseTerms) -> PhaseMemory:
    sizes = dict(zip(LIVE_TERMS, map(float, chain(*terms)), strict=True))
    return PhaseMemory(name, float(total_bytes(terms)), sizes)
