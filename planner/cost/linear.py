"""A step's time as linear terms of the layer counts, for the layout solver and for bounds.

Within one shape, a stage's seconds are sums over its layers plus constants, except for a maximum
here and there (exposed traffic). This module computes the coefficients with the functions by which
`planner.cost.step` costs a finished layout; `planner.cost.linear_memory` does the same for bytes.
"""

from __future__ import annotations

import math

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import updated_parameters
from planner.cost.data_parallel import gather_of, optimizer_seconds, reduction_of
from planner.cost.frame import TRAFFIC_ROW, fill_passes, fill_traffic
from planner.cost.inputs import GpuInputs
from planner.cost.memory import outside_bytes
from planner.cost.passes import (
    exposed_pipeline_seconds,
    pipeline_traffic_seconds,
    table_reduction_seconds,
)
from planner.cost.step import slowdown
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.terms import constant_seconds
from planner.cost.update import extra_update_seconds

# --- per piece: one more of it on a stage adds ---------------------------------------------------
TERM_FORWARD = 0
TERM_BACKWARD = 1
# Seconds that recomputing adds, given that its ZeRO-3 traffic then has more compute to hide behind.
TERM_RECOMPUTE = 2
TERM_OPTIMIZER = 3
TERM_REDUCE = 4
TERM_ALL_GATHER = 5
# Seconds of links that hidden traffic of a pass takes from the traffic at the end of the step, and
# seconds by which the latter delays the pass.
TERM_TAKEN_FORWARD = 6
TERM_TAKEN_BACKWARD = 7
TERM_SHARED = 8
TERM_WEIGHT = 9  # of TERM_BACKWARD, gradients of weights
TERM_COLUMNS = 10
# Terms in seconds: of a micro-batch's passes, which two copies of a model share, and terms that
# depend only on parameters.
BOTH_PASSES = (TERM_FORWARD, TERM_BACKWARD)
PASS_TERMS = (*BOTH_PASSES, TERM_RECOMPUTE, TERM_TAKEN_FORWARD, TERM_TAKEN_BACKWARD)
PARAMETER_TERMS = (TERM_OPTIMIZER, TERM_REDUCE, TERM_ALL_GATHER)
TIME_TERMS = tuple(sorted((*PASS_TERMS, *PARAMETER_TERMS, TERM_SHARED)))

# --- per shape -----------------------------------------------------------------------------------
SCALAR_FIXED_S = 0  # exposed transfers between stages, and the host
SCALAR_FIXED_BYTES = 1  # context, communicators
SCALAR_REDUCE_BASE = 2
SCALAR_ALL_GATHER_BASE = 3
SCALAR_COLUMNS = 4
TIME_BASES = (SCALAR_REDUCE_BASE, SCALAR_ALL_GATHER_BASE)


# A number of parameters so small that their traffic takes hardly more than its latency.
NEARLY_NONE = 1e-6


@jit
def traffic_line(
    high: float, expert: bool, reduce: bool, key: Row, grid: Row, framework: FrameworkInputs,
    network: Rows,
) -> tuple[float, float]:  # fmt: skip
    """(latency in seconds, seconds per parameter): a line that is never above the seconds to reduce
    gradients or gather weights. 0, 0 if there are no parameters.

    `high`: most parameters of a stage. `expert`: over the expert-data group instead of dp·cp.
    `reduce`: gradients are reduced; otherwise weights are gathered.

    The line runs from the latency to the time of `high`: a collective's time is the lesser of
    several algorithms, each the slower of two link levels, each latency + (x + sqrt(h x))/B. So
    time minus latency, divided by size, never rises with size, and the line is never above the
    time. (A line between two larger sizes may be above it, if one level takes over from the other.)
    """
    if high <= NEARLY_NONE:
        return 0.0, 0.0
    first = last = 0.0
    for size in (NEARLY_NONE, high):
        data, experts = (0.0, size) if expert else (size, 0.0)
        first = last
        if reduce:
            last = reduction_of(data, experts, key, grid, framework, network).seconds
        else:
            last = gather_of(data, experts, key, grid, framework, network).seconds
    return first, (last - first) / high


@jit
def piece_terms(
    cost: Row, traffic: Row, grid: Row, framework: FrameworkInputs, gpu: GpuInputs, out: Array
) -> None:
    """Fill the TERM_* columns of one piece, except for traffic at the end of the step."""
    updated, owned = updated_parameters(cost, grid, framework)
    plain, again = traffic.sharded_s, traffic.sharded_again_s
    out[TERM_FORWARD] = traffic.forward_s
    out[TERM_BACKWARD] = traffic.backward_s + plain
    out[TERM_RECOMPUTE] = traffic.recompute_s + again - plain
    out[TERM_WEIGHT] = cost.weight
    out[TERM_OPTIMIZER] = optimizer_seconds(updated, owned, framework, gpu)
    out[TERM_OPTIMIZER] += extra_update_seconds(cost, grid, framework, gpu)
    out[TERM_TAKEN_FORWARD] = traffic.taken_forward_s
    out[TERM_TAKEN_BACKWARD] = traffic.taken_backward_s
    out[TERM_SHARED] = traffic.shared_s


