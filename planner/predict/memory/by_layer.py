"""Memory of a stage during backward, layer by layer.

The core has the first layer and the last one of a backward pass. Between them every layer gives
back what it kept and leaves its gradients, so that the memory changes evenly where layers are
alike; where kinds of layers differ, the line between the two ends is their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import LAYER, LAYER_AGAIN, LAYER_LAST, Pass, total_bytes
from planner.predict.memory.account import StageAccount
from planner.predict.stage import Stage


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Live bytes while the backward of one of a stage's layers runs; `done`: layers behind it whose
    backward is over."""

    layer: int
    done: int
    total_bytes: float


def backward_by_layer(account: StageAccount) -> tuple[LayerMemory, ...]:
    """The layers of a stage in the order of backward, its last one first; of the heavier of the
    passes that a step has."""
    stage, count = account.core, account.layers
    one_passes = passes(stage.held, stage.grid.grad_acc, stage.inputs.framework)
    lines = [_ends(stage, one_pass) for one_pass in one_passes if one_pass.counts]
    first, last = max(lines, key=max)
    steps = max(1, count - 1)
    return tuple(
        LayerMemory(count - 1 - done, done, first + (last - first) * done / steps)
        for done in range(count)
    )


def _ends(stage: Stage, one_pass: Pass) -> tuple[float, float]:
    """Bytes at the first layer of a backward pass and at the last one; 0 without layers.

    The core need not look at the last one where gradients wait already, for it is lighter then.
    """
    firsts = [
        float(total_bytes(stage.terms(phase, one_pass)))
        for phase in (LAYER, LAYER_AGAIN)
        if exists(phase, stage.holds, one_pass, stage.grid)
    ]
    first = max(firsts, default=0.0)
    return first, float(total_bytes(stage.terms(LAYER_LAST, one_pass))) if firsts else first
