"""Time of a pipelined step, from the times of its stages; pure functions, in seconds."""

from __future__ import annotations

from planner.cost._jit import jit


@jit
def pipeline_time_s(slowest_s: float, total_s: float, grad_acc: float, share: float) -> float:
    """Span of a pipelined step: T = m·max + r·(sum - max).

    m micro-batches pass the slowest stage one after the other; filling and draining costs the share
    r of the other stages once (`planner.cost.schedule.bubble_share`): all of it under 1F1B, 1/v in
    chunks (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2, whose even stages give m·T +
    (p-1)·T/v), less if weight gradients fill the bubble. `slowest_s`, `total_s`: forward plus
    backward seconds of one micro-batch, of the slowest stage and of all stages. Ignores the
    different order of forward and backward within a cycle.
    """
    return grad_acc * slowest_s + share * (total_s - slowest_s)


@jit
def all_forward_first_s(
    slowest_forward_s: float, slowest_backward_s: float, total_s: float, grad_acc: float
) -> float:
    """Span of GPipe: sum + (m-1)(max forward + max backward); exact for any times of the stages.

    Two permutation flow shops of equal jobs, one after the other: the last stage starts its
    backward passes when it ends the forward ones (Huang et al. 2019, arXiv 1811.06965, Figure 2).
    """
    return total_s + (grad_acc - 1.0) * (slowest_forward_s + slowest_backward_s)


@jit
def pipeline_bound_s(
    total_s: float, largest_piece_s: float, pp: float, grad_acc: float, share: float
) -> float:
    """Lower bound on the span over all splits of `total_s` into pp stages.

    The slowest stage takes at least the mean, and at least as long as its largest indivisible
    piece; T grows with it because m >= r.
    """
    slowest = max(total_s / pp, largest_piece_s)
    return grad_acc * slowest + share * (total_s - slowest)


@jit
def exposed_transfer_s(
    transfer_s: float, pp: float, vpp: float, grad_acc: float, hidden_share: float
) -> float:
    """Seconds of a step that the busiest stage waits for transfers between stages; 0 without a
    pipeline.

    `transfer_s`: seconds of one transfer. Every micro-batch crosses each boundary once forward and
    once backward, v times when interleaved. Filling and draining crosses each of the p-1 boundaries
    once in each direction and cannot hide that. Only the interleaved schedule runs transfers at the
    same time as compute: the share `hidden_share` of those outside filling and draining.
    """
    if pp <= 1.0:
        return 0.0
    hidden = hidden_share if vpp > 1.0 else 0.0
    steady = 2.0 * grad_acc * vpp * transfer_s * (1.0 - hidden)
    return steady + 2.0 * (pp - 1.0) * transfer_s


@jit
def exchanges(pp: float) -> float:
    """Sends and receives of the busiest stage for one micro-batch, forward and backward: one of
    each with its only neighbour, or with both."""
    if pp <= 1.0:
        return 0.0
    return 2.0 if pp <= 2.0 else 4.0


@jit
def exchange_wait_s(wait_s: float, pp: float, grad_acc: float) -> float:
    """Seconds of a step that the busiest stage waits in addition to its transfers: m · exchanges ·
    wait, with m micro-batches and `exchanges` for each.

    `wait_s`: seconds of waiting at each send or receive, at any size. Ignores filling and draining.
    """
    return grad_acc * exchanges(pp) * wait_s
