"""Lower bounds on the step time of a shape over all its layouts, under a memory limit.

Sharper than `planner.cost.step.step_bounds`: layers are indivisible, and each stage has its own
constants and micro-batches in flight. A stage whose forward and backward may take T seconds has
room for a certain number of layers; the smallest T at which the rooms add up to all layers bounds
the slowest stage from below. For models with one kind of layer and nothing of dp exposed the bound
is attained. With several kinds it is the largest of these: one bound for all layers, each term that
of its cheapest kind, and one for the layers of each kind alone, the others costing nothing.
"""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit, jit_parallel, prange
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.linear import (
    HELD_DEFERRED,
    HELD_FULL,
    HELD_HEAD,
    HELD_HEAD_DEFERRED,
    SCALAR_FIXED_BYTES,
    SCALAR_FIXED_S,
    SCALAR_GATHER_BASE,
    SCALAR_LOGITS,
    SCALAR_ROOT_GATHER,
    TERM_BACKWARD,
    TERM_DROPPED,
    TERM_FORWARD,
    TERM_GATHER,
    TERM_OPTIMIZER,
    TERM_PERSISTENT,
    TERM_RECOMPUTE,
    TERM_SAVED,
    TERM_TEMPORARY,
    TERM_WEIGHT,
    TERM_WEIGHT_SAVED,
    TERM_WORKING,
    layout_terms,
)
from planner.cost.schedule import bubble_share, head_stage
from planner.cost.tables import Array, FrameworkInputs, JobInputs

# Recomputation codes: no layer, every layer, or any number of them.
RECOMPUTE_NONE = 0
RECOMPUTE_ALL = 1
RECOMPUTE_SOME = 2

# --- the cheapest layer: minima over the kinds -----------------------------------------------
LAYER_SECONDS = 0
LAYER_RECOMPUTE = 1
LAYER_PERSISTENT = 2
LAYER_SAVED = 3
LAYER_SAVED_RECOMPUTED = 4
LAYER_WORKING = 5
LAYER_WORKING_RECOMPUTED = 6
LAYER_OPTIMIZER_BYTES = 7
LAYER_GATHER = 8
LAYER_WEIGHT_SAVED = 9
LAYER_COLUMNS = 10

# --- one stage without layers --------------------------------------------------------------------
STAGE_SECONDS = 0
STAGE_BYTES = 1
STAGE_ENDS = 2
STAGE_OPTIMIZER_BYTES = 3
STAGE_FLIGHT = 4
STAGE_DEFERRED = 5
STAGE_BOUND_COLUMNS = 6

# Halvings of the interval in which the slowest stage's time lies.
BISECTIONS = 40
# Slack for the rounding of divisions that should come out whole.
WHOLE = 1e-9


@jit
def cheapest_layer(terms: Array, first: int, end: int, recompute: int) -> Array:
    """LAYER_* minima over the kinds first..end-1 of layers; `recompute` is a RECOMPUTE_* code."""
    layer = np.full(LAYER_COLUMNS, np.inf)
    for kind in range(first, end):
        own = terms[kind]
        again = own[TERM_RECOMPUTE] if recompute == RECOMPUTE_ALL else 0.0
        kept = own[TERM_SAVED] - own[TERM_DROPPED]
        values = (
            own[TERM_FORWARD] + own[TERM_BACKWARD] + again,
            max(own[TERM_RECOMPUTE], 0.0),
            own[TERM_PERSISTENT],
            own[TERM_SAVED],
            min(kept, own[TERM_SAVED]),
            own[TERM_WORKING],
            own[TERM_WORKING] + max(own[TERM_DROPPED], 0.0),
            own[TERM_PERSISTENT] + own[TERM_TEMPORARY],
            own[TERM_GATHER],
            own[TERM_WEIGHT_SAVED],
        )
        for column in range(LAYER_COLUMNS):
            layer[column] = min(layer[column], values[column])
    return layer


