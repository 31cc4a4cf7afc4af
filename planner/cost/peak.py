"""The peak memory of a group of stages as one number, for searches.

Bytes that depend only on parameters are the same for all candidates of a frame
(`planner.cost.frame`) and are computed once. The rest comes from the functions whose terms
`planner.cost.stage` adds up.
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.keys import local_tokens
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import (
    LAYER,
    LAYER_AGAIN,
    PHASES,
    LayerMaxima,
    Pass,
    packed_bytes,
)
from planner.cost.phases import at_rest, bytes_of_activations, bytes_of_parameters
from planner.cost.schedule import held_microbatches
from planner.cost.stage import fill_kept, stage_maxima
from planner.cost.stage_parameters import fill_parameters
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def fill_known(
    stage: int, counts: Array, costs: Rows, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs, out: Row,
) -> None:  # fmt: skip
    """Fill the bytes of a group that depend only on parameters (`GROUP_ROW`)."""
    fill_parameters(stage, counts, costs, grid, job, framework, out)
    most = stage_maxima(stage, counts, counts, costs, key, grid, job, framework)
    rest = at_rest(out, key, grid, job, framework)
    out.resting_bytes = sum(rest.resting) - rest.resting.inputs
    out.packed_bytes = packed_bytes(rest, framework)
    out.update_moving_bytes = sum(rest.moving)
    held = held_microbatches(out.first, grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    passes_of_stage = passes(held, grid.grad_acc, framework)
    for phase in range(PHASES - 1):
        out.known_bytes[phase] = bytes_of_parameters(
            phase, rest.moving.gradients, out, most, passes_of_stage[0], grid, framework
        )
        out.known_bytes[PHASES - 1 + phase] = out.known_bytes[phase]
    if framework.persistent_gradients == 0.0 or framework.gradients_at_backward > 0.0:
        for phase in range(PHASES - 1):
            out.known_bytes[PHASES - 1 + phase] = bytes_of_parameters(
                phase, rest.moving.gradients, out, most, passes_of_stage[1], grid, framework
            )


@jit
def is_dominated(phase: int, most: LayerMaxima) -> bool:
    """Whether a phase cannot be the peak, because the stage has no layers that it is for:
    LAYER_AGAIN without layers that recompute, or LAYER if all recompute."""
    if phase == LAYER:
        return most.working == 0.0 and most.working_again > 0.0
    return phase == LAYER_AGAIN and most.working_again == 0.0 and most.working > 0.0


@jit
def pass_bytes(
    one_pass: Pass, known: int, group: Row, most: LayerMaxima, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Bytes in the heaviest phase of a pass, besides those that are the same in every phase
    (`RestingTerms`); 0 without a calculation if another pass always needs more (`Pass.counts`).

    `known`: index in `group.known_bytes` of the pass's first phase.
    """
    moving = 0.0
    if one_pass.counts == 0.0:
        return moving
    for phase in range(PHASES - 1):
        if is_dominated(phase, most) or not exists(phase, group, one_pass, grid, framework):
            continue
        size = bytes_of_activations(phase, group, most, one_pass, key, grid, job, framework)
        moving = max(moving, group.known_bytes[known + phase] + size)
    return moving


@jit
def group_bytes(
    stage: int, group: Row, counts: Array, recomputed: Array, costs: Rows, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Live bytes of the first stage of a group in its heaviest phase."""
    first = group.first
    held = held_microbatches(first, grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    fill_kept(stage, first, counts, recomputed, costs, key, grid, job, framework, group)
    most = stage_maxima(stage, counts, recomputed, costs, key, grid, job, framework)
    one, two, late = passes(held, grid.grad_acc, framework)
    again = PHASES - 1
    moving = max(
        group.update_moving_bytes,
        pass_bytes(one, 0, group, most, key, grid, job, framework),
        pass_bytes(two, again, group, most, key, grid, job, framework),
        pass_bytes(late, again, group, most, key, grid, job, framework),
    )
    inputs = framework.input_bytes * local_tokens(key, job)
    return float(group.resting_bytes + inputs + moving)


@jit
def updating_bytes(group: Row, key: Row, job: JobInputs, framework: FrameworkInputs) -> float:
    """Live bytes of a stage of a group in the optimizer's phase, without `set_aside_bytes`."""
    inputs = framework.input_bytes * local_tokens(key, job)
    return float(group.resting_bytes + inputs + group.update_moving_bytes)
