"""Memory of a configuration: every stage's account over a step and layer by layer in backward, the
bytes outside tensors, the limit, and the uncertainty of the prediction.

The cost core computes every phase (`planner.cost.phases`), walking backward from the loss to the
embedding; the peak is the heaviest phase. The core runs without a compiler here; peaks equal those
of `planner.evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any

from planner.cost import fields as f
from planner.cost import memory as core
from planner.cost import phase_records as records
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import FORWARD, LAYER, LAYER_AGAIN, LAYER_LAST, Pass, total_bytes
from planner.cost.phases import kept_copies, on_their_way
from planner.cost.terms import LIVE_TERMS, PhaseTerms
from planner.job.job import Job
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel, LayoutInputs
from planner.predict.cost_tables import job_pieces
from planner.predict.mixture import kernel_inputs
from planner.predict.plan import Degrees, Interval
from planner.predict.stage import OneLayer, Stage
from planner.predict.uncertainty.intervals import fit_probability, peak_interval

_PLACES = {
    records.LOSS: "loss",
    records.HEAD: "head",
    records.MTP: "mtp",
    records.EMBEDDING: "embedding",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that a phase keeps for backward. `copies`: for how many micro-batches each part of
    the stage is kept; `layers`: single layers that differ from that; `on_their_way`: bytes of
    offloaded tensors that are on the GPU while they are copied."""

    copies: records.KeptCopies
    layers: tuple[OneLayer, ...]
    on_their_way: float


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Live bytes of a stage at the worst point of a phase: the total, and by term.

    `at`: the kind of layer, or `loss`, `head`, `mtp` or `embedding`, that the GPU works on at that
    point; empty if none. `in_flight`: number of micro-batches of which anything is kept. `kept`:
    the tensors kept for backward; None in phases without any, such as the optimizer's.
    """

    name: str
    total_bytes: float
    terms: Mapping[str, float]
    at: str = ""
    in_flight: float = 0.0
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Phases of the first step, which has no optimizer state until its end, and phases of every
    later step."""

    first_step: tuple[PhaseMemory, ...]
    later_steps: tuple[PhaseMemory, ...]

    @property
    def peak(self) -> PhaseMemory:
        """The phase with the most bytes, in the first step or in a later one. It decides whether
        the job fits."""
        return max((*self.first_step, *self.later_steps), key=lambda phase: phase.total_bytes)

    def phase(self, name: str) -> PhaseMemory:
        """A phase of the later steps by name; KeyError if there is none."""
        return {phase.name: phase for phase in self.later_steps}[name]


def stage_timeline(stage: Stage, kinds: tuple[str, ...] = ()) -> MemoryTimeline:
    """The phases of one stage in the first step and in later steps. `kinds`: names of the kinds of
    layers, by the core's index."""
    *phases, optimizer = _step(stage, kinds)
    return MemoryTimeline(
        (*(_without_state(stage, phase) for phase in phases), optimizer), (*phases, optimizer)
    )


def _without_state(stage: Stage, phase: PhaseMemory) -> PhaseMemory:
    """The memory of a phase in the first step, before optimizer states exist."""
    state = float(stage.rest.resting.optimizer_state)
    terms = {**phase.terms, "optimizer state": 0.0}
    return replace(phase, total_bytes=phase.total_bytes - state, terms=terms)


def _step(stage: Stage, kinds: tuple[str, ...]) -> Iterator[PhaseMemory]:
    """Phases of one step in order. Later micro-batches have forward and backward phases of their
    own, because gradients of earlier ones exist by then."""
    framework = stage.inputs.framework
    first, later, late = passes(stage.held, stage.grid.grad_acc, framework)
    resting, moving = stage.rest
    settled = PhaseTerms(resting, moving._replace(optimizer_temporaries=0.0))
    begun = settled.moving._replace(gradients=moving.gradients * first.before)
    yield _phase("start", PhaseTerms(resting, begun))
    # Phases while micro-batches in flight accumulate; the last micro-batch is in `_pass`.
    count = ceil(first.in_flight)
    for index in range(1, count):
        head = min(first.head, float(index))
        early = first._replace(in_flight=float(index), head=head, deferred=0.0, head_deferred=0.0)
        yield phase_memory(stage, FORWARD, early, f"forward {index}/{count}")
    yield from _pass(stage, first, "", kinds)
    if later.counts:
        yield from _pass(stage, later, " (accumulating)", kinds)
    if late.counts:
        yield _backward(stage, late, " (weight gradients deferred)", kinds)
    yield _phase("gradient reduction", settled)
    aside = core.set_aside_bytes(stage.key, stage.grid, framework)
    yield _phase("optimizer", records.in_update(stage.rest, aside))


def _pass(
    stage: Stage, one_pass: Pass, label: str, kinds: tuple[str, ...]
) -> Iterator[PhaseMemory]:
    """Phases of one micro-batch: its forward, the end of the forward, and the worst point of its
    backward. `label` is appended to their names."""
    count = ceil(one_pass.in_flight)
    name = f"forward {count}/{count}" if count > 1 else "forward"
    loss = "loss" if stage.holds.head else ""
    yield replace(phase_memory(stage, FORWARD, one_pass, name + label), at=loss)
    yield phase_memory(stage, records.FORWARD_END, one_pass, "forward end" + label)
    yield _backward(stage, one_pass, label, kinds)


