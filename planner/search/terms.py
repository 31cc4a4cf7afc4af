"""Costs of one shape as linear terms: floats from the compiled core, integers for the solver.

Seconds round down and bytes round up. The solver's objective is therefore a lower bound of the
kernel's step time, and a layout that it calls fitting really fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor
from typing import Any

import numpy as np

from constraints.layout_context import LayoutContext, Recomputation
from constraints.memory_numbers import MemoryNumbers, PhaseNumbers, undominated
from constraints.rule import Placement
from planner.cost import bounds, linear, schedule
from planner.cost import fields as f
from planner.cost._jit import rows
from planner.cost.layout import place_vocab_layers
from planner.cost.linear_memory import TWO_LAYERS, MemoryPhases
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import copies_table
from planner.job.job import Job
from planner.job.recompute import RecomputeMode
from planner.predict.configuration import job_placement, plain_context
from planner.predict.cost_model import CostedShapes, CostModel

# Rounding each layer up costs at most 130 layers · 16 KiB = 2 MiB per stage.
MEMORY_UNIT_BYTES = 16 * 1024
# The time unit is this share of a layer's forward and backward pass. Finer units cost the solver
# seconds on some models, because large coefficients slow its linear relaxation.
TIME_RESOLUTION = 1 / 2_000


@dataclass(frozen=True)
class ShapeTerms:
    """Linear terms of one shape; columns TERM_*, SCALAR_* of `planner.cost.linear`.

    `layers[stage, kind]`: a layer on a stage. `stage[stage]`: sum of embedding, head and MTP (and a
    copy of the vocabulary table). `memory`: bytes in every phase. `scalars`: least traffic and
    longest transfers of any machine. `rooms[stage]`: bytes of live tensors that a limit on reserved
    memory leaves on each stage, as a line (constant, slope), relative to the largest memory.
    `bubble_share`: see `planner.cost.schedule`; at most that of any layout. `ordered`: each kind of
    layers forms one run.
    """

    pp: int
    vpp: int
    grad_acc: int
    layers: Array
    stage: Array
    memory: MemoryPhases
    scalars: Array
    rooms: Array
    framework: FrameworkInputs
    bubble_share: float
    placement: Placement = "straight"
    ordered: bool = False

    @cached_property
    def unlimited(self) -> MemoryNumbers:
        """Stage memory in units of MEMORY_UNIT_BYTES without a limit: use is rounded up, savings
        down."""
        memory = self.memory
        done = np.array([memory.done, memory.done_again])
        least = done.min(axis=(0, 2))
        stage, layer = _up(memory.stage + least[:, None]), _up(memory.layer)
        more = [_up(table - least[:, None]) for table in done]
        working, gather = map(_up, (memory.working, memory.gather))
        freed = _tuples(np.floor(memory.freed / MEMORY_UNIT_BYTES))
        again = _up(memory.working_again)
        phases = (
            PhaseNumbers(
                stage=stage[row],
                layer=layer[row],
                freed=freed[row],
                working=working[row],
                working_recomputed=again[row],
                gather=gather[row],
                done=tuple(table[row] for table in more),
                ordered=self.ordered,
                two_layers=row in TWO_LAYERS,
            )
            for row in range(len(memory.stage))
            if memory.stage[row].any() or memory.layer[row].any()
        )
        return MemoryNumbers(
            unit_bytes=MEMORY_UNIT_BYTES,
            limit=0,
            phases=undominated(phases),
        )

    @property
    def layer(self) -> Array:
        """[kind, TERM_*] of a layer, the maximum over stages."""
        return np.asarray(self.layers.max(axis=0))

    @property
    def head_layers(self) -> int:
        """Number of layers that take as long as the pieces pinned to the head's stage, rounded."""
        passes = list(linear.BOTH_PASSES)
        layer_s = float(self.layer[:, passes].sum(axis=1).mean())
        return round(float(self.stage[-1, passes].sum()) / layer_s) if layer_s > 0.0 else 0

    @property
    def boundary_passes(self) -> float:
        """`planner.cost.schedule.boundary_passes`."""
        return schedule.boundary_passes(self.framework.schedule, self.pp, self.vpp, self.grad_acc)

    @property
    def boundary_hidden(self) -> tuple[float, float]:
        """Shares of the gradient reduction and of the weight gather that can be hidden."""
        share = schedule.boundary_hideable(self.framework.schedule, self.vpp)
        framework = self.framework
        return share * framework.hide_gradient_reduction, share * framework.hide_parameter_gather


