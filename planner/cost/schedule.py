"""Pipeline schedules in closed form: idle time of each stage, and micro-batches in its memory.

Every form equals the result of `planner.predict.pipeline_simulator`, which plays the schedule pass
by pass. Symbols: p = pp, v = vpp, m = grad_acc, s = stage from 0; F, B, W: seconds of forward,
gradient of the inputs, gradient of the weights of one micro-batch.

Sources: GPipe (Huang et al. 2019, arXiv 1811.06965), 1F1B and interleaving (Narayanan et al. 2021,
arXiv 2104.04473, section 2.2), ZB-H1, ZB-H2, ZB-V (Qi et al. 2024, arXiv 2401.10241, sections 2, 4
and 6), DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, Table 2).
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import jit

# 1F1B, interleaved if vpp > 1.
SCHEDULE_1F1B = 0
SCHEDULE_ALL_FORWARD_FIRST = 1
SCHEDULE_ZB_H1 = 2
SCHEDULE_ZB_H2 = 3
SCHEDULE_ZB_V = 4
SCHEDULE_DUALPIPE = 5
SCHEDULE_DUALPIPE_V = 6


@jit
def is_folded(schedule: int) -> bool:
    """Whether the chunks form a V: block b on stage min(b, 2p-1-b), the head on stage 0."""
    return schedule in (SCHEDULE_ZB_V, SCHEDULE_DUALPIPE_V)


@jit
def splits_backward(schedule: int, pp: float) -> bool:
    """Whether gradients of weights are made separately from gradients of inputs."""
    return pp > 1.0 and schedule >= SCHEDULE_ZB_H1


@jit
def copies_of_model(schedule: int, pp: float) -> float:
    """Number of copies of the model on all stages of a pipeline together: 2 under DualPipe with
    several stages, otherwise 1."""
    return 2.0 if pp > 1.0 and schedule == SCHEDULE_DUALPIPE else 1.0


@jit
def head_stage(schedule: int, pp: int) -> int:
    """Stage of the LM head; with two copies of the model (DualPipe) stage 0 has one as well."""
    return 0 if is_folded(schedule) else pp - 1


@jit
def block_stage(block: int, pp: int, schedule: int) -> int:
    """Stage of a block of layers in the first copy of the model."""
    if is_folded(schedule) and block >= pp:
        return 2 * pp - 1 - block
    return block % pp


@jit
def microbatch_share(schedule: int) -> float:
    """Share of the micro-batches that pass through each copy of the model: half under DualPipe."""
    return 0.5 if schedule == SCHEDULE_DUALPIPE else 1.0


@jit
def boundary_passes(schedule: int, pp: float, vpp: float, grad_acc: float) -> float:
    """Compute that can hide a stage's traffic at one end of the step, in passes of one micro-batch
    over all its layers: 1, or (v-1)·min(p, m) / v for interleaved schedules.

    Chunks then run p micro-batches in turn: gradients of a chunk are final, and sent, while the
    chunks before it still run backward, and weights of a chunk are gathered while those before it
    run forward (Megatron-LM core 0.19, pipeline_parallel/schedules.py: grad_sync_func and
    param_sync_func). Only the share `boundary_hideable` of the traffic has this compute to hide
    behind.
    """
    if schedule != SCHEDULE_1F1B or vpp <= 1.0:
        return 1.0
    return (vpp - 1.0) * min(pp, grad_acc) / vpp


@jit
def boundary_hideable(schedule: int, vpp: float) -> float:
    """Share of a stage's traffic at one end of the step that may be hidden: all of it, or (v-1)/v
    for interleaved schedules, because the traffic of the first chunk is sent when everything has
    run."""
    return 1.0 if schedule != SCHEDULE_1F1B or vpp <= 1.0 else 1.0 - 1.0 / vpp


@jit
def zero_bubble_s(
    forward_s: float, input_s: float, weight_s: float,
    schedule: int, pp: float, vpp: float, grad_acc: float, floor: float,
) -> float:  # fmt: skip
    """Idle seconds of a stage under ZB-H1, ZB-H2 or ZB-V with even stages.

        ZB-H1, ZB-H2: ((p-1)(F+B) - min(m·v - 1, r(p-1))·min(W, F)) / v,  r = 1, 2
        ZB-V:         (p-1)(B - W)

    At least 0; or with `floor` 1, if all stages wait for each other before the optimizer (no
    post-validation; section 4), at least (p-1)F/v, for ZB-V (p-1)·max(F, B)/2. For m > r(p-1) and W
    <= F these are the bubbles of 2401.10241, Table 2: (p-1)(F+B-W) and (p-1)(F+B-2W). ZB-V is valid
    for m >= 2p-1 and W <= B.
    """
    others = pp - 1.0
    if schedule == SCHEDULE_ZB_V:
        least = floor * max(forward_s, input_s) / 2.0
        return others * max(least, input_s - weight_s)
    rounds = 2.0 if schedule == SCHEDULE_ZB_H2 else 1.0
    deferred = min(grad_acc * vpp - 1.0, rounds * others)
    idle = others * (forward_s + input_s) - deferred * min(weight_s, forward_s)
    return max(floor * others * forward_s, idle) / vpp


@jit
def dual_bubble_s(
    forward_s: float, input_s: float, weight_s: float, schedule: int, pp: float, floor: float
) -> float:
    """Idle seconds of a stage under DualPipe or DualPipeV with even stages.

    With the seconds of one chunk (DualPipe: those of a stage of one copy; DualPipeV: half) and k =
    p/2 - 1 (DualPipe) or p - 1 (DualPipeV):

        max(k(2F+B-W), k(F+2B-W) - F, 2kF)

    `floor` 0 leaves out the first and the last, whose share of the step may fall as B grows. arXiv
    2412.19437, Table 2, gives k(F&B + B' - 3W) with B' = B + W and F&B = F + B': k(F+2B-W), which
    is the same for F = B and an upper bound for F <= B. The gain of DualPipe, expert traffic hidden
    behind the other direction's compute, is in the exposed seconds of a chunk, not here.
    """
    chunks = 0.5 * pp if schedule == SCHEDULE_DUALPIPE else pp
    share = 1.0 if schedule == SCHEDULE_DUALPIPE else 0.5
    forward, back, weight = share * forward_s, share * input_s, share * weight_s
    inner = max(0.0, chunks - 1.0)
    first = inner * (2.0 * forward + back - weight)
    second = inner * (forward + 2.0 * back - weight) - forward
    return max(0.0, floor * first, second, floor * 2.0 * inner * forward)


@jit
def bubble_share(
    forward_s: float, input_s: float, weight_s: float,
    schedule: int, pp: float, vpp: float, grad_acc: float, post_validation: float,
    lower: bool,
) -> float:  # fmt: skip
    """Idle seconds of a stage, over the seconds that a micro-batch spends on the other stages.

    `forward_s`, `input_s`, `weight_s`: of one micro-batch on all stages together; only their ratios
    matter. 1F1B and GPipe: 1; interleaved: 1/v; the others at most 1, see `zero_bubble_s` and
    `dual_bubble_s`. `lower`: a bound that is valid for any longer `input_s`, without the terms that
    do not grow with it.
    """
    total_s = forward_s + input_s + weight_s
    if pp <= 1.0 or total_s <= 0.0:
        return 0.0
    if schedule == SCHEDULE_1F1B:
        return 1.0 / vpp
    if schedule == SCHEDULE_ALL_FORWARD_FIRST:
        return 1.0
    forward, back, weight = forward_s / pp, input_s / pp, weight_s / pp
    if schedule in (SCHEDULE_DUALPIPE, SCHEDULE_DUALPIPE_V):
        floor = 0.0 if lower else 1.0
        idle = dual_bubble_s(forward, back, weight, schedule, pp, floor)
    else:
        floor = 0.0 if lower or post_validation > 0.0 else 1.0
        idle = zero_bubble_s(forward, back, weight, schedule, pp, vpp, grad_acc, floor)
    return idle / ((pp - 1.0) * total_s / pp)


@jit
def chunks_in_flight(stage: float, pp: float, grad_acc: float, schedule: int) -> float:
    """Chunks in flight if a stage has two: ZB-V min(2p, 2m, m+s+1), DualPipe p+1, DualPipeV
    2p+1."""
    if schedule == SCHEDULE_ZB_V:
        return min(2.0 * pp, 2.0 * grad_acc, grad_acc + stage + 1.0)
    return pp + 1.0 if schedule == SCHEDULE_DUALPIPE else 2.0 * pp + 1.0


@jit
def microbatches_in_flight(
    stage: float, pp: float, vpp: float, grad_acc: float, schedule: int
) -> float:
    """Micro-batches whose activations are on a stage at its peak, in units of the whole stage.

    1F1B: min(m, p-s). GPipe: m. ZB-H2: min(m, 2(p-s) - 1). Counted in chunks, a v-th of the stage:
    interleaved min(m·v, 2(p-s-1) + (v-1)p + 1), ZB-H1 min(m·v, v·p - s); with two chunks a stage
    see `chunks_in_flight`.
    """
    if pp <= 1.0:
        return 1.0
    if schedule == SCHEDULE_ALL_FORWARD_FIRST:
        return grad_acc
    if schedule >= SCHEDULE_ZB_V:
        return chunks_in_flight(stage, pp, grad_acc, schedule) / 2.0
    chunks = vpp * pp - stage
    if schedule == SCHEDULE_ZB_H2 or (schedule == SCHEDULE_1F1B and vpp > 1.0):
        # Twice the warm-up of 1F1B.
        chunks += pp - stage - 1.0
    return min(grad_acc * vpp, chunks) / vpp


class Held(NamedTuple):
    """Micro-batches in a stage's memory at two moments, in units of the whole stage.

    `full`, `deferred`: at the moment with the most micro-batches between forward and backward,
    these and those that then have only W left. `late_full`, `late_deferred`: the same at the moment
    with the most W left. `head`: micro-batches between forward and backward of the modules that end
    the stage's last chunk (the head and its loss, or multi-token prediction away from it);
    `head_deferred`: those whose head has only W left.
    """

    full: float
    deferred: float
    late_full: float
    late_deferred: float
    head: float
    head_deferred: float


@jit
def last_chunk_in_flight(stage: float, pp: float, vpp: float, grad_acc: float) -> float:
    """Micro-batches between forward and backward of a stage's last chunk under 1F1B.

    min(m, p-s), or min(m, p, 2(p-s-1) + 1) interleaved: after 2(p-s-1) + (v-1)p forward passes,
    p in turn of each chunk, every further one is followed by a backward (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2).
    """
    if vpp > 1.0:
        return min(grad_acc, pp, 2.0 * (pp - stage - 1.0) + 1.0)
    return min(grad_acc, pp - stage)


@jit
def held_microbatches(stage: float, pp: float, vpp: float, grad_acc: float, schedule: int) -> Held:
    """The `Held` of a stage. W deferred, in chunks: ZB-H1 s, ZB-H2 2s (2401.10241, section 2.3: the
    peak is (p-s)·M_B + s·M_W and (2p-2s-1)·M_B + 2s·M_W, M_B and M_W being the memory of a
    micro-batch for B and for W); ZB-V, DualPipe and DualPipeV defer only as the step ends."""
    full = microbatches_in_flight(stage, pp, vpp, grad_acc, schedule)
    if pp <= 1.0:
        return Held(full, 0.0, full, 0.0, 1.0, 0.0)
    if schedule == SCHEDULE_1F1B:
        return Held(full, 0.0, full, 0.0, last_chunk_in_flight(stage, pp, vpp, grad_acc), 0.0)
    if schedule == SCHEDULE_ALL_FORWARD_FIRST:
        return Held(full, 0.0, full, 0.0, grad_acc, 0.0)
    if schedule in (SCHEDULE_ZB_H1, SCHEDULE_ZB_H2):
        rounds = 2.0 if schedule == SCHEDULE_ZB_H2 else 1.0
        chunks = grad_acc * vpp
        most = min(rounds * stage, chunks)
        deferred = min(most, chunks - full * vpp)
        late = min(full * vpp, chunks - most)
        return Held(full, deferred / vpp, late / vpp, most / vpp, 1.0, most / vpp)
    if schedule == SCHEDULE_ZB_V:
        most = min(2.0 * stage + 1.0, 2.0 * grad_acc)
        late = min(pp - stage - 1.0, 2.0 * grad_acc - most)
        return Held(full, 0.0, late / 2.0, most / 2.0, 1.0, most / 2.0)
    rank, ranks = stage, pp
    if schedule == SCHEDULE_DUALPIPE:
        rank, ranks = min(stage, pp - 1.0 - stage), pp / 2.0
    late, most = ranks - rank - 1.0, rank + 1.0
    return Held(full, 0.0, late / 2.0, most / 2.0, 1.0, most / 2.0)
