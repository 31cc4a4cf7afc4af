"""Lower bounds on the step time of a shape over all its layouts, under a memory limit.

Tighter than `planner.cost.step_bounds`: layers are indivisible, and each stage has its own
constants and micro-batches in flight. A stage whose forward and backward may take T seconds has
room for a certain number of layers; the smallest T for which these add up to all layers bounds the
slowest stage from below. For models with one kind of layer and no exposed dp traffic the bound is
attained. With several kinds it is the largest of several bounds: one for all layers, in which each
term is that of its cheapest kind, and for each kind one for its layers, in which other layers cost
nothing.

With several machines a stage has the seconds and the memory of its machine. The sum over all layers
takes each on the machine where it is fastest.
"""

from __future__ import annotations

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.columns import greatest, least, weighted
from planner.cost.frame import same_stages
from planner.cost.linear import (
    SCALAR_COLUMNS,
    SCALAR_FIXED_BYTES,
    SCALAR_FIXED_S,
    TERM_BACKWARD,
    TERM_COLUMNS,
    TERM_FORWARD,
    TERM_OPTIMIZER,
    TERM_RECOMPUTE,
    TERM_WEIGHT,
    layout_terms,
)
from planner.cost.linear_memory import (
    no_maxima,
    phase_bytes,
    stage_layers,
    vocab_counts,
)
from planner.cost.phase_passes import exists, fullest_pass
from planner.cost.phase_records import (
    GROUP_ROW,
    LAYER,
    MTP,
    OPTIMIZER,
    Pass,
    largest_of,
)
from planner.cost.phases import at_rest
from planner.cost.schedule import (
    Held,
    copies_of_model,
    held_microbatches,
    microbatch_share,
)
from planner.cost.stage import fill_kept, layer_maxima
from planner.cost.stage_parameters import fill_parameters
from planner.cost.step import model_bubble_share
from planner.cost.step_bounds import mixed_bubble_share
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
STAGE_VOCAB = 2
STAGE_OPTIMIZER_BYTES = 3
STAGE_FLIGHT = 4
STAGE_DEFERRED = 5
STAGE_BOUND_COLUMNS = 6

# --- what one stage can hold under a memory limit ------------------------------------------------
CAPACITY_SECONDS = 0
CAPACITY_LAYERS = 1
CAPACITY_PLAIN = 2
CAPACITY_FREED_S = 3
CAPACITY_SLOPE = 4
CAPACITY_LAYER_S = 5
CAPACITY_COLUMNS = 6

# Number of times that the interval around the slowest stage's time is halved.
BISECTIONS = 40
# Slack for the rounding of divisions that should come out whole.
WHOLE = 1e-9


