"""Memory of every pipeline stage of a configuration over a step, and what lies outside tensors.

The bridge between a configuration (job, degrees, layout) and the cost core's account of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.cost import fields as f
from planner.cost.memory import (
    COMMUNICATORS,
    communicator_sizes,
    set_aside_bytes,
    tensor_buffer_bytes,
)
from planner.job.job import Job
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel, LayoutInputs
from planner.predict.cost_tables import job_pieces
from planner.predict.memory.timeline import MemoryTimeline, stage_timeline
from planner.predict.mixture import kernel_inputs
from planner.predict.plan import Degrees
from planner.predict.stage import Stage

UPDATE_BLOCKS = "blocks of the update"


@dataclass(frozen=True, slots=True)
class StageAccount(MemoryTimeline):
    """Bytes on one GPU of a pipeline stage: those of its phases, and beside them.

    `outside`: bytes outside live tensors by name: allocator rounding and fragmentation, blocks that
    it keeps for the update, CUDA context, one entry a communicator, buffers of overlapped
    exchanges.
    `allocated_bytes`: live tensors at the peak (`torch.cuda.max_memory_allocated`); `total_bytes`:
    what the driver reports for the process (nvidia-smi).
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
        """What the allocator holds: `torch.cuda.max_memory_reserved`."""
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
    """What the core costs the memory of a configuration from on a machine, as `planner.evaluate`
    does."""
    model = CostModel(configuration.job, compiled=False)
    priced = model.price_shapes(configuration.columns)
    return kernel_inputs(model.machines[machine], priced, 0, configuration, machine)[0]


def _account(configuration: Configuration, stage: Stage, kinds: tuple[str, ...]) -> StageAccount:
    """Account of one pipeline stage; `kinds`: names of its kinds of layers."""
    timeline = stage_timeline(stage, kinds)
    row = stage.memory()
    each = stage.inputs.framework.communicator_bytes
    communicating = {f"communicator {name}": each for name in communicators(configuration.degrees)}
    buffers = tensor_buffers(stage)
    if buffers:
        communicating["overlapped tensor-parallel exchanges"] = buffers
    return StageAccount(
        timeline.first_step,
        timeline.later_steps,
        stage.index,
        configuration.layout.stage_layers[stage.index],
        row.in_flight,
        _gaps(stage, row) | {"context": row.terms[f.STAGE_CONTEXT]} | communicating,
        float(row.allocated),
        float(row.peak),
        stage,
    )


def _gaps(stage: Stage, row: Any) -> dict[str, float]:
    """What the allocator keeps beside live tensors; while the update runs, its blocks are live."""
    gaps = float(row.terms[f.STAGE_FRAGMENTATION])
    aside = set_aside_bytes(stage.key, stage.grid, stage.inputs.framework)
    if not aside or row.phase == 1.0:
        return {"fragmentation": gaps}
    return {"fragmentation": gaps - aside, UPDATE_BLOCKS: float(aside)}


def tensor_buffers(stage: Stage) -> float:
    """Bytes of the buffers of overlapped tensor-parallel exchanges."""
    key, told = stage.key, stage.inputs
    return float(tensor_buffer_bytes(key.tp, key.cp, key.mbs, told.job, told.framework))


def kind_names(job: Job) -> tuple[str, ...]:
    """Names of the kinds of layers, as the op table has them."""
    return tuple(piece.name for piece in job_pieces(job)[: len(job.model.kinds)])


def communicators(degrees: Degrees) -> tuple[str, ...]:
    """Communicators that a rank is a member of and that hold buffers, by name."""
    sizes = communicator_sizes(degrees.tp, degrees.cp, degrees.dp, degrees.pp, degrees.ep)
    return tuple(name for name, size in zip(COMMUNICATORS, sizes, strict=True) if size > 1)