def _backward(stage: Stage, one_pass: Pass, label: str, kinds: tuple[str, ...]) -> PhaseMemory:
    """The backward of a pass at its worst phase."""
    grid, framework = stage.grid, stage.inputs.framework
    backward_phases = range(FORWARD + 1, records.OPTIMIZER)
    existing = [
        phase for phase in backward_phases if exists(phase, stage.holds, one_pass, grid, framework)
    ]
    worst = max(existing, key=lambda phase: total_bytes(stage.terms(phase, one_pass)))
    return phase_memory(stage, worst, one_pass, "backward" + label, kinds)


def phase_memory(
    stage: Stage, phase: int, one_pass: Pass, name: str, kinds: tuple[str, ...] = ()
) -> PhaseMemory:
    """One phase of a pass; `phase`: the core's number for it (`planner.cost.phase_records`)."""
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


UPDATE_BLOCKS = "blocks of the update"


@dataclass(frozen=True, slots=True)
class StageAccount(MemoryTimeline):
    """Bytes on one GPU of a pipeline stage: its phases, and the bytes outside them.

    `outside`: bytes outside live tensors by name: allocator rounding and fragmentation, blocks kept
    for the update, CUDA context, one entry per communicator, buffers of overlapped exchanges,
    optimizer states in unified memory. `allocated_bytes`: live tensors at the peak
    (`torch.cuda.max_memory_allocated`); `total_bytes`: memory of the process as the driver reports
    it (nvidia-smi).
    """

    stage: int
    layers: int
    in_flight: float
    outside: Mapping[str, float]
    allocated_bytes: float
    total_bytes: float
    core: Stage = field(compare=False, repr=False)

    @property
    def reserved_bytes(self) -> float:
        """The allocator's memory: `torch.cuda.max_memory_reserved`."""
        kept = self.outside.get(UPDATE_BLOCKS, 0.0)
        return self.allocated_bytes + self.outside["fragmentation"] + kept


def stage_accounts(configuration: Configuration) -> tuple[StageAccount, ...]:
    """Accounts of all pipeline stages of a legal configuration, first to last."""
    machines, kinds = configuration.machines, kind_names(configuration.job)
    inputs = {machine: layout_inputs(configuration, machine) for machine in set(machines)}
    return tuple(
        _account(configuration, Stage(inputs[machine], stage), kinds)
        for stage, machine in enumerate(machines)
    )


def layout_inputs(configuration: Configuration, machine: int = 0) -> LayoutInputs:
    """Inputs from which the core costs the memory of a configuration on a machine."""
    model = CostModel(configuration.job, compiled=False)
    priced = model.price_shapes(configuration.columns)
    return kernel_inputs(model.machines[machine], priced, 0, configuration, machine)[0]


def _account(configuration: Configuration, stage: Stage, kinds: tuple[str, ...]) -> StageAccount:
    """Account of one pipeline stage; `kinds`: names of its kinds of layers."""
    timeline = stage_timeline(stage, kinds)
    row = stage.memory()
    degrees, framework = configuration.degrees, stage.inputs.framework
    each = framework.communicator_bytes
    outside = {f"communicator {name}": each for name in communicators(degrees)}
    further = {
        "communicators of all ranks": core.world_bytes(degrees.gpus, framework),
        "all-to-all connections": core.exchange_buffer_bytes(stage.key, framework),
        "overlapped tensor-parallel exchanges": tensor_buffers(stage),
        "paged optimizer state": core.paged_state_bytes(stage.key, stage.grid, framework),
    }
    outside |= {name: float(size) for name, size in further.items() if size}
    return StageAccount(
        timeline.first_step,
        timeline.later_steps,
        stage.index,
        configuration.layout.stage_layers[stage.index],
        row.in_flight,
        _gaps(stage, row) | {"context": row.terms[f.STAGE_CONTEXT]} | outside,
        float(row.allocated),
        float(row.peak),
        stage,
    )


def _gaps(stage: Stage, row: Any) -> dict[str, float]:
    """Bytes, by name, that the allocator holds beyond the live tensors of the peak:
    `fragmentation`, and the blocks that it keeps for the optimizer's update. The latter are not
    listed if the framework keeps none, or if the peak is the update itself, when these blocks are
    live tensors."""
    gaps = float(row.terms[f.STAGE_FRAGMENTATION])
    aside = core.set_aside_bytes(stage.key, stage.grid, stage.inputs.framework)
    if not aside or row.phase == 1.0:
        return {"fragmentation": gaps}
    return {"fragmentation": gaps - aside, UPDATE_BLOCKS: float(aside)}


def tensor_buffers(stage: Stage) -> float:
    """Bytes of the buffers of overlapped tensor-parallel exchanges."""
    key, inputs = stage.key, stage.inputs
    return float(core.tensor_buffer_bytes(key.tp, key.cp, key.mbs, inputs.job, inputs.framework))