# Selects the bound that is valid for the number of layers that may recompute.
RECOMPUTE_CODES: dict[Recomputation, int] = {
    "none": bounds.RECOMPUTE_NONE,
    "all": bounds.RECOMPUTE_ALL,
    "shared": bounds.RECOMPUTE_SOME,
    "free": bounds.RECOMPUTE_SOME,
}


def shape_terms(
    cost_model: CostModel, costed: CostedShapes, row: int, mode: Recomputation
) -> ShapeTerms:
    """The linear terms of one costed shape. `mode`: how many layers may recompute."""
    shape, place = costed.shapes[row], cost_model.place(costed, row)
    job, framework = cost_model.job_inputs, cost_model.framework_inputs
    pp, code = int(shape[f.SHAPE["pp"]]), RECOMPUTE_CODES[mode]
    alone = [machine_terms(cost_model, costed, row, at) for at in range(len(cost_model.machines))]
    least = np.min([one.terms for one in alone], axis=0)
    total_s = bounds.model_seconds(least, cost_model.totals, code, job)
    share = bounds.shape_bubble_share(
        rows(shape, f.SHAPE_ROW), least, cost_model.totals, total_s, code, framework, len(alone)
    )
    # With two copies of the model, each handles its part of the micro-batches.
    scalars = np.min([one.scalars for one in alone], axis=0)
    longest = linear.SCALAR_FIXED_S
    scalars[longest] = max(one.scalars[longest] for one in alone)
    for one in alone:
        one.terms[:, list(linear.PASS_TERMS)] *= schedule.microbatch_share(framework.schedule)
    pinned = [
        pinned_terms(one.terms, pp, job, framework.schedule, costed.piece_costs(row, at))
        for at, one in enumerate(alone)
    ]
    return ShapeTerms(
        pp=pp,
        vpp=int(shape[f.SHAPE["vpp"]]),
        grad_acc=int(shape[f.SHAPE["grad_acc"]]),
        layers=np.array([alone[at].terms[: job.kinds] for at in place]),
        stage=np.array([pinned[at][stage] for stage, at in enumerate(place)]),
        memory=merged_phases([one.memory for one in alone], place),
        scalars=scalars,
        rooms=np.array([alone[at].room for at in place]),
        framework=framework,
        bubble_share=share,
        placement=job_placement(cost_model.job) if pp > 1 else "straight",
        ordered=job.kinds_in_order > 0.0,
    )


@dataclass(frozen=True)
class MachineTerms:
    """Terms of a shape with all stages on one machine. `room`: see `ShapeTerms.rooms`."""

    terms: Array
    scalars: Array
    memory: MemoryPhases
    room: tuple[float, float]


def machine_terms(
    cost_model: CostModel, costed: CostedShapes, row: int, machine: int
) -> MachineTerms:
    """The terms of a shape on one machine."""
    shape, on = costed.shapes[row], cost_model.machines[machine]
    key = costed.keys[int(shape[f.SHAPE["key"]])]
    of_shape = shape, key, costed.piece_costs(row, machine), cost_model.job_inputs
    terms, scalars = cost_model.layout_terms(*of_shape, machine)
    gaps = 1.0 + on.framework_inputs.fragmentation
    fixed = float(scalars[linear.SCALAR_FIXED_BYTES])
    scale = cost_model.memory_scales[machine]
    room = (scale * fixed, scale * gaps)
    return MachineTerms(terms, scalars, on.memory_phases(*of_shape), room)


