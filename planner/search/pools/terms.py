"""Linear terms of a shape whose stages live on different GPUs, for the layout solver and bounds.

What a layer keeps does not depend on the GPU: memory differs in the limit alone, which becomes
bytes that a stage of the smaller GPU already holds. Seconds are each stage's own.

Lower bounds on the step time go as `planner.cost.bounds` for one type: a stage on part q that may
take T seconds of forward and backward has room for so many layers within its time and its GPU's
memory; the least T at which those of all stages add up to all layers bounds the slowest stage from
below. With several kinds of layers, the largest of one bound for all layers, each term that of its
cheapest kind, and one for the layers of each kind alone. Then, with m = grad_acc and v = vpp,

    T_step >= (m - 1/v)·T + total/v + update + exposed transfers and host

where `total` takes every piece at the sample time of the part that is fastest at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from constraints.layout_context import LayoutContext
from constraints.memory_numbers import MemoryNumbers
from planner.cost import bounds, compiled, linear
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.recomputation import recomputation
from planner.predict.cost_model import CostedShapes, CostModel
from planner.search.pools.cost import CostedPool, PoolModel
from planner.search.terms import (
    MEMORY_UNIT_BYTES,
    ShapeTerms,
    allocated_limit_bytes,
    layout_context,
    shape_terms,
)


def pool_terms(
    model: PoolModel,
    costed: CostedPool,
    row: int,
    parts: Sequence[int],
    limits_bytes: Sequence[float],
) -> tuple[ShapeTerms, LayoutContext]:
    """(terms of the shape with its stages on `parts`, what the layout rules read of it, each stage
    under the limit of its part).

    Traffic bases are the least of any part, transfers the slowest's: the solver's objective stays
    below what `PoolModel.cost_layout` says.
    """
    job = model.jobs[0]
    mode = job.recompute[int(costed.modes[row])]
    alone = tuple(
        shape_terms(cost_model, part, row, recomputation(mode, job.framework))
        for cost_model, part in zip(model.models, costed.parts, strict=True)
    )
    scalars = alone[0].scalars.copy()
    bases, fixed = list(linear.TIME_BASES), linear.SCALAR_FIXED_S
    scalars[bases] = np.min([terms.scalars[bases] for terms in alone], axis=0)
    scalars[fixed] = max(float(terms.scalars[fixed]) for terms in alone)
    merged = replace(
        alone[0],
        layer=np.max([terms.layer for terms in alone], axis=0),
        stage=np.array([alone[part].stage[stage] for stage, part in enumerate(parts)]),
        layer_by_stage=np.array([alone[part].layer for part in parts]),
        scalars=scalars,
    )
    live = [
        allocated_limit_bytes(part, limit) for part, limit in zip(alone, limits_bytes, strict=True)
    ]
    roomiest = int(np.argmax(live))
    ctx = layout_context(
        replace(merged, scalars=alone[roomiest].scalars), job, mode, limits_bytes[roomiest]
    )
    held = [ceil((live[roomiest] - live[part]) / MEMORY_UNIT_BYTES) for part in parts]
    return merged, replace(ctx, memory=_with_held(ctx.memory, held))


def _with_held(memory: MemoryNumbers | None, held: Sequence[int]) -> MemoryNumbers | None:
    """The numbers with some units already taken on each stage, at every phase."""
    if memory is None:
        return None
    phases = tuple(
        replace(
            phase,
            stage=tuple(size + more for size, more in zip(phase.stage, held, strict=True)),
        )
        for phase in memory.phases
    )
    return replace(memory, phases=phases)


@dataclass(frozen=True)
class PartTerms:
    """One shape on one part: `stages[stage, STAGE_*]` before layers, `layers[kind, LAYER_*]`
    (`planner.cost.bounds`), `terms[piece, TERM_*]`, `scalars[SCALAR_*]` (`planner.cost.linear`)."""

    stages: Array
    layers: Array
    terms: Array
    scalars: Array
    fragmentation: float

    def live_bytes(self, limit_bytes: float) -> float:
        """Live tensors that a limit on reserved memory leaves room for."""
        fixed = float(self.scalars[linear.SCALAR_FIXED_BYTES])
        return (limit_bytes - fixed) / (1.0 + self.fragmentation)


def part_terms(model: CostModel, costed: CostedShapes, row: int, code: int) -> PartTerms:
    """The terms of a shape on one part; `code`: RECOMPUTE_* of `planner.cost.bounds`."""
    shape = costed.shapes[row]
    index = int(shape[f.SHAPE["key"]])
    key, costs = costed.keys[index], costed.costs[index, 0]
    job, framework = model.job_inputs, model.framework_inputs
    terms, scalars = np.zeros((job.pieces, linear.TERM_COLUMNS)), np.zeros(linear.SCALAR_COLUMNS)
    stages = np.zeros((int(shape[f.SHAPE["pp"]]), bounds.STAGE_BOUND_COLUMNS))
    layers = np.zeros((job.kinds, bounds.LAYER_COLUMNS))
    compiled.fill_shape_parts(
        shape,
        code,
        key,
        costs,
        *model.inputs[:3],
        model.network[None],
        terms,
        scalars,
        stages,
        layers,
    )
    return PartTerms(stages, layers, terms, scalars, framework.fragmentation)


def pool_bound_s(
    part_termss: Sequence[PartTerms],
    parts: Sequence[int],
    limits_bytes: Sequence[float],
    totals: Array,
    code: int,
    grad_acc: float,
    vpp: float,
    standalone_vocab: float,
) -> float:
    """No layout of a shape with its stages on `parts` has a shorter step, s; infinite if none fits.

    `limits_bytes` (reserved, context included): of each part. `totals[piece]`: how many of
    each piece the model has.
    """
    live = np.array(
        [part.live_bytes(limit) for part, limit in zip(part_termss, limits_bytes, strict=True)]
    )
    stages = np.stack([part.stages for part in part_termss])
    place, capacities = np.array(parts), np.zeros((len(parts), bounds.CAPACITY_COLUMNS))
    kinds = len(part_termss[0].layers)
    ranges = [(0, kinds, float(totals[:kinds].sum()), vpp, standalone_vocab)]
    if kinds > 1:
        ranges += [(kind, kind + 1, float(totals[kind]), 0.0, 0.0) for kind in range(kinds)]
    slowest_s = 0.0
    for first, end, layers, fewest, vocab_alone in ranges:
        cheapest = np.stack([part.layers[first:end].min(axis=0) for part in part_termss])
        slowest_s = compiled.slowest_of_parts_s(
            stages, cheapest, place, code, live, layers, fewest, vocab_alone, slowest_s, capacities
        )
        if slowest_s == np.inf:
            return float(np.inf)
    seconds = [_pass_seconds(part, code, kinds) for part in part_termss]
    total_s = float(totals @ np.min(seconds, axis=0))
    update = np.min([part.terms[:, linear.TERM_OPTIMIZER] for part in part_termss], axis=0)
    fixed_s = max(float(part.scalars[linear.SCALAR_FIXED_S]) for part in part_termss)
    span_s = (grad_acc - 1.0 / vpp) * slowest_s + max(total_s, slowest_s) / vpp
    return span_s + float(totals @ update) / len(parts) + fixed_s


def _pass_seconds(part: PartTerms, code: int, kinds: int) -> Array:
    """[piece] forward and backward of one micro-batch, recomputation where all layers have it."""
    seconds: Array = part.terms[:, linear.TERM_FORWARD] + part.terms[:, linear.TERM_BACKWARD]
    if code == bounds.RECOMPUTE_ALL:
        seconds[:kinds] += part.terms[:kinds, linear.TERM_RECOMPUTE]
    return seconds
