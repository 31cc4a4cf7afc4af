"""How often a job is interrupted, and what share of its time is useful: closed forms.

Interruptions are a Poisson process: exponential times between them, one rate for the whole job.
Symbols: M = mean time between interruptions of the job, d = time that a checkpoint stops
training, t = useful work between checkpoints, R = time to restart, all in seconds.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

MOST_SPARES = 100_000


def interruption_rate(gpus: int, nodes: int, gpu_mtbf_s: float, node_mtbf_s: float) -> float:
    """Interruptions per second of a job: of any of its GPUs, or of what else a node has."""
    return gpus / gpu_mtbf_s + nodes / node_mtbf_s


def young_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Work between checkpoints that loses least time, to first order: sqrt(2 d M).

    Young 1974, A first order approximation to the optimum checkpoint interval, CACM 17(9).
    """
    return sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Work between checkpoints that loses least time, to higher order.

    t = sqrt(2 d M) · [1 + (1/3) sqrt(d / 2M) + (1/9) (d / 2M)] - d for d < 2M, else M.
    Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22(3).
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    return young_interval(checkpoint_s, mtbf_s) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - (
        checkpoint_s
    )


def useful_share(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of the time that becomes lasting work.

    t / (M e^(R/M) (e^((t + d)/M) - 1)): the complete model of Daly 2006, in which restarts can
    fail as well. Without interruptions t / (t + d).
    """
    if mtbf_s == inf:
        return interval_s / (interval_s + checkpoint_s)
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if exponent > 500.0 or restart_s / mtbf_s > 500.0:
        return 0.0
    return interval_s / (mtbf_s * exp(restart_s / mtbf_s) * expm1(exponent))


def waiting_share(failures_per_s: float, repair_s: float, spares: int) -> float:
    """Share of the time in which more nodes are in repair than there are spares.

    Nodes in repair are Poisson distributed with mean = failure rate · repair time, whatever the
    distribution of repair times (M/G/infinity queue; Palm's theorem).
    """
    mean = failures_per_s * repair_s
    term = exp(-mean)
    below = term
    for count in range(1, spares + 1):
        term *= mean / count
        below += term
    return max(0.0, 1.0 - below)


def spares_for(failures_per_s: float, repair_s: float, most_waiting: float) -> int:
    """Fewest spares with which the job waits for at most this share of the time."""
    mean = failures_per_s * repair_s
    if mean > 500.0:  # far from 0 the Poisson distribution is normal: 2.33 sigma leave 1 %
        return round(mean + 2.33 * sqrt(mean))
    spares = 0
    while waiting_share(failures_per_s, repair_s, spares) > most_waiting and spares < MOST_SPARES:
        spares += 1
    return spares
