"""The share of a job's time on a cluster that becomes lasting work, by closed forms.

Interruptions are a Poisson process: the times between them are exponential, with one rate for the
whole job. Symbols: M = mean time between interruptions of the job, d = time that a checkpoint stops
training, t = useful work between checkpoints, R = time to restart, all in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log, sqrt

from hardware.facts import load_economics
from planner.compare.settings import Settings
from planner.job.job import Job
from planner.job.optimizers import OptimizerSetting
from planner.job.quantities import DAY_S, HOUR_S
from planner.predict.cost_tables import held_classes
from planner.predict.ops.table import parameter_count
from planner.predict.optimizer_terms import moment_bytes, paged_bytes, trained_profile

_GPUS_PER_NODE_OF_RATES = 8
# Spares are suggested so that the job waits for no more than this share of the time.
MOST_WAITING = 0.01


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the time that becomes lasting work, and its parts.

    `low`, `high`: ends of its range, see `goodput`. `mtbf_s`: mean time between interruptions of
    the job. `checkpoint_s`: time for which one checkpoint stops training. `waiting`: share of the
    time spent waiting for a node. `spares`: nodes kept ready and paid for; `suggested_spares`:
    number that keeps waiting below 1 %. `by_hand`: the share if people restart the job, which takes
    hours; None if the user gave the restart time.
    """

    share: float
    low: float
    high: float
    mtbf_s: float
    state_bytes: float
    write_s: float
    checkpoint_s: float
    interval_s: float
    restart_s: float
    waiting: float
    spares: int
    suggested_spares: int
    by_hand: float | None


@dataclass(frozen=True, slots=True)
class GoodputRun:
    """The inputs of goodput: GPUs, nodes, bytes of a checkpoint, host link of a GPU."""

    gpus: int
    nodes: int
    state_bytes: float
    host_bytes_per_s: float


def run_of(job: Job) -> GoodputRun:
    cluster = job.cluster
    host_bytes_per_s = cluster.gpu.host_link_bytes_per_s_per_direction
    return GoodputRun(cluster.num_gpus, cluster.num_nodes, checkpoint_bytes(job), host_bytes_per_s)


def checkpoint_bytes(job: Job) -> float:
    """Bytes of a checkpoint: weights, master weights and optimizer state of every parameter.

    14 bytes a parameter for AdamW on 16-bit weights: BLOOM's 176 B parameters make 2.24 TiB, "2.3
    TB" in its chronicles. A state that only some parameters have is counted for all of them.
    """
    setting = OptimizerSetting(job.optimizer, job.optimizer_setting.kernel)
    profile = trained_profile(job.framework, setting)
    states = profile.state.master_bytes + moment_bytes(job.framework, setting)
    states += paged_bytes(setting)
    if job.tuning.trains_all:
        return float(parameter_count(job.model).total) * (profile.state.weight_bytes + states)
    # With adapters, frozen weights are not written.
    whole = not job.tuning.has_adapters
    return sum(
        count * (one.weights * profile.state.weight_bytes * (whole or one.states > 0.0))
        + count * one.states * states
        for one, count in held_classes(job, profile)
    )


def goodput(run: GoodputRun, settings: Settings) -> Goodput:
    """The share of useful time at the best interval between checkpoints, or at the given one.

    Failure rates are those of Llama 3's run, with automatic restarts. The range spans the lowest to
    the highest published rates (figures failure_rate_* of the catalogue), each with its best time
    between checkpoints. At its low end, restarts are as slow as published (`slowest_restart`). A
    user's MTBF and restart time are used as given.
    """
    rate = _rate(run.gpus, run.nodes, settings)
    write_s = run.state_bytes / (run.nodes * settings.value("write_bandwidth") * 1e9)
    stop_s = write_s
    if settings.asynchronous:
        stop_s = min(write_s, run.state_bytes / run.gpus / run.host_bytes_per_s)
    restart_s = settings.value("restart") + write_s
    by_hand_s = settings.value("restart_by_hand") + write_s
    low, highs = _range(run, settings)
    share = _share(rate, stop_s, write_s, restart_s, settings)
    most = _share(rate * low, stop_s, write_s, restart_s, settings)
    # A user's restart time is used as given.
    told = "restart" in settings.figures
    worst_s = {
        value: settings.value("restart") if told else slowest_restart(1.0 / value, settings)
        for value in (rate * factor for factor in highs)
    }
    least = min(
        _share(value, stop_s, write_s, longest_s + write_s, settings)
        for value, longest_s in worst_s.items()
    )
    hardware = rate * settings.value("hardware_share")
    repair_s = settings.value("repair") * HOUR_S
    waiting = 0.0
    if settings.spares is not None:
        waiting = waiting_share(hardware, repair_s, settings.spares)
    middle, most, least = (item * (1.0 - waiting) for item in (share, most, least))
    return Goodput(
        share=middle,
        low=min(least, middle),
        high=max(most, middle),
        mtbf_s=1.0 / rate,
        state_bytes=run.state_bytes,
        write_s=write_s,
        checkpoint_s=stop_s,
        interval_s=_interval(rate, stop_s, write_s, settings),
        restart_s=restart_s,
        waiting=waiting,
        spares=settings.spares or 0,
        suggested_spares=spares_for(hardware, repair_s, MOST_WAITING),
        by_hand=None
        if told
        else _share(rate, stop_s, write_s, by_hand_s, settings) * (1.0 - waiting),
    )