def kind_names(job: Job) -> tuple[str, ...]:
    """Names of the model's kinds of layers, in the order of the op table."""
    return tuple(piece.name for piece in job_pieces(job)[: len(job.model.piece_kinds)])


def communicators(degrees: Degrees) -> tuple[str, ...]:
    """Names of the communicators for which each rank holds buffers: those with more than one rank
    at these degrees."""
    sizes = core.communicator_sizes(degrees.tp, degrees.cp, degrees.dp, degrees.pp, degrees.ep)
    return tuple(name for name, size in zip(core.COMMUNICATORS, sizes, strict=True) if size > 1)


@dataclass(frozen=True)
class Footprint:
    """Accounts of all pipeline stages of a configuration; bytes on one GPU."""

    configuration: Configuration
    stages: tuple[StageAccount, ...]

    @cached_property
    def heaviest(self) -> StageAccount:
        """The stage that uses the largest share of the limit of its machine. It decides whether the
        job fits."""
        limits = [machine.hbm_limit_bytes for machine in self.configuration.job.machines]
        scales = [max(limits) / limits[machine] for machine in self.configuration.machines]
        return max(self.stages, key=lambda stage: stage.total_bytes * scales[stage.stage])

    @cached_property
    def job(self) -> Job:
        """The job on the machine of the heaviest stage."""
        machine = self.configuration.machines[self.heaviest.stage]
        return self.configuration.job.machines[machine]

    @property
    def total_bytes(self) -> float:
        """Memory of the process on the heaviest stage, as the driver reports it."""
        return self.heaviest.total_bytes

    @property
    def limit_bytes(self) -> float:
        """Bytes that the job may use on a GPU of the heaviest stage: usable HBM minus the
        reserve."""
        return self.job.hbm_limit_bytes

    @property
    def usable_bytes(self) -> float:
        """Bytes of HBM that a process can use on a GPU of the heaviest stage."""
        return self.job.cluster.gpu.hbm_usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the predicted memory of the heaviest stage stays within the limit."""
        return self.total_bytes <= self.limit_bytes

    @property
    def fit_probability(self) -> float:
        """Probability that the true total stays within the limit."""
        return fit_probability(self.job, self.total_bytes, self.limit_bytes)

    @property
    def interval(self) -> Interval:
        """80 % interval of the true total, bytes."""
        return peak_interval(self.job, self.total_bytes)


def footprint_of(configuration: Configuration) -> Footprint:
    """The memory of a legal configuration."""
    return Footprint(configuration, stage_accounts(configuration))


def worst_expert_load(job: Job, degrees: Degrees) -> float:
    """The largest possible load of the busiest expert rank, divided by the mean load: the case in
    which a dropless router sends that rank as many tokens as it can.

    A rank holds E/ep experts, so it gets at most min(k, E/ep) of the k copies of each token of its
    ep group; the mean is k/ep (E = experts, k = top_k). 1 without experts or without ep.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    local = moe.experts / degrees.ep
    return min(float(moe.top_k), local) * degrees.ep / moe.top_k


def dropless_worst_case(configuration: Configuration) -> Footprint | None:
    """The footprint if one expert rank gets the largest possible load (`worst_expert_load`). None
    if experts are not split over ranks, or if the job already assumes a load at least as large."""
    job = configuration.job
    worst = worst_expert_load(job, configuration.degrees)
    if worst <= job.expert_imbalance:
        return None
    return footprint_of(replace(configuration, job=replace(job, expert_imbalance=worst)))


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Live bytes of a stage while one of its layers runs backward. `layer`: its number in the
    stage, from 0; `done`: number of layers whose backward is finished by then."""

    layer: int
    done: int
    total_bytes: float


def backward_by_layer(account: StageAccount) -> tuple[LayerMemory, ...]:
    """Memory at each layer of a stage, in the order of backward: last layer first. Bytes are
    computed for the first and the last layer of the heavier of the step's passes, and linear in
    between."""
    stage, count = account.core, account.layers
    step_passes = passes(stage.held, stage.grid.grad_acc, stage.inputs.framework)
    lines = [_ends(stage, one_pass) for one_pass in step_passes if one_pass.counts]
    first, last = max(lines, key=max)
    steps = max(1, count - 1)
    return tuple(
        LayerMemory(count - 1 - done, done, first + (last - first) * done / steps)
        for done in range(count)
    )


def _ends(stage: Stage, one_pass: Pass) -> tuple[float, float]:
    """Live bytes while the stage's first layer runs backward, and while its last layer does; both 0
    if the stage has no layers. (The core leaves out the last layer once gradients exist, because it
    is lighter then.)"""
    firsts = [
        float(total_bytes(stage.terms(phase, one_pass)))
        for phase in (LAYER, LAYER_AGAIN)
        if exists(phase, stage.holds, one_pass, stage.grid, stage.inputs.framework)
    ]
    first = max(firsts, default=0.0)
    return first, float(total_bytes(stage.terms(LAYER_LAST, one_pass))) if firsts else first
