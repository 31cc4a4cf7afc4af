"""Bounds on one shape's step over all its layouts: no layout is faster or lighter."""

from __future__ import annotations

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.memory import outside_bytes
from planner.cost.phase_passes import fullest_pass
from planner.cost.pipeline import pipeline_bound_s
from planner.cost.schedule import SCHEDULE_ALL_FORWARD_FIRST, held_microbatches, microbatch_share
from planner.cost.step import ShapeFrame, StepFrame, model_bubble_share
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.terms import constant_seconds


@jit
def step_bounds(
    totals: Array, costs: Rows, traffic: Rows, frame: StepFrame, shape: ShapeFrame, key: Row,
    grid: Row, job: JobInputs, frameworks: Rows, place: Array, out: Row,
) -> None:  # fmt: skip
    """Fill STEP_TIME_BOUND and STEP_PEAK_BOUND: no layout of the shape is faster or lighter.

    `totals[piece]`: number of each piece in the model. Time: no layer recomputes, stages are
    perfectly even, no dp traffic is exposed. Memory: all layers recompute and each has only the
    fewest micro-batches of any stage in flight; the heaviest stage has at least the mean. Each
    piece is counted on the machine where it takes least.
    """
    total_s = largest_s = saved = forward_s = weight_s = quantised = 0.0
    framework, machines = frameworks[0], frameworks.shape[0]
    mirrored = microbatch_share(framework.schedule)
    for piece in range(job.pieces):
        count, one_traffic, cost = totals[piece], traffic[0][piece], costs[0][piece]
        seconds = one_traffic.forward_s + one_traffic.backward_s + one_traffic.sharded_s
        least_saved, casts = min(cost.saved, cost.saved_recomputed), min(0.0, cost.casts)
        for at in range(1, machines):
            other, cost = traffic[at][piece], costs[at][piece]
            seconds = min(seconds, other.forward_s + other.backward_s + other.sharded_s)
            least_saved = min(least_saved, cost.saved, cost.saved_recomputed)
            casts = min(casts, cost.casts)
        total_s += count * seconds
        if count > 0.0:
            largest_s = max(largest_s, mirrored * seconds)
        forward_s += count * one_traffic.forward_s
        weight_s += count * costs[0][piece].weight
        # Quantised weights may take less than 16 bits.
        quantised += count * casts
        if piece < job.kinds:
            saved += count * least_saved
    share = model_bubble_share(forward_s, total_s, weight_s, grid, framework, True)
    constant_s, stages = sum(constant_seconds(framework)), grid.pp
    if machines > 1:
        share = mixed_bubble_share(share, framework.schedule)
        stages = even_stages(total_s, totals, traffic, grid, place)
        for at in range(1, machines):
            constant_s = max(constant_s, sum(constant_seconds(frameworks[at])))
    out.time_bound = (
        frame.slowdown
        * shape.learnt
        * (
            pipeline_bound_s(total_s, largest_s, stages, grid.grad_acc, share)
            + shape.exposed_s
            + grid.unequal_s
            + frame.update_s / grid.pp
            + constant_s
        )
    )
    weighed, least_workspace = shape.outside_bytes, framework.workspace_bytes
    for at in range(1, machines):
        weighed = min(weighed, outside_bytes(key, grid, job, frameworks[at]))
        least_workspace = min(least_workspace, frameworks[at].workspace_bytes)
    each = grid.pp / frame.memories
    least_bytes = peak_bound_bytes(frame, saved, least_workspace * each, grid, framework)
    least_bytes += quantised / frame.memories
    out.peak_bound = least_bytes + weighed * each


@jit
def mixed_bubble_share(share: float, schedule: int) -> float:
    """Lower bound on the bubble share of layouts on several machines: the share for one machine if
    it depends only on the schedule; otherwise nothing is known about the ratio of forward and
    backward, and it is 0."""
    return share if schedule <= SCHEDULE_ALL_FORWARD_FIRST else 0.0


@jit
def even_stages(total_s: float, totals: Array, traffic: Rows, grid: Row, place: Array) -> float:
    """Divisor of `total_s`, the seconds of all stages, that gives a lower bound on the slowest
    stage's seconds; at most pp.

    Machines differ in speed, so it may be less than pp. x_q is the largest ratio, over all pieces,
    of a piece's seconds on the first machine to its seconds on the machine q of a stage. That stage
    takes at least 1/x_q of the seconds that its pieces take on the first machine. So with W seconds
    of all pieces on the first machine, the slowest stage takes at least W / sum(x_q), summed over
    the stages.
    """
    first_s = together = 0.0
    for piece in range(totals.shape[0]):
        first_s += totals[piece] * plain_seconds(traffic[0][piece])
    for stage in range(int(grid.pp)):
        quickest = 0.0
        for piece in range(totals.shape[0]):
            first, there = traffic[0][piece], traffic[int(place[stage])][piece]
            if totals[piece] > 0.0 and plain_seconds(first) > 0.0:
                if plain_seconds(there) == 0.0:
                    return float(grid.pp)
                quickest = max(quickest, plain_seconds(first) / plain_seconds(there))
        together += quickest
    return float(min(grid.pp, total_s * together / first_s))


@jit
def plain_seconds(one_traffic: Row) -> float:
    """Forward and backward seconds of a piece that does not recompute."""
    return float(one_traffic.forward_s + one_traffic.backward_s + one_traffic.sharded_s)


@jit
def peak_bound_bytes(
    frame: StepFrame, saved: float, workspace: float, grid: Row, framework: FrameworkInputs
) -> float:
    """Lower bound on the reserved bytes of the heaviest stage: the mean over stages, with the
    model's parameters and `saved` bytes of its layers, in the update and in a layer's backward, and
    `workspace` bytes."""
    saved_bytes, accumulates = np.inf, 0.0
    # The micro-batches in flight only grow or only fall with the number of the stage.
    for end in range(2):
        stage = end * (grid.pp - 1.0)
        held = held_microbatches(stage, grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
        fullest = fullest_pass(held, grid.grad_acc, framework)
        saved_bytes, accumulates = min(saved_bytes, saved * fullest.in_flight), fullest.accumulates
    state, gradients = frame.state_bytes, frame.gradient_bytes
    backward = state + accumulates * gradients + saved_bytes
    live = max(backward, state + gradients)
    packed = state + (gradients if framework.persistent_gradients > 0.0 else 0.0)
    gaps = framework.fragmentation * max(0.0, live - packed)
    return (live + gaps) / frame.memories + workspace