@jit
def empty_stages(
    terms: Array, held: Array, scalars: Array, costs: Array, job: JobInputs, schedule: int
) -> Array:
    """STAGE_* of every stage before it gets layers: what embedding, head and MTP cost there."""
    pp = held.shape[0]
    head = head_stage(schedule, pp)
    stages = np.zeros((pp, STAGE_BOUND_COLUMNS))
    stages[:, STAGE_FLIGHT] = held[:, HELD_FULL]
    stages[:, STAGE_DEFERRED] = held[:, HELD_DEFERRED]
    stages[:, STAGE_BYTES] = scalars[SCALAR_GATHER_BASE]
    for piece in range(job.kinds, job.pieces):
        own = terms[piece]
        count = float(job.mtp_layers) if piece == job.kinds + 2 else 1.0
        stage = stages[0] if piece == job.kinds else stages[head]
        flight = held[0, HELD_FULL] if piece == job.kinds else held[head, HELD_HEAD]
        later = 0.0 if piece == job.kinds else held[head, HELD_HEAD_DEFERRED]
        stage[STAGE_SECONDS] += count * (own[TERM_FORWARD] + own[TERM_BACKWARD])
        kept = flight * own[TERM_SAVED] + later * own[TERM_WEIGHT_SAVED]
        stage[STAGE_BYTES] += count * (own[TERM_PERSISTENT] + kept)
        stage[STAGE_OPTIMIZER_BYTES] += count * (own[TERM_PERSISTENT] + own[TERM_TEMPORARY])
        stage[STAGE_ENDS] = max(stage[STAGE_ENDS], own[TERM_WORKING])
        if piece < job.kinds + 2:
            root = costs[piece, f.PIECE_DENSE_PARAMETERS]
            stage[STAGE_BYTES] += scalars[SCALAR_ROOT_GATHER] * root
    last = stages[head]
    last[STAGE_ENDS] = max(last[STAGE_ENDS], scalars[SCALAR_LOGITS])
    if job.tied_embeddings > 0 and pp > 1 and head > 0:
        own = terms[job.kinds]
        last[STAGE_BYTES] += own[TERM_PERSISTENT]
        last[STAGE_OPTIMIZER_BYTES] += own[TERM_PERSISTENT] + own[TERM_TEMPORARY]
    return stages


@jit
def whole(value: float) -> float:
    """Largest whole number not above `value`, which may be short of one by rounding."""
    return float(np.floor(value + WHOLE * max(1.0, abs(value))))


@jit
def stage_room(
    stage: Array, layer: Array, recompute: int, seconds: float, limit_bytes: float
) -> float:
    """Most layers that one stage can hold within `seconds` and `limit_bytes` of live tensors.

    With some layers recomputed, r of n layers must be so that n·a - r·d fits the memory, and
    n·t + r·q the time; r need not be whole here (a relaxation). Negative if not even 0 fit.
    """
    flight = stage[STAGE_FLIGHT]
    time_left = seconds - stage[STAGE_SECONDS]
    if layer[LAYER_OPTIMIZER_BYTES] > 0.0:
        in_update = (limit_bytes - stage[STAGE_OPTIMIZER_BYTES]) / layer[LAYER_OPTIMIZER_BYTES]
    else:
        in_update = np.inf
    room = min(in_update, time_left / layer[LAYER_SECONDS])
    left = limit_bytes - stage[STAGE_BYTES] - layer[LAYER_GATHER]
    always = layer[LAYER_PERSISTENT] + stage[STAGE_DEFERRED] * layer[LAYER_WEIGHT_SAVED]
    plain = always + flight * layer[LAYER_SAVED]
    light = always + flight * layer[LAYER_SAVED_RECOMPUTED]
    busy = LAYER_WORKING_RECOMPUTED if recompute == RECOMPUTE_ALL else LAYER_WORKING
    left -= max(stage[STAGE_ENDS], layer[busy])
    if recompute == RECOMPUTE_NONE:
        return whole(min(room, left / plain))
    room = min(room, left / light)
    freed = plain - light
    if recompute == RECOMPUTE_SOME and freed > 0.0 and room * plain > left:
        # n·t + q·(n·a - left)/d = time_left.
        slope = layer[LAYER_SECONDS] + layer[LAYER_RECOMPUTE] * plain / freed
        balanced = (time_left + layer[LAYER_RECOMPUTE] * left / freed) / slope
        room = min(room, max(balanced, left / plain))
    return whole(room)


@jit
def layers_fit(
    stages: Array, layer: Array, recompute: int, seconds: float, limit_bytes: float,
    layers: float, vpp: float,
) -> bool:  # fmt: skip
    """Whether all layers find room on stages that take at most `seconds` each."""
    total = 0.0
    for stage in range(stages.shape[0]):
        room = stage_room(stages[stage], layer, recompute, seconds, limit_bytes)
        if room < vpp:
            return False
        total += room
    return total >= layers


