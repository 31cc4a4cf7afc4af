"""A step's time as linear terms of the layer counts: what the layout solver and bounds read.

Within one shape, a stage's seconds are sums over its layers plus constants, except for a maximum
here and there (exposed traffic). This module gives the coefficients, from the same functions that
`planner.cost.step` costs a finished layout with; `planner.cost.linear_memory` gives its bytes.
"""

from __future__ import annotations

import numpy as np

from planner.cost._jit import jit
from planner.cost.data_parallel import Grid, gather_seconds, optimizer_seconds, reduce_seconds
from planner.cost.fields import PIECE_DENSE_PARAMETERS, PIECE_EXPERT_PARAMETERS, PIECE_WEIGHT
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.kernel import read_grid, read_key
from planner.cost.keys import Key
from planner.cost.memory import communicator_bytes
from planner.cost.passes import (
    backward_seconds,
    exposed_pipeline_seconds,
    forward_seconds,
    fsdp_seconds,
    recompute_seconds,
    table_reduction_seconds,
)
from planner.cost.step import slowdown
from planner.cost.step_ends import (
    END_COLUMNS,
    END_SHARED,
    END_TAKEN_BACKWARD,
    END_TAKEN_FORWARD,
    end_traffic,
)
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import extra_update_seconds

# --- per piece: one more of it on a stage adds ---------------------------------------------------
TERM_FORWARD = 0
TERM_BACKWARD = 1
# Seconds more if it recomputes, its ZeRO-3 traffic then having more to hide behind.
TERM_RECOMPUTE = 2
TERM_OPTIMIZER = 3
TERM_REDUCE = 4
TERM_ALL_GATHER = 5
# Seconds of a pass that its hidden traffic takes from what travels at the end of the step, and by
# which that delays its exposed traffic.
TERM_TAKEN_FORWARD = 6
TERM_TAKEN_BACKWARD = 7
TERM_SHARED = 8
TERM_WEIGHT = 9  # of TERM_BACKWARD, gradients of weights
TERM_COLUMNS = 10
TIME_TERMS = tuple(range(TERM_WEIGHT))

# --- per shape -----------------------------------------------------------------------------------
SCALAR_FIXED_S = 0  # exposed transfers between stages, and the host
SCALAR_FIXED_BYTES = 1  # context, communicators
SCALAR_REDUCE_BASE = 2
SCALAR_ALL_GATHER_BASE = 3
SCALAR_COLUMNS = 4
TIME_BASES = (SCALAR_REDUCE_BASE, SCALAR_ALL_GATHER_BASE)


@jit
def secant(low: float, high: float, at_low: float, at_high: float) -> tuple[float, float]:
    """(intercept, slope) of the line through two points; flat where they coincide.

    Time over size of a collective is concave (`transfer_time_s`: x + sqrt(h·x)), so between the
    points the line never lies above it: costs from it are valid lower bounds.
    """
    if high <= low:
        return at_low, 0.0
    slope = (at_high - at_low) / (high - low)
    return at_low - slope * low, slope


@jit
def traffic_line(
    low: float,
    high: float,
    expert: bool,
    reduce: bool,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
) -> tuple[float, float]:
    """(intercept, slope per parameter) of the seconds to reduce gradients or gather weights.

    `low`, `high`: fewest and most parameters of a stage. `expert`: over the expert-data group.
    """
    if high <= 0.0:
        return 0.0, 0.0
    ends = np.zeros(2)
    for index in range(2):
        size = high if index else low
        dense, routed = (0.0, size) if expert else (size, 0.0)
        if reduce:
            per_parameter = framework.gradient_communication_bytes
            ends[index] = reduce_seconds(dense, routed, per_parameter, key, grid, job, links)
        else:
            per_parameter = framework.parameter_communication_bytes
            ends[index] = gather_seconds(dense, routed, per_parameter, key, grid, job, links)
    return secant(low, high, ends[0], ends[1])


