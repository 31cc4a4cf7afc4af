"""The memory of one configuration: every stage's account, the limit, and how sure it is.

What `planner memory` shows. The accounts are the cost core's, run without a compiler, and their
peaks those of `planner.evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from planner.job.job import Job
from planner.predict.configuration import Configuration
from planner.predict.memory.account import StageAccount, stage_accounts
from planner.predict.plan import Degrees, Interval
from planner.predict.uncertainty.intervals import fit_probability, peak_interval


@dataclass(frozen=True)
class Footprint:
    """Accounts of all pipeline stages of a configuration; bytes on one GPU."""

    configuration: Configuration
    stages: tuple[StageAccount, ...]

    @cached_property
    def heaviest(self) -> StageAccount:
        """The stage that decides whether the job fits: with the least room on its machine."""
        limits = [machine.hbm_limit_bytes for machine in self.configuration.job.machines]
        scales = [max(limits) / limits[machine] for machine in self.configuration.machines]
        return max(self.stages, key=lambda stage: stage.total_bytes * scales[stage.stage])

    @cached_property
    def job(self) -> Job:
        """The job on the machine of the heaviest stage."""
        machine = self.configuration.machines[self.heaviest.stage]
        return self.configuration.job.machines[machine]

    @property
    def total_bytes(self) -> float:
        """What the driver reports on the heaviest stage: live tensors and all beside them."""
        return self.heaviest.total_bytes

    @property
    def limit_bytes(self) -> float:
        """Bytes that the job may use: usable HBM less the reserve."""
        return self.job.hbm_limit_bytes

    @property
    def usable_bytes(self) -> float:
        """Bytes of HBM that a process can use."""
        return self.job.cluster.gpu.hbm_usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the predicted total stays within the limit."""
        return self.total_bytes <= self.limit_bytes

    @property
    def fit_probability(self) -> float:
        """Probability that the true total stays within the limit."""
        return fit_probability(self.job, self.total_bytes, self.limit_bytes)

    @property
    def interval(self) -> Interval:
        """Where the true total lies with 80 % probability, bytes."""
        return peak_interval(self.job, self.total_bytes)


def footprint_of(configuration: Configuration) -> Footprint:
    """The memory of a legal configuration."""
    return Footprint(configuration, stage_accounts(configuration))


def worst_expert_load(job: Job, degrees: Degrees) -> float:
    """Load of the busiest expert rank over the mean if a dropless router sends it all it can.

    A rank holds E/ep experts, so that it gets at most min(k, E/ep) of the k copies of each token
    of its ep group, where the mean is k/ep. 1 without experts or without ep.
    Symbols: E = experts, k = top_k.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    local = moe.experts / degrees.ep
    return min(float(moe.top_k), local) * degrees.ep / moe.top_k


def dropless_worst_case(configuration: Configuration) -> Footprint | None:
    """The footprint if every token of the ep group is routed to one rank; None without experts
    that are spread, or if the job already assumes as much."""
    job = configuration.job
    worst = worst_expert_load(job, configuration.degrees)
    if worst <= job.expert_imbalance:
        return None
    return footprint_of(replace(configuration, job=replace(job, expert_imbalance=worst)))