@jit
def slowest_stage_bound_s(
    stages: Array, layer: Array, recompute: int, limit_bytes: float, layers: float, vpp: float,
    low_s: float,
) -> float:  # fmt: skip
    """Least seconds of the slowest stage, `low_s` at least; infinite if the layers do not fit.

    `vpp`: fewest layers of a stage.
    """
    if low_s == np.inf:
        return low_s
    high_s = (layer[LAYER_SECONDS] + layer[LAYER_RECOMPUTE]) * layers + low_s
    high_s += stages[:, STAGE_SECONDS].max()
    if not layers_fit(stages, layer, recompute, high_s, limit_bytes, layers, vpp):
        return np.inf
    if layers_fit(stages, layer, recompute, low_s, limit_bytes, layers, vpp):
        return low_s
    for _ in range(BISECTIONS):
        middle_s = 0.5 * (low_s + high_s)
        if layers_fit(stages, layer, recompute, middle_s, limit_bytes, layers, vpp):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


@jit
def model_seconds(terms: Array, totals: Array, recompute: int, job: JobInputs) -> float:
    """Forward and backward seconds of a micro-batch through the whole model."""
    total_s = 0.0
    for piece in range(job.pieces):
        own = terms[piece]
        seconds = own[TERM_FORWARD] + own[TERM_BACKWARD]
        if recompute == RECOMPUTE_ALL and piece < job.kinds:
            seconds += own[TERM_RECOMPUTE]
        total_s += totals[piece] * seconds
    return total_s


@jit
def shape_bubble_share(
    shape: Array, terms: Array, totals: Array, total_s: float, recompute: int,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """`bubble_share` of all layouts of a shape; a lower bound where any layers may recompute."""
    forward_s = (totals * terms[:, TERM_FORWARD]).sum()
    weight_s = (totals * terms[:, TERM_WEIGHT]).sum()
    return bubble_share(
        forward_s, total_s - forward_s - weight_s, weight_s, framework.schedule,
        shape[f.SHAPE_PP], shape[f.SHAPE_VPP], shape[f.SHAPE_GRAD_ACC],
        framework.post_validation, recompute == RECOMPUTE_SOME,
    )  # fmt: skip


@jit
def layout_bounds_s(
    shape: Array, recompute: int, limits_bytes: Array, key_row: Array, costs: Array,
    totals: Array, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs,
    links: LinkInputs, out: Array,
) -> None:  # fmt: skip
    """Fill one bound per memory limit (reserved bytes, context included)."""
    terms, held, scalars = layout_terms(shape, key_row, costs, job, framework, gpu, links)
    stages = empty_stages(terms, held, scalars, costs, job, framework.schedule)
    pp, vpp, grad_acc = shape[f.SHAPE_PP], shape[f.SHAPE_VPP], shape[f.SHAPE_GRAD_ACC]
    total_s = model_seconds(terms, totals, recompute, job)
    share = shape_bubble_share(shape, terms, totals, total_s, recompute, framework)
    update_s = (totals * terms[:, TERM_OPTIMIZER]).sum() / pp
    layer = cheapest_layer(terms, 0, job.kinds, recompute)
    for index in range(limits_bytes.shape[0]):
        limit = limits_bytes[index] - scalars[SCALAR_FIXED_BYTES]
        limit /= 1.0 + framework.fragmentation
        slowest_s = slowest_stage_bound_s(
            stages, layer, recompute, limit, float(job.layers), vpp, total_s / pp
        )
        if job.kinds > 1:
            for kind in range(job.kinds):
                alone = cheapest_layer(terms, kind, kind + 1, recompute)
                slowest_s = slowest_stage_bound_s(
                    stages, alone, recompute, limit, totals[kind], 0.0, slowest_s
                )
        out[index] = np.inf
        if slowest_s < np.inf:
            span_s = grad_acc * slowest_s + share * (total_s - slowest_s)
            out[index] = span_s + update_s + scalars[SCALAR_FIXED_S]


@jit_parallel
def bound_shapes(
    shapes: Array, recompute: Array, limits_bytes: Array, keys: Array, costs: Array,
    totals: Array, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs,
    links: LinkInputs,
) -> Array:  # fmt: skip
    """Bounds [shapes, limits] on the step time, s; infinite where nothing can fit.

    `recompute[shape]`: RECOMPUTE_* code.
    """
    out = np.full((shapes.shape[0], limits_bytes.shape[0]), np.inf)
    for index in prange(shapes.shape[0]):
        key = int(shapes[index, f.SHAPE_KEY])
        layout_bounds_s(
            shapes[index], int(recompute[index]), limits_bytes, keys[key], costs[key], totals,
            job, framework, gpu, links, out[index],
        )  # fmt: skip
    return out