@jit
def piece_terms(
    cost: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
    out: Array,
) -> None:
    """Fill the TERM_* columns of one piece, traffic at the end of the step apart."""
    dense, expert = cost[PIECE_DENSE_PARAMETERS], cost[PIECE_EXPERT_PARAMETERS]
    plain = fsdp_seconds(cost, False, key, grid, job, framework, links)
    again = fsdp_seconds(cost, True, key, grid, job, framework, links)
    out[TERM_FORWARD] = forward_seconds(cost)
    out[TERM_BACKWARD] = backward_seconds(cost) + plain
    out[TERM_RECOMPUTE] = recompute_seconds(cost) + again - plain
    out[TERM_WEIGHT] = cost[PIECE_WEIGHT]
    out[TERM_OPTIMIZER] = optimizer_seconds(dense, expert, grid, framework, gpu)
    out[TERM_OPTIMIZER] += extra_update_seconds(cost, grid, framework, gpu)
    ends = np.zeros(END_COLUMNS)
    end_traffic(cost, key, grid, job, framework, links, ends)
    out[TERM_TAKEN_FORWARD] = ends[END_TAKEN_FORWARD]
    out[TERM_TAKEN_BACKWARD] = ends[END_TAKEN_BACKWARD]
    out[TERM_SHARED] = ends[END_SHARED]


@jit
def traffic_terms(
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
    terms: Array,
    scalars: Array,
) -> None:
    """Fill the columns of gradient reduction and weight gathering at the end of the step.

    The dense constant is paid by every stage; that of the experts only where all layers have them.
    """
    spare = job.lone_ends if grid.pp > 1.0 else 0.0
    most_layers = job.layers - (grid.pp - 1.0) * grid.vpp + 2.0 * spare
    for expert in (False, True):
        column = PIECE_EXPERT_PARAMETERS if expert else PIECE_DENSE_PARAMETERS
        smallest = costs[: job.kinds, column].min()
        low = smallest * (grid.vpp - spare)
        ends = costs[job.kinds :, column].sum() * (2.0 + job.mtp_layers)
        high = costs[: job.kinds, column].max() * most_layers + ends
        for reduce in (True, False):
            if (reduce and grid.zero >= 2) or (not reduce and grid.zero not in (1, 2)):
                continue
            base, slope = traffic_line(low, high, expert, reduce, key, grid, job, framework, links)
            term = TERM_REDUCE if reduce else TERM_ALL_GATHER
            scalar = SCALAR_REDUCE_BASE if reduce else SCALAR_ALL_GATHER_BASE
            terms[:, term] += slope * costs[:, column]
            if smallest > 0.0:
                scalars[scalar] += base


@jit
def layout_terms(
    shape: Array,
    key_row: Array,
    costs: Array,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
) -> tuple[Array, Array]:
    """Coefficients of one shape's step time: (terms[piece, TERM_*], scalars[SCALAR_*]).

    Stragglers included (`planner.cost.step.slowdown`)."""
    key = read_key(key_row, job)
    grid = read_grid(shape, key)
    terms = np.zeros((job.pieces, TERM_COLUMNS))
    scalars = np.zeros(SCALAR_COLUMNS)
    for piece in range(job.pieces):
        piece_terms(costs[piece], key, grid, job, framework, gpu, links, terms[piece])
    traffic_terms(costs, key, grid, job, framework, links, terms, scalars)
    scalars[SCALAR_FIXED_S] = framework.host_step_s + exposed_pipeline_seconds(
        costs, key, grid, job, framework, links
    )
    scalars[SCALAR_FIXED_S] += table_reduction_seconds(costs, key, grid, job, framework, links)
    # A step is a sum of maxima of sums of these: all of them times a factor are the step times it.
    factor = slowdown(job, links)
    terms *= factor
    scalars *= factor
    scalars[SCALAR_FIXED_BYTES] = framework.context_bytes + communicator_bytes(
        key.tp, key.cp, grid.dp, grid.pp, key.ep, framework
    )
    return terms, scalars
