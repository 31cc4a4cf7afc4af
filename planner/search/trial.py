"""One changed job, searched for its fastest plan: what every relaxation and what-if rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from constraints.rule import Layout
from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.altered_model import AlteredModel, Factors
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.shapes import legal_candidates
from planner.search.costed import CostedJob, cost_candidates
from planner.search.limit_results import Effort, LimitResult
from planner.search.shares import CostedShares, SharesExplorer, cost_shares

# Work for one changed job.
TRIAL_EFFORT = Effort(most_solves=16, most_work_s=4.0)


def cost_altered(job: Job, factors: Factors) -> CostedJob:
    """`cost_job` with factors on the hardware's numbers. UsageError if no shape is legal."""
    candidates = legal_candidates(job)
    return cost_candidates(candidates, AlteredModel(candidates.job, factors))


@dataclass(frozen=True)
class Trial:
    """The search of one job at its memory limit. `limit_result.point` is None if nothing fits."""

    shares: CostedShares
    explorer: SharesExplorer
    limit_result: LimitResult

    @property
    def used_gpus(self) -> int:
        """GPUs of the plan; fewer than were given where no configuration uses all."""
        return self.shares.job.cluster.num_gpus

    @property
    def proven(self) -> bool:
        """Whether the outcome is proven, be it a plan or that there is none."""
        if self.limit_result.point is None:
            return bool(np.isinf(self.limit_result.bound))
        return self.limit_result.gap <= OPTIMAL_WITHIN

    def plan(self) -> Plan | None:
        """The fastest plan found."""
        point = self.limit_result.point
        return None if point is None else self.shares.plan(point, self.limit_result.gap)


def search_costed(
    shares: CostedShares,
    *,
    probability: float | None = None,
    limit_bytes: float | None = None,
    effort: Effort = TRIAL_EFFORT,
    known: Sequence[tuple[int, int, Layout]] = (),
) -> Trial:
    """The fastest plan of a job that fits with at least `probability` (as the job asks), over its
    costed shares.

    `limit_bytes`: a tighter limit on the predicted peak. `known`: (index into `shares.jobs`, row,
    layout) to beat.
    """
    explorer = shares.explorer(effort, None, probability, limit_bytes)
    for one_explorer in explorer.explorers:
        # Only the first limit is climbed: no bounds are needed below it.
        one_explorer.limits = one_explorer.limits[:1]
    for source, row, layout in known:
        one_explorer = explorer.explorers[source]
        one_explorer.solved.append(one_explorer.cost(row, layout))
    return Trial(shares, explorer, explorer.climb(0))


def try_job(job: Job, probability: float | None = None) -> Trial | None:
    """Search a changed job; None if nothing is legal there."""
    try:
        return search_costed(cost_shares(job), probability=probability)
    except (UsageError, HardwareError):
        return None
