"""From a job on a cluster to the share of its time that becomes lasting work."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

from hardware import load_economics
from planner.compare import reliability
from planner.compare.settings import Settings
from planner.job.job import Job
from planner.job.optimizers import OptimizerSetting
from planner.predict.ops import parameter_count
from planner.predict.optimizer_terms import moment_bytes, trained_profile

HOUR_S = 3600.0
DAY_S = 86400.0
_GPUS_PER_NODE_OF_RATES = 8
# Spares are suggested so that the job waits for no more than this share of the time.
MOST_WAITING = 0.01


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the time that becomes lasting work, and what it is made of.

    `low`, `high`: ends of its range, see `goodput`.
    `mtbf_s`: mean time between interruptions of the job. `checkpoint_s`: time for which one
    checkpoint stops training. `waiting`: share of the time spent waiting for a node.
    `spares`: nodes kept ready and paid for; `suggested_spares`: that keep waiting below 1 %.
    `by_hand`: the share if people restart the job, which takes hours; None where the user said how
    long it takes.
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
class Run:
    """What goodput depends on: GPUs, nodes, bytes of a checkpoint, host link of a GPU."""

    gpus: int
    nodes: int
    state_bytes: float
    host_bytes_per_s: float


def run_of(job: Job) -> Run:
    """The run of a job."""
    cluster = job.cluster
    return Run(
        gpus=cluster.num_gpus,
        nodes=cluster.num_nodes,
        state_bytes=checkpoint_bytes(job),
        host_bytes_per_s=cluster.gpu.host_link_bytes_per_s_per_direction,
    )


def checkpoint_bytes(job: Job) -> float:
    """Bytes of a checkpoint: weights, master weights and optimizer state of every parameter.

    14 bytes a parameter for AdamW on 16-bit weights: BLOOM's 176 B parameters make 2.24 TiB,
    "2.3 TB" in its chronicles. A state that only some parameters have counts for all of them.
    """
    setting = OptimizerSetting(job.optimizer, job.optimizer_setting.kernel)
    state = trained_profile(job.framework, setting).state
    per_parameter = state.weight_bytes + state.master_bytes + moment_bytes(job.framework, setting)
    return float(parameter_count(job.model).total) * per_parameter


def goodput(run: Run, settings: Settings) -> Goodput:
    """The share of useful time at the best interval between checkpoints, or at the one given.

    Rates are those of Llama 3's run, with automatic restarts. The interval runs from the lowest
    to the highest rates that anyone published (figures failure_rate_* of the catalogue), each with
    its own best time between checkpoints; at its low end restarts are as slow as published
    (`slowest_restart`). A user's own MTBF and restart time are taken at their word.
    """
    rate = _rate(run, settings)
    write_s = run.state_bytes / (run.nodes * settings.value("write_bandwidth") * 1e9)
    stop_s = write_s
    if settings.asynchronous:
        stop_s = min(write_s, run.state_bytes / run.gpus / run.host_bytes_per_s)
    restart_s = settings.value("restart") + write_s
    by_hand_s = settings.value("restart_by_hand") + write_s
    low, highs = _range(run, settings)
    share = _share(rate, stop_s, write_s, restart_s, settings)
    most = _share(rate * low, stop_s, write_s, restart_s, settings)
    least = min(
        _share(value, stop_s, write_s, _worst_restart_s(value, settings) + write_s, settings)
        for value in (rate * factor for factor in highs)
    )
    hardware = rate * settings.value("hardware_share")
    repair_s = settings.value("repair") * HOUR_S
    waiting = 0.0
    if settings.spares is not None:
        waiting = reliability.waiting_share(hardware, repair_s, settings.spares)
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
        suggested_spares=reliability.spares_for(hardware, repair_s, MOST_WAITING),
        by_hand=None
        if "restart" in settings.figures
        else _share(rate, stop_s, write_s, by_hand_s, settings) * (1.0 - waiting),
    )


def _rate(run: Run, settings: Settings) -> float:
    return reliability.interruption_rate(
        run.gpus,
        run.nodes,
        settings.value("gpu_mtbf") * HOUR_S,
        settings.value("node_mtbf") * HOUR_S,
    )


def slowest_restart(mtbf_s: float, settings: Settings) -> float:
    """Seconds that a restart takes at worst, by how often the job is interrupted.

    Jobs that stop rarely are restarted by people (OPT-175B: every 12.8 hours, 5 hours each), those
    that stop often by automation (Llama 3: every 3.1 hours, minutes each); between these two
    published runs a power law, beyond them as they are.
    """
    automatic, by_hand = settings.value("restart"), settings.value("restart_by_hand")
    often = settings.value("automatic_mtbf") * HOUR_S
    rarely = settings.value("by_hand_mtbf") * HOUR_S
    place = log(mtbf_s / often) / log(rarely / often)
    return automatic * exp(min(1.0, max(0.0, place)) * log(by_hand / automatic))


def _worst_restart_s(rate: float, settings: Settings) -> float:
    """Seconds of a restart at the low end of the range; a user's own time is taken at its word."""
    if "restart" in settings.figures:
        return settings.value("restart")
    return slowest_restart(1.0 / rate, settings)


def _range(run: Run, settings: Settings) -> tuple[float, tuple[float, ...]]:
    """Factors on the failure rate: lowest published, and the highest published for such runs.

    Several of these, since the highest need not be the worst: jobs that stop less often are
    restarted by people. The very highest was measured on jobs of one size; larger ones on the same
    machines stop less often a node (accounts rsc-1-jobs and rsc-1), so it holds up to that size.
    """
    if {"gpu_mtbf", "node_mtbf"} & set(settings.figures):
        return 1.0, (1.0,)
    usual = usual_node_rate(settings) * 1000.0 * DAY_S
    highs = tuple(settings.value(name) / usual for name in high_rates(run.gpus))
    return settings.value("failure_rate_low") / usual, highs


def high_rates(gpus: int) -> tuple[str, ...]:
    """Figures with the highest published failure rates that hold for jobs of a size, rising."""
    largest = load_economics().accounts["rsc-1-jobs"].gpus
    return ("failure_rate_by_hand", *(("failure_rate_high",) if gpus <= largest else ()))


def usual_node_rate(settings: Settings) -> float:
    """Interruptions per second of a node of eight GPUs."""
    return reliability.interruption_rate(
        _GPUS_PER_NODE_OF_RATES,
        1,
        settings.value("gpu_mtbf") * HOUR_S,
        settings.value("node_mtbf") * HOUR_S,
    )


def _interval(rate: float, stop_s: float, write_s: float, settings: Settings) -> float:
    """Work between checkpoints; one in the background is finished before the next starts."""
    if settings.checkpoint_interval_s is not None:
        return settings.checkpoint_interval_s
    best = reliability.daly_interval(stop_s, 1.0 / rate if rate else inf)
    return max(best, write_s) if settings.asynchronous else best


def _share(
    rate: float, stop_s: float, write_s: float, restart_s: float, settings: Settings
) -> float:
    interval_s = _interval(rate, stop_s, write_s, settings)
    return reliability.useful_share(interval_s, stop_s, restart_s, 1.0 / rate)
