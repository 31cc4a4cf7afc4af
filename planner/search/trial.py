"""Search one changed job for its fastest plan. Every relaxation and what-if uses this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from constraints.errors import ConstraintError
from constraints.rule import Layout
from hardware.errors import HardwareError
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.calibrated import Factors
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.search.limit_results import Effort, LimitResult
from planner.search.shares import CostedShares, SharesExplorer, cost_job, cost_shares

# Work for one changed job.
TRIAL_EFFORT = Effort(most_solves=16, most_work_s=4.0)


# A known layout: index into `CostedShares.jobs`, row, layout.
Known = tuple[int, int, Layout]


@dataclass(frozen=True)
class Trial:
    """The search of one job at its memory limit. `limit_result.point` is None if nothing fits."""

    shares: CostedShares
    explorer: SharesExplorer
    limit_result: LimitResult

    @property
    def proven(self) -> bool:
        """Whether the outcome, a plan or none, is proven."""
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
    known: Iterable[Known] = (),
) -> Trial:
    """The fastest plan of a job that fits with at least `probability` (default: as the job asks),
    over its costed choices.

    `limit_bytes`: a tighter limit on the predicted peak. `known`: layouts to beat.
    """
    explorer = shares.explorer(effort, None, probability, limit_bytes)
    for one_explorer in explorer.explorers:
        # Only the first limit is examined, so no bounds are needed below it.
        one_explorer.limits = one_explorer.limits[:1]
    for source, row, layout in known:
        one_explorer = explorer.explorers[source]
        one_explorer.solved.append(one_explorer.cost(row, layout))
    return Trial(shares, explorer, explorer.climb(0))


def try_job(
    make: Callable[[], Job],
    levels: Sequence[float | None] = (None,),
    *,
    gpus: int | Literal["any", "all"] = "any",
    factors: Factors | None = None,
    limit_bytes: float | None = None,
    effort: Effort = TRIAL_EFFORT,
    known: Callable[[CostedShares], Iterable[Known]] | None = None,
) -> Trial | None:
    """Search a changed job; None if nothing is legal there, or another number of GPUs than `gpus`
    is used.

    `levels`: probabilities of fitting; the first one with which a plan is found counts. `factors`:
    applied to the hardware's numbers. The others: see `search_costed`.
    """
    try:
        job = make()
        shares = cost_shares(job, partial(cost_job, factors=factors), effort.deadline)
    except (UsageError, HardwareError, ConstraintError):
        return None
    wanted = job.cluster.num_gpus if gpus == "all" else gpus
    if wanted not in ("any", shares.job.cluster.num_gpus):
        return None
    for probability in levels:
        trial = search_costed(
            shares,
            probability=probability,
            limit_bytes=limit_bytes,
            effort=effort,
            known=known(shares) if known else (),
        )
        if trial.limit_result.point is not None:
            break
    return trial
