"""Passes of a stage over its micro-batches, and the phases of each pass."""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.class_sums import is_sharded
from planner.cost.phase_records import (
    EMBEDDING,
    FORWARD,
    HEAD,
    LAYER,
    LAYER_AGAIN,
    LAYER_LAST,
    LAYER_SECOND,
    LOSS,
    MTP,
    Pass,
)
from planner.cost.schedule import Held
from planner.cost.tables import FrameworkInputs


@jit
def exists(phase: int, holds: Row, one_pass: Pass, grid: Row, framework: FrameworkInputs) -> bool:
    """Whether a stage with these contents has the phase in this pass and the phase may be the
    heaviest: False if the stage lacks the part that the phase is for, or if another phase never has
    fewer bytes."""
    inside = LAYER <= phase <= LAYER_LAST
    if (
        phase == FORWARD
        or LAYER <= phase <= LAYER_AGAIN
        or (one_pass.vocab_parameters == 0.0 and not inside)
    ):
        return inside or one_pass.vocab_parameters > 0.0
    if LOSS <= phase <= HEAD:
        return holds.head > 0.0
    if phase == MTP:
        return holds.mtp_kept > 0.0
    if phase == EMBEDDING:
        return holds.embedding_trained > 0.0
    if phase == LAYER_SECOND:
        return is_sharded(grid) and holds.layers > 1.0
    return one_pass.accumulates == 0.0 or framework.frozen_units_hold > 0.0


@jit
def passes(held: Held, grad_acc: float, framework: FrameworkInputs) -> tuple[Pass, Pass, Pass]:
    """Three passes, one of which needs the most memory: that of the first micro-batch, that of the
    second, and that of the micro-batch with the most deferred weight gradients. `counts` is 0 for
    those that cannot be the heaviest.

    If all micro-batches are in flight at the first backward, one less is at the second (Narayanan
    et al. 2021, arXiv 2104.04473, section 2.2). Otherwise the number stays the same, and the second
    pass needs the memory of the first plus gradients.
    """
    buffers = framework.persistent_gradients > 0.0
    before = 0.0 if framework.gradients_at_backward > 0.0 or not buffers else 1.0
    after = grad_acc - 1.0
    later, head = min(held.full, after), max(1.0, min(held.head, after))
    full, weights = held.full, (held.deferred, held.head_deferred)
    alone = before > 0.0 or grad_acc <= 1.0
    item = 1.0 if alone or later < full else 0.0
    late = 1.0 if held.late_deferred > held.deferred else 0.0
    return (
        Pass(full, 1.0 if buffers else 0.0, weights[0], held.head, weights[1], 1.0, item, before),
        Pass(later, 1.0, weights[0], head, weights[1], 1.0, 0.0 if alone else 1.0, 1.0),
        Pass(held.late_full, 1.0, held.late_deferred, 1.0, held.head_deferred, 0.0, late, 1.0),
    )


@jit
def fullest_pass(held: Held, grad_acc: float, framework: FrameworkInputs) -> Pass:
    """The pass with the most gradients: the second micro-batch's, if there is one."""
    first, second, _ = passes(held, grad_acc, framework)
    return second if second.counts > 0.0 else first