@jit
def parameters_sent(traffic: Row, expert: bool, reduce: bool) -> float:
    """Number of parameters of a piece that are sent at the end of a step. `reduce`: those whose
    gradients are reduced; otherwise those whose weights are gathered. `expert`: over the
    expert-data group; otherwise over dp·cp."""
    if reduce:
        return float(traffic.reduced_experts if expert else traffic.reduced)
    return float(traffic.gathered_experts if expert else traffic.gathered)


@jit
def parameter_range(
    expert: bool, reduce: bool, traffic: Rows, job: JobInputs
) -> tuple[float, float, float]:
    """Three numbers of parameters sent (`parameters_sent`): the fewest of a layer of any kind, the
    most of a layer of any kind, and the sum over all other pieces (embedding, head, MTP)."""
    smallest, largest, others = np.inf, 0.0, 0.0
    for piece in range(job.pieces):
        count = parameters_sent(traffic[piece], expert, reduce)
        if piece < job.kinds:
            smallest, largest = min(smallest, count), max(largest, count)
        else:
            others += count
    return smallest, largest, others


@jit
def traffic_terms(
    traffic: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs, network: Rows,
    terms: Array, scalars: Array,
) -> None:  # fmt: skip
    """Fill the columns of gradient reduction and weight gathering at the end of the step.

    Every stage pays the latency of dense parameters; it pays that of experts only if all kinds of
    layers have experts.
    """
    spare = job.standalone_vocab if grid.pp > 1.0 else 0.0
    # The embedding and the head may each be the only piece of a block.
    most_layers = job.layers - (grid.pp - 1.0) * grid.vpp + 2.0 * spare
    for expert in (False, True):
        for reduce in (True, False):
            if (reduce and grid.zero >= 2) or (not reduce and grid.zero not in (1, 2)):
                continue
            smallest, largest, extremes = parameter_range(expert, reduce, traffic, job)
            high = largest * most_layers + extremes * (2.0 + job.mtp_layers)
            base, slope = traffic_line(high, expert, reduce, key, grid, framework, network)
            term = TERM_REDUCE if reduce else TERM_ALL_GATHER
            scalar = SCALAR_REDUCE_BASE if reduce else SCALAR_ALL_GATHER_BASE
            for piece in range(job.pieces):
                sent = parameters_sent(traffic[piece], expert, reduce)
                terms[piece, term] += slope * sent
            if smallest > 0.0:
                scalars[scalar] += base


@jit
def layout_terms(
    grid: Row, key: Row, costs: Rows, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs,
    networks: Rows, machine: int, terms: Array, scalars: Array,
) -> None:  # fmt: skip
    """Fill the coefficients of one shape's step time on a machine: terms[piece, TERM_*],
    scalars[SCALAR_*], zero before. Includes the stragglers of all machines
    (`planner.cost.step.slowdown`)."""
    network = networks[machine]
    traffic = np.zeros(job.pieces, TRAFFIC_ROW)
    fill_traffic(costs, key, grid, framework, network, traffic)
    fill_passes(costs, grid, framework, traffic)
    for piece in range(job.pieces):
        piece_terms(costs[piece], traffic[piece], grid, framework, gpu, terms[piece])
    traffic_terms(traffic, key, grid, job, framework, network, terms, scalars)
    exposed_s = exposed_pipeline_seconds(costs, traffic, key, grid, job, framework, network)
    table_s = table_reduction_seconds(costs, key, grid, job, framework, network)
    scalars[SCALAR_FIXED_S] = sum(constant_seconds(framework)) + pipeline_traffic_seconds(
        exposed_s, table_s, costs, traffic, key, grid, job, framework, network
    )
    scalars[SCALAR_FIXED_S] += grid.unequal_s
    # A step is a sum of maxima of sums of these, so multiplying all of them by a factor multiplies
    # the step.
    factor = 1.0
    for at in range(networks.shape[0]):
        factor = max(factor, slowdown(key, grid, networks[at]))
    factor *= math.exp(grid.learnt)
    for column in range(terms.shape[1]):
        for piece in range(job.pieces):
            terms[piece, column] *= factor
    for column in range(scalars.shape[0]):
        scalars[column] *= factor
    scalars[SCALAR_FIXED_BYTES] = outside_bytes(key, grid, job, framework)