def _rate(gpus: int, nodes: int, settings: Settings) -> float:
    gpu_mtbf, node_mtbf = settings.value("gpu_mtbf"), settings.value("node_mtbf")
    return interruption_rate(gpus, nodes, gpu_mtbf * HOUR_S, node_mtbf * HOUR_S)


def slowest_restart(mtbf_s: float, settings: Settings) -> float:
    """The longest plausible seconds of a restart, from how often the job is interrupted.

    People restart jobs that rarely stop (OPT-175B: every 12.8 hours, 5 hours each); automation
    restarts jobs that often stop (Llama 3: every 3.1 hours, minutes each). Between these two
    published runs a power law holds, outside them the nearer run's time.
    """
    automatic, by_hand = settings.value("restart"), settings.value("restart_by_hand")
    often = settings.value("automatic_mtbf") * HOUR_S
    rarely = settings.value("by_hand_mtbf") * HOUR_S
    place = log(mtbf_s / often) / log(rarely / often)
    return automatic * exp(min(1.0, max(0.0, place)) * log(by_hand / automatic))


def _range(run: GoodputRun, settings: Settings) -> tuple[float, tuple[float, ...]]:
    """The lowest and the highest published failure rates for a run of this size, each divided by
    the rate that is assumed. There may be several highest ones. Both are 1 if the user gave the
    MTBF.

    The highest rate need not be the worst, because people restart jobs that stop less often, so
    several are tried. The very highest was measured on jobs of one size; larger ones on the same
    machines stop less often per node (accounts rsc-1-jobs and rsc-1), so it holds up to that size.
    """
    if {"gpu_mtbf", "node_mtbf"} & set(settings.figures):
        return 1.0, (1.0,)
    # Interruptions per node in 1,000 days.
    usual = _rate(_GPUS_PER_NODE_OF_RATES, 1, settings) * 1000.0 * DAY_S
    highs = tuple(settings.value(name) / usual for name in high_rates(run.gpus))
    return settings.value("failure_rate_low") / usual, highs


def high_rates(gpus: int) -> tuple[str, ...]:
    """Figures with the highest published failure rates that hold for jobs of a size, in rising
    order."""
    largest = load_economics().accounts["rsc-1-jobs"].gpus
    return ("failure_rate_by_hand", *(("failure_rate_high",) if gpus <= largest else ()))


def _interval(rate: float, stop_s: float, write_s: float, settings: Settings) -> float:
    """Seconds of work between checkpoints, long enough that a background checkpoint ends before the
    next one starts."""
    if settings.checkpoint_interval_s is not None:
        return settings.checkpoint_interval_s
    best = daly_interval(stop_s, 1.0 / rate if rate else inf)
    return max(best, write_s) if settings.asynchronous else best


def _share(
    rate: float, stop_s: float, write_s: float, restart_s: float, settings: Settings
) -> float:
    interval_s = _interval(rate, stop_s, write_s, settings)
    return useful_share(interval_s, stop_s, restart_s, 1.0 / rate)


MOST_SPARES = 100_000


def interruption_rate(gpus: int, nodes: int, gpu_mtbf_s: float, node_mtbf_s: float) -> float:
    """Interruptions per second of a job: failures of any of its GPUs, or of other parts of a
    node."""
    return gpus / gpu_mtbf_s + nodes / node_mtbf_s


def young_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Work between checkpoints that loses the least time, to first order: sqrt(2 d M).

    Young 1974, A first order approximation to the optimum checkpoint interval, CACM 17(9).
    """
    return sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Work between checkpoints that loses the least time, to higher order.

    t = sqrt(2 d M) · [1 + (1/3) sqrt(d / 2M) + (1/9) (d / 2M)] - d for d < 2M, else M. Daly 2006, A
    higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
    Computer Systems 22(3).
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    return young_interval(checkpoint_s, mtbf_s) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - (
        checkpoint_s
    )


def useful_share(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of the time that becomes lasting work.

    t / (M e^(R/M) (e^((t + d)/M) - 1)): the complete model of Daly 2006, in which restarts can fail
    too. Without interruptions t / (t + d).
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
    """The fewest spares with which the job waits for at most this share of the time."""
    mean = failures_per_s * repair_s
    if mean > 500.0:  # far from 0 the Poisson distribution is normal: 2.33 sigma leave 1 %
        return round(mean + 2.33 * sqrt(mean))
    spares = 0
    while waiting_share(failures_per_s, repair_s, spares) > most_waiting and spares < MOST_SPARES:
        spares += 1
    return spares