@jit
def layer_bytes(
    kind: int, holds: Rows, costs: Rows, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[float, float, float]:  # fmt: skip
    """Bytes that one layer adds to a stage: (in a layer's backward, besides tensors that
    micro-batches keep; in the update; of gathered weights, if it is the largest layer). `holds`: an
    entry of `stage_layers` without ends."""
    fullest = fullest_pass(Held(1.0, 0.0, 1.0, 0.0, 1.0, 0.0), grid.grad_acc, framework)
    zero, one = no_maxima(), Pass(0.0, fullest.accumulates, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    empty, plain, again = holds[0], holds[2 + kind], holds[2 + job.kinds + kind]
    empty_rest = at_rest(empty, key, grid, job, framework)
    plain_rest = at_rest(plain, key, grid, job, framework)
    again_rest = at_rest(again, key, grid, job, framework)
    base = phase_bytes(LAYER, empty_rest, empty, zero, one, key, grid, job, framework)
    held = min(
        phase_bytes(LAYER, plain_rest, plain, zero, one, key, grid, job, framework),
        phase_bytes(LAYER, again_rest, again, zero, one, key, grid, job, framework),
    )
    update = phase_bytes(OPTIMIZER, plain_rest, plain, zero, one, key, grid, job, framework)
    update -= phase_bytes(OPTIMIZER, empty_rest, empty, zero, one, key, grid, job, framework)
    largest = largest_of(layer_maxima(costs[kind], 1.0, 0.0, key, grid, framework))
    gather = phase_bytes(LAYER, empty_rest, empty, largest, one, key, grid, job, framework)
    return held - base, update, gather - base


@jit
def layer_columns(
    terms: Array, recompute: int, costs: Rows, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs, out: Array,
) -> None:  # fmt: skip
    """Fill LAYER_* for every kind of layer; `recompute` is a RECOMPUTE_* code."""
    counts = np.zeros((job.pieces, 1))
    holds = stage_layers(0, costs, counts, key, grid, job, framework)
    share = microbatch_share(framework.schedule)
    for kind in range(job.kinds):
        term, cost = terms[kind], costs[kind]
        again = term[TERM_RECOMPUTE] if recompute == RECOMPUTE_ALL else 0.0
        held, update, gather = layer_bytes(kind, holds, costs, key, grid, job, framework)
        plain = layer_maxima(cost, 1.0, 0.0, key, grid, framework)
        remade = layer_maxima(cost, 0.0, 1.0, key, grid, framework)
        out[kind, LAYER_SECONDS] = share * (term[TERM_FORWARD] + term[TERM_BACKWARD] + again)
        out[kind, LAYER_RECOMPUTE] = share * max(term[TERM_RECOMPUTE], 0.0)
        out[kind, LAYER_PERSISTENT] = held
        out[kind, LAYER_SAVED] = cost.saved
        out[kind, LAYER_SAVED_RECOMPUTED] = min(cost.saved, cost.saved_recomputed)
        out[kind, LAYER_WORKING] = plain.working
        out[kind, LAYER_WORKING_RECOMPUTED] = remade.working_again
        out[kind, LAYER_OPTIMIZER_BYTES] = update
        out[kind, LAYER_GATHER] = gather
        out[kind, LAYER_WEIGHT_SAVED] = cost.weight_saved


@jit
def empty_stages(
    terms: Array, costs: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    place: Array, machine: int, stages: Array,
) -> None:  # fmt: skip
    """Fill STAGE_* for every stage of a machine as if it had no layers: the cost of embedding, head
    and MTP. `stages` is zero before."""
    pp = int(grid.pp)
    counts = vocab_counts(pp, job, framework.schedule, 0.0)
    share = microbatch_share(framework.schedule)
    zero, nothing = no_maxima(), np.zeros(counts.shape)
    holds, known = np.zeros(1, GROUP_ROW)[0], -1
    for stage in range(pp):
        if int(place[stage]) != machine:
            continue
        held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
        fullest = fullest_pass(held, grid.grad_acc, framework)
        if known < 0 or not same_stages(known, stage, counts):
            fill_parameters(stage, counts, costs, grid, job, framework, holds)
            known = stage
        fill_kept(stage, float(stage), counts, nothing, costs, key, grid, job, framework, holds)
        rest = at_rest(holds, key, grid, job, framework)
        base = phase_bytes(LAYER, rest, holds, zero, fullest, key, grid, job, framework)
        stages[stage, STAGE_FLIGHT] = fullest.in_flight
        stages[stage, STAGE_DEFERRED] = fullest.deferred
        stages[stage, STAGE_BYTES] = base
        stages[stage, STAGE_OPTIMIZER_BYTES] = phase_bytes(
            OPTIMIZER, rest, holds, zero, fullest, key, grid, job, framework
        )
        for phase in range(MTP + 1):
            if exists(phase, holds, fullest, grid, framework):
                size = phase_bytes(phase, rest, holds, zero, fullest, key, grid, job, framework)
                stages[stage, STAGE_VOCAB] = max(stages[stage, STAGE_VOCAB], size - base)
        for piece in range(job.kinds, job.pieces):
            seconds = terms[piece, TERM_FORWARD] + terms[piece, TERM_BACKWARD]
            stages[stage, STAGE_SECONDS] += share * counts[piece, stage] * seconds


@jit
def shape_parts(
    grid: Row, recompute: int, key: Row, costs: Rows, job: JobInputs, frameworks: Rows,
    gpus: Rows, networks: Rows, place: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Parts of the bounds of a shape: (terms[piece, TERM_*] on the machine where they are least,
    scalars[machine, SCALAR_*], stages[stage, STAGE_*] without layers, layers[machine, kind,
    LAYER_*])."""
    machines = frameworks.shape[0]
    lowest, scalars = np.zeros((job.pieces, TERM_COLUMNS)), np.zeros((machines, SCALAR_COLUMNS))
    stages = np.zeros((int(grid.pp), STAGE_BOUND_COLUMNS))
    layers = np.zeros((machines, job.kinds, LAYER_COLUMNS))
    for at in range(machines):
        terms = lowest if at == 0 else np.zeros((job.pieces, TERM_COLUMNS))
        framework = frameworks[at]
        layout_terms(
            grid, key, costs[at], job, framework, gpus[at], networks, at, terms, scalars[at]
        )
        empty_stages(terms, costs[at], key, grid, job, framework, place, at, stages)
        layer_columns(terms, recompute, costs[at], key, grid, job, framework, layers[at])
        for piece in range(job.pieces if at > 0 else 0):
            for column in range(TERM_COLUMNS):
                lowest[piece, column] = min(lowest[piece, column], terms[piece, column])
    return lowest, scalars, stages, layers


@jit
def whole(value: float) -> float:
    """Largest integer not above `value`; a value just below an integer counts as that integer."""
    return float(np.floor(value + WHOLE * max(1.0, abs(value))))


@jit
def fill_capacity(
    stage: Array, layer: Array, recompute: int, limit_bytes: float, capacity: Array
) -> None:  # fmt: skip
    """Fill CAPACITY_*, the inputs of `layers_within`, for a stage under `limit_bytes` of live
    bytes."""
    capacity[CAPACITY_LAYER_S] = layer[LAYER_SECONDS]
    flight, most = stage[STAGE_FLIGHT], np.inf
    if layer[LAYER_OPTIMIZER_BYTES] > 0.0:
        most = (limit_bytes - stage[STAGE_OPTIMIZER_BYTES]) / layer[LAYER_OPTIMIZER_BYTES]
    always = layer[LAYER_PERSISTENT] + stage[STAGE_DEFERRED] * layer[LAYER_WEIGHT_SAVED]
    plain = always + flight * layer[LAYER_SAVED]
    light = always + flight * layer[LAYER_SAVED_RECOMPUTED]
    busy = LAYER_WORKING_RECOMPUTED if recompute == RECOMPUTE_ALL else LAYER_WORKING
    left = limit_bytes - stage[STAGE_BYTES]
    left -= max(stage[STAGE_VOCAB], layer[busy] + layer[LAYER_GATHER])
    freed = plain - light
    capacity[CAPACITY_SECONDS] = stage[STAGE_SECONDS]
    capacity[CAPACITY_LAYERS] = min(most, left / (plain if recompute == RECOMPUTE_NONE else light))
    capacity[CAPACITY_PLAIN], capacity[CAPACITY_FREED_S], capacity[CAPACITY_SLOPE] = (
        np.inf,
        0.0,
        1.0,
    )
    if recompute == RECOMPUTE_SOME and freed > 0.0:
        capacity[CAPACITY_PLAIN] = left / plain
        capacity[CAPACITY_FREED_S] = layer[LAYER_RECOMPUTE] * left / freed
        capacity[CAPACITY_SLOPE] = layer[LAYER_SECONDS] + layer[LAYER_RECOMPUTE] * plain / freed


@jit
def layers_within(capacity: Array, seconds: float) -> float:
    """Most layers that a stage can run within `seconds` and within the memory of its capacity.

    If r of n layers recompute, n·a - r·d has to fit the memory, and n·t + r·q the time; r need not
    be an integer here (a relaxation). Negative if not even 0 layers fit.
    """
    time_left = seconds - capacity[CAPACITY_SECONDS]
    most = min(capacity[CAPACITY_LAYERS], time_left / capacity[CAPACITY_LAYER_S])
    if most > capacity[CAPACITY_PLAIN]:
        # n·t + q·(n·a - left)/d = time_left.
        balanced = (time_left + capacity[CAPACITY_FREED_S]) / capacity[CAPACITY_SLOPE]
        most = min(most, max(balanced, capacity[CAPACITY_PLAIN]))
    return whole(most)


@jit
def fewest_layers(stage: int, pp: int, vpp: float, standalone_vocab: float) -> float:
    """Fewest layers of a stage: one in each of its `vpp` blocks; one less for the first and the
    last stage if `standalone_vocab`.

    `standalone_vocab`: whether the first block may contain only the embedding, and the last only
    the head. It has no effect without a pipeline (pp 1).
    """
    if standalone_vocab > 0.0 and pp > 1 and stage in (0, pp - 1):
        return vpp - 1.0
    return vpp


@jit
def layers_fit(
    capacities: Array, seconds: float, layers: float, vpp: float, standalone_vocab: float
) -> bool:
    """Whether all `layers` can be placed on the stages, if each stage stays within its memory and
    takes at most `seconds` for one micro-batch. False too if a stage has no room for its fewest
    layers (`fewest_layers`)."""
    total, pp = 0.0, capacities.shape[0]
    for stage in range(pp):
        most = layers_within(capacities[stage], seconds)
        if most < fewest_layers(stage, pp, vpp, standalone_vocab):
            return False
        total += most
    return total >= layers


@jit
def slowest_stage_bound_s(
    stages: Array, place: Array, cheapest: Array, recompute: int, live_bytes: Array, layers: float,
    vpp: float, standalone_vocab: float, low_s: float, wider: Array, capacities: Array,
) -> float:  # fmt: skip
    """Lower bound on the seconds of the slowest stage, at least `low_s`; infinite if the layers do
    not fit.

    `cheapest[machine, LAYER_*]`: a layer. `live_bytes[machine]`: room for live tensors. `vpp`:
    fewest layers of a stage, except for `standalone_vocab` (`fewest_layers`). `capacities`: working
    array [stage, CAPACITY_*].

    `wider`: the interval that `least_slowest_s` found under a memory limit no smaller than this
    one, in seconds (0 before the first). The answer is never below it, and is the same if memory
    does not bind. It is replaced if a new interval is found.
    """
    if low_s == np.inf:
        return low_s
    for stage in range(stages.shape[0]):
        at = int(place[stage])
        fill_capacity(stages[stage], cheapest[at], recompute, live_bytes[at], capacities[stage])
    known_s, enough_s = float(wider[0]), float(wider[1])
    if enough_s > 0.0 and low_s <= known_s:
        if layers_fit(capacities, enough_s, layers, vpp, standalone_vocab):
            return known_s
        low_s = enough_s
    layer_s = 0.0
    for at in range(cheapest.shape[0]):
        layer_s = max(layer_s, cheapest[at, LAYER_SECONDS] + cheapest[at, LAYER_RECOMPUTE])
    high_s = layer_s * layers + low_s
    high_s += greatest(stages, STAGE_SECONDS)
    return least_slowest_s(capacities, layers, vpp, standalone_vocab, low_s, high_s, wider)


@jit
def least_slowest_s(
    capacities: Array, layers: float, vpp: float, standalone_vocab: float, low_s: float,
    high_s: float, between: Array,
) -> float:  # fmt: skip
    """Least seconds within which every stage can finish when all layers are placed, found by
    bisection: at least `low_s`; infinite if even `high_s` is not enough.

    If there is an answer, `between` is set to the last interval of the bisection, in seconds: the
    layers do not fit at its lower end, which is returned, but do at its upper end. Both ends are
    `low_s` if that is enough.
    """
    if not layers_fit(capacities, high_s, layers, vpp, standalone_vocab):
        return np.inf
    if layers_fit(capacities, low_s, layers, vpp, standalone_vocab):
        between[0], between[1] = low_s, low_s
        return low_s
    for _ in range(BISECTIONS):
        middle_s = 0.5 * (low_s + high_s)
        if layers_fit(capacities, middle_s, layers, vpp, standalone_vocab):
            high_s = middle_s
        else:
            low_s = middle_s
    between[0], between[1] = low_s, high_s
    return low_s


@jit
def model_seconds(terms: Array, totals: Array, recompute: int, job: JobInputs) -> float:
    """Forward and backward seconds of one micro-batch through the whole model. Includes
    recomputation only if all layers recompute (RECOMPUTE_ALL)."""
    total_s = 0.0
    for piece in range(job.pieces):
        term = terms[piece]
        seconds = term[TERM_FORWARD] + term[TERM_BACKWARD]
        if recompute == RECOMPUTE_ALL and piece < job.kinds:
            seconds += term[TERM_RECOMPUTE]
        total_s += totals[piece] * seconds
    return total_s


@jit
def shape_bubble_share(
    grid: Row, terms: Array, totals: Array, total_s: float, recompute: int,
    framework: FrameworkInputs, machines: int,
) -> float:  # fmt: skip
    """A lower bound on `model_bubble_share` over all layouts of a shape. It is lower still if any
    number of layers may recompute (RECOMPUTE_SOME), or if stages are on several machines
    (`mixed_bubble_share`)."""
    forward_s = weighted(totals, terms, TERM_FORWARD)
    weight_s = weighted(totals, terms, TERM_WEIGHT)
    lower = recompute == RECOMPUTE_SOME
    share = model_bubble_share(forward_s, total_s, weight_s, grid, framework, lower)
    return mixed_bubble_share(share, framework.schedule) if machines > 1 else share


@jit
def cheapest_layers(layers: Array, kinds: int) -> Array:
    """[kind, machine, LAYER_*] of each kind of layer, followed by the minima over all kinds."""
    machines = layers.shape[0]
    cheapest = np.zeros((1 + kinds, machines, LAYER_COLUMNS))
    for at in range(machines):
        for column in range(LAYER_COLUMNS):
            cheapest[kinds, at, column] = least(layers[at], column)
            for kind in range(kinds):
                cheapest[kind, at, column] = layers[at, kind, column]
    return cheapest


@jit
def live_room(limit_bytes: float, scalars: Array, frameworks: Rows, gpus: Rows, out: Array) -> None:
    """Fill out[machine]: bytes for live tensors under a limit on reserved memory, context included.
    `limit_bytes` is for the GPU with the largest memory; other machines get less in proportion to
    theirs."""
    for at in range(out.shape[0]):
        limit = limit_bytes / gpus[at].memory_scale - scalars[at, SCALAR_FIXED_BYTES]
        out[at] = limit / (1.0 + frameworks[at].fragmentation)


@jit
def layout_bounds_s(
    grid: Row, recompute: int, limits_bytes: Array, key: Row, costs: Rows,
    totals: Array, job: JobInputs, frameworks: Rows, gpus: Rows, networks: Rows, place: Array,
    out: Array,
) -> None:  # fmt: skip
    """Fill one bound per memory limit (reserved bytes of the largest memory, context included).
    This is quickest if the limits fall."""
    framework, machines = frameworks[0], frameworks.shape[0]
    terms, scalars, stages, layers = shape_parts(
        grid, recompute, key, costs, job, frameworks, gpus, networks, place
    )
    pp, vpp, grad_acc = grid.pp, grid.vpp, grid.grad_acc
    total_s = model_seconds(terms, totals, recompute, job)
    share = shape_bubble_share(grid, terms, totals, total_s, recompute, framework, machines)
    copies = copies_of_model(framework.schedule, pp)
    rest_s = weighted(totals, terms, TERM_OPTIMIZER) / pp
    fixed_s = greatest(scalars, SCALAR_FIXED_S)
    cheapest = cheapest_layers(layers, job.kinds)
    wider, capacities = np.zeros((1 + job.kinds, 2)), np.zeros((stages.shape[0], CAPACITY_COLUMNS))
    live_bytes = np.zeros(machines)
    for index in range(limits_bytes.shape[0]):
        if index > 0 and limits_bytes[index] > limits_bytes[index - 1]:
            for row in range(1 + job.kinds):
                wider[row, 0], wider[row, 1] = 0.0, 0.0
        live_room(limits_bytes[index], scalars, frameworks, gpus, live_bytes)
        slowest_s = slowest_stage_bound_s(
            stages, place, cheapest[job.kinds], recompute, live_bytes, copies * job.layers, vpp,
            job.standalone_vocab, total_s / pp, wider[job.kinds], capacities,
        )  # fmt: skip
        if job.kinds > 1:
            for kind in range(job.kinds):
                slowest_s = slowest_stage_bound_s(
                    stages, place, cheapest[kind], recompute, live_bytes, copies * totals[kind],
                    0.0, 0.0, slowest_s, wider[kind], capacities,
                )  # fmt: skip
        out[index] = np.inf
        if slowest_s < np.inf:
            span_s = grad_acc * slowest_s + share * (total_s - slowest_s)
            out[index] = span_s + rest_s + fixed_s
