"""Time of a pipelined step from the times of its stages; pure functions, seconds in and out."""

from __future__ import annotations

from planner.cost._jit import jit


@jit
def pipeline_time_s(slowest_s: float, total_s: float, grad_acc: float, vpp: float) -> float:
    """Span of a 1F1B schedule: T = m·max + (sum - max)/v.

    m micro-batches pass the slowest stage one after the other; filling and draining costs the
    other stages once, in chunks of 1/v under interleaving (Narayanan et al. 2021, arXiv
    2104.04473, section 2.2.2, whose even stages give m·T + (p-1)·T/v). `slowest_s`, `total_s`:
    forward plus backward seconds of one micro-batch, of the slowest stage and of all stages.
    Ignores the different order of forward and backward within a cycle.
    """
    return grad_acc * slowest_s + (total_s - slowest_s) / vpp


@jit
def pipeline_bound_s(
    total_s: float, largest_piece_s: float, pp: float, grad_acc: float, vpp: float
) -> float:
    """No split of `total_s` over pp stages has a shorter span.

    The slowest stage takes at least the mean, and at least as long as its largest indivisible
    piece; T grows with it because m >= 1/v.
    """
    slowest = max(total_s / pp, largest_piece_s)
    return grad_acc * slowest + (total_s - slowest) / vpp


@jit
def exposed_transfer_s(
    transfer_s: float, pp: float, vpp: float, grad_acc: float, hidden_share: float
) -> float:
    """Point-to-point time that the critical stage waits for.

    Every micro-batch crosses each boundary once forward and once backward, v times when
    interleaved; filling and draining pays each of the p-1 boundaries once each way and cannot
    hide. Only the interleaved schedule runs transfers beside compute.
    """
    if pp <= 1.0:
        return 0.0
    hidden = hidden_share if vpp > 1.0 else 0.0
    steady = 2.0 * grad_acc * vpp * transfer_s * (1.0 - hidden)
    return steady + 2.0 * (pp - 1.0) * transfer_s
