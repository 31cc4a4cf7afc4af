"""Memory of a stage as affine functions of its layer counts, for the layout solver.

The coefficients come from `planner.cost.phases`, which costs a finished layout. It is evaluated on
a stage without layers and with one more layer of each kind. Maxima over kinds stay maxima.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import is_sharded
from planner.cost.layout import mirror, place_vocab_layers
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import (
    GROUP_ROW,
    LAYER_LAST,
    LAYER_SECOND,
    OPTIMIZER,
    PASSES,
    PHASES,
    LayerMaxima,
    Pass,
    largest_of,
    weighed_bytes,
)
from planner.cost.phases import at_rest, phase_terms
from planner.cost.schedule import copies_of_model, held_microbatches
from planner.cost.stage import fill_kept, fill_stage, layer_maxima
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.terms import PhaseTerms

# Phases of every pass, and the optimizer's once. For stages of two layers or more, LAYER_LAST takes
# its place in a pass: the layer before is being reduced.
ROWS = PASSES * PHASES + 1
# Phases that only stages of two layers or more have.
TWO_LAYERS = [i * PHASES + phase for i in range(PASSES) for phase in (LAYER_SECOND, OPTIMIZER)]


class MemoryPhases(NamedTuple):
    """Bytes of each phase (first index) of each stage (second index), see `ROWS`.

    stage + layers·layer[kind] - recomputed·freed[kind] + the largest `working` among the kinds
    present and `working_again` among those that recompute + the largest `gather` + the largest
    `done` among the kinds with layers that do not recompute and `done_again` among the kinds whose
    layers all do. The bytes of a phase that a stage does not have are zero.
    """

    stage: Array
    layer: Array
    freed: Array
    working: Array
    working_again: Array
    gather: Array
    done: Array
    done_again: Array


@jit
def no_maxima() -> LayerMaxima:
    """The maxima of a stage without layers."""
    return LayerMaxima(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@jit
def phase_bytes(
    phase: int, rest: PhaseTerms, holds: Row, most: LayerMaxima, one_pass: Pass, key: Row,
    grid: Row, job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Bytes of a stage in a phase, weighed as limits on reserved memory need (`weighed_bytes`).
    `rest`: `at_rest` for its contents `holds`."""
    terms = phase_terms(phase, rest, holds, most, one_pass, key, grid, job, framework)
    return weighed_bytes(terms, rest, framework)


@jit
def vocab_counts(pp: int, job: JobInputs, schedule: int, mtp_standalone: float) -> Array:
    """counts[piece, stage] for a pipeline without layers."""
    counts = np.zeros((job.pieces, pp))
    place_vocab_layers(counts, pp, job, schedule, mtp_standalone)
    if copies_of_model(schedule, float(pp)) > 1.0:
        mirror(counts, pp)
    return counts


@jit
def stage_layers(
    stage: int, costs: Rows, counts: Array, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs,
) -> Rows:  # fmt: skip
    """The contents of a stage with few layers, in 2 + 2·kinds variants: [0] only its ends
    (embedding, head, MTP); [1] its ends and two layers of the first kind; then for each kind, its
    ends and one layer; then for each kind, its ends and one layer that recomputes.

    `counts`: for a pipeline without layers; changed during the call and then restored.
    """
    out, again = np.zeros(2 + 2 * job.kinds, GROUP_ROW), np.zeros(counts.shape)
    position = float(stage)
    fill_stage(stage, position, counts, again, costs, key, grid, job, framework, out[0])
    counts[0, stage] = 2.0
    fill_stage(stage, position, counts, again, costs, key, grid, job, framework, out[1])
    counts[0, stage] = 0.0
    for kind in range(job.kinds):
        plain, remade = 2 + kind, 2 + job.kinds + kind
        counts[kind, stage] = 1.0
        fill_stage(stage, position, counts, again, costs, key, grid, job, framework, out[plain])
        # Recomputing changes the tensors that a layer keeps, not its parameters.
        out[remade], again[kind, stage] = out[plain], 1.0
        fill_kept(stage, position, counts, again, costs, key, grid, job, framework, out[remade])
        counts[kind, stage] = again[kind, stage] = 0.0
    return out


@jit
def working_set_only(most: LayerMaxima) -> LayerMaxima:
    """The maxima of one kind of layer with all fields set to 0 except the working sets (`working`,
    `working_again`, `making`, `making_again`, `last`)."""
    return LayerMaxima(
        0.0, 0.0, most.working, most.working_again, most.making, most.making_again, most.last, 0.0,
        0.0,
    )  # fmt: skip