def merged_phases(alone: Sequence[MemoryPhases], place: Sequence[int]) -> MemoryPhases:
    """Phase memory of stages that are each on their own machine. What is counted once takes its
    largest value."""
    if len(alone) == 1:
        return alone[0]
    by_stage = [
        np.stack([table[at][:, stage] for stage, at in enumerate(place)], axis=1)
        for table in zip(*(one[:3] for one in alone), strict=True)
    ]
    once = [np.max(table, axis=0) for table in zip(*(one[3:] for one in alone), strict=True)]
    return MemoryPhases(*by_stage, *once)


def pinned_terms(terms: Array, pp: int, job: JobInputs, code: int, costs: Array) -> Array:
    """[stage, TERM_*] of the pieces that are pinned to stages. `code`: SCHEDULE_*."""
    counts = np.zeros((job.pieces, pp))
    place_vocab_layers(counts, pp, job, code)
    vocab_layers = slice(job.kinds, job.pieces)
    stage: Array = counts[vocab_layers].T @ terms[vocab_layers]
    if schedule.copies_of_model(code, float(pp)) > 1.0:
        return stage + stage[::-1]
    # The copy contains the vocabulary table without learned positions.
    first, embedding = terms[job.kinds], costs[job.kinds]
    of_class = f.PIECE_PARAMETERS + int(embedding[f.PIECE_TABLE_CLASS])
    share = embedding[f.PIECE_TABLE] / embedding[of_class]
    tied = list(linear.PARAMETER_TERMS)
    for index in range(pp):
        if copies_table(index, counts, job):
            stage[index, tied] += share * first[tied]
    return stage


def memory_numbers(terms: ShapeTerms, limit_bytes: float) -> MemoryNumbers:
    """Stage memory under a limit on the largest memory, rounded down. Missing room of a stage on a
    smaller GPU counts as used there."""
    (fixed, slopes), memory = terms.rooms.T, terms.unlimited
    # [stage] live bytes that the limit on reserved memory leaves.
    live = (limit_bytes - fixed) / slopes
    limit = floor(live.max() / MEMORY_UNIT_BYTES)
    less = np.ceil((live.max() - live) / MEMORY_UNIT_BYTES).astype(np.int64).tolist()
    if not any(less):
        return replace(memory, limit=limit)
    phases = (
        replace(one, stage=tuple(size + more for size, more in zip(one.stage, less, strict=True)))
        for one in memory.phases
    )
    return replace(memory, limit=limit, phases=tuple(phases))


def _up(sizes: Array) -> list[Any]:
    return _tuples(np.ceil(sizes / MEMORY_UNIT_BYTES))


def _tuples(whole: Array) -> list[Any]:
    """Rows of a table as tuples of ints; a third axis becomes nested tuples."""
    found = whole.astype(np.int64).tolist()
    return [tuple(map(tuple, row)) if whole.ndim > 2 else tuple(row) for row in found]


def layout_context(
    terms: ShapeTerms, job: Job, mode: RecomputeMode, limit_bytes: float
) -> LayoutContext:
    """The inputs of layout rules for one shape under a memory limit, with only its own recompute
    mode and without standalone multi-token prediction, which the solver never tries."""
    return replace(
        plain_context(job, terms.pp, terms.vpp, mode),
        memory=memory_numbers(terms, limit_bytes),
        modes=(mode.name,) if mode.mask else (),
        head_layers=terms.head_layers,
        mtp_standalone=False,
    )


def within(ctx: LayoutContext, terms: ShapeTerms, limit_bytes: float) -> LayoutContext:
    """The context under another memory limit."""
    return ctx if ctx.memory is None else replace(ctx, memory=memory_numbers(terms, limit_bytes))