@jit
def after_first_layer(most: LayerMaxima) -> LayerMaxima:
    """The maxima of one kind of layer with all fields set to 0 except the change in bytes after the
    first layer in backward (`done_making`, `done`)."""
    return LayerMaxima(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, most.done_making, most.done)


@jit
def added_bytes(
    most: LayerMaxima, bare: float, phase: int, rest: PhaseTerms, holds: Row, one_pass: Pass,
    key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Bytes by which a phase of a stage grows if it has the maxima `most` over its layers. `bare`:
    bytes of the phase without any maxima."""
    return phase_bytes(phase, rest, holds, most, one_pass, key, grid, job, framework) - bare


@jit
def fill_phase(
    row: int, phase: int, one_pass: Pass, stage: int, holds: Rows, present: Row, costs: Rows,
    key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs, out: MemoryPhases,
) -> None:  # fmt: skip
    """Fill the coefficients of one phase of one stage. `holds`: from `stage_layers`; `present`: the
    variant that tells whether there is a second layer."""
    empty = holds[0]
    if phase != OPTIMIZER and not exists(phase, present, one_pass, grid, framework):
        return
    zero = no_maxima()
    empty_rest = at_rest(empty, key, grid, job, framework)
    rest = at_rest(present, key, grid, job, framework)
    base = phase_bytes(phase, empty_rest, empty, zero, one_pass, key, grid, job, framework)
    out.stage[row, stage] = base
    bare = phase_bytes(phase, rest, present, zero, one_pass, key, grid, job, framework)
    for kind in range(job.kinds):
        plain, again = holds[2 + kind], holds[2 + job.kinds + kind]
        plain_rest = at_rest(plain, key, grid, job, framework)
        again_rest = at_rest(again, key, grid, job, framework)
        first = phase_bytes(phase, plain_rest, plain, zero, one_pass, key, grid, job, framework)
        second = phase_bytes(phase, again_rest, again, zero, one_pass, key, grid, job, framework)
        out.layer[row, stage, kind] = first - base
        out.freed[row, stage, kind] = first - second
        most = layer_maxima(costs[kind], 1.0, 0.0, key, grid, framework)
        # A checkpoint brings back the tensors of all its layers at once.
        redo = layer_maxima(costs[kind], 0.0, max(1.0, key.span), key, grid, framework)
        out.gather[row, kind] = added_bytes(
            largest_of(most), bare, phase, rest, present, one_pass, key, grid, job, framework
        )
        out.working[row, kind] = added_bytes(
            working_set_only(most), bare, phase, rest, present, one_pass, key, grid, job, framework
        )
        out.done[row, kind] = added_bytes(
            after_first_layer(most), bare, phase, rest, present, one_pass, key, grid, job, framework
        )
        out.working_again[row, kind] = added_bytes(
            working_set_only(redo), bare, phase, rest, present, one_pass, key, grid, job, framework
        )
        out.done_again[row, kind] = added_bytes(
            after_first_layer(redo), bare, phase, rest, present, one_pass, key, grid, job, framework
        )


@jit
def memory_phases(
    grid: Row, key: Row, costs: Rows, job: JobInputs, framework: FrameworkInputs,
    stage_bytes: Array, layer: Array, freed: Array, working: Array, working_again: Array,
    gather: Array, done: Array, done_again: Array,
) -> None:  # fmt: skip
    """Fill the coefficients of every phase of every stage of a shape (`MemoryPhases`), zero
    before."""
    pp = int(grid.pp)
    out = MemoryPhases(stage_bytes, layer, freed, working, working_again, gather, done, done_again)
    counts = vocab_counts(pp, job, framework.schedule, grid.mtp_standalone)
    for stage in range(pp):
        held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
        passes_of_stage = passes(held, grid.grad_acc, framework)
        holds = stage_layers(stage, costs, counts, key, grid, job, framework)
        for index in range(PASSES):
            if passes_of_stage[index].counts == 0.0:
                continue
            for phase in range(PHASES):
                single = phase not in (LAYER_SECOND, OPTIMIZER)
                if not (single or is_sharded(grid)):
                    continue
                fill_phase(
                    index * PHASES + phase, LAYER_LAST if phase == OPTIMIZER else phase,
                    passes_of_stage[index], stage, holds, holds[2] if single else holds[1], costs,
                    key, grid, job, framework, out,
                )  # fmt: skip
        fill_phase(
            ROWS - 1, OPTIMIZER, passes_of_stage[0], stage, holds, holds[1], costs, key, grid, job,
            framework, out,
        )  # fmt: skip
