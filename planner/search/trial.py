"""One changed job, searched for its fastest plan: what every relaxation and what-if rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware import HardwareError
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost_model import CostModel
from planner.errors import UsageError
from planner.evaluate import job_plan
from planner.job import Job
from planner.plan import Plan
from planner.search.costed import RECOMMENDED_FIT_PROBABILITY, CostedJob
from planner.search.explorer import TIE, Effort, Point, Rung
from planner.search.shapes import legal_candidates
from planner.search.shares import CostedShares, SharesExplorer, cost_shares

# Work for one changed job.
TRIAL_EFFORT = Effort(most_solves=16)

AlterGpu = Callable[[GpuInputs], GpuInputs]
AlterLinks = Callable[[LinkInputs], LinkInputs]


class AlteredCostModel(CostModel):
    """A cost model on hardware that differs from the catalogue's in some rates."""

    def __init__(
        self, job: Job, alter_gpu: AlterGpu | None = None, alter_links: AlterLinks | None = None
    ) -> None:
        super().__init__(job)
        plain = CostModel(job)
        self._gpu = plain.gpu_inputs if alter_gpu is None else alter_gpu(plain.gpu_inputs)
        self._links = plain.link_inputs if alter_links is None else alter_links(plain.link_inputs)

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Numbers of the altered GPU."""
        return self._gpu

    @cached_property
    def link_inputs(self) -> LinkInputs:
        """Numbers of the altered links."""
        return self._links


def cost_altered(
    job: Job, alter_gpu: AlterGpu | None = None, alter_links: AlterLinks | None = None
) -> CostedJob:
    """`cost_job` on altered hardware. UsageError if no shape is legal."""
    candidates = legal_candidates(job)
    model = AlteredCostModel(candidates.job, alter_gpu, alter_links)
    return CostedJob(candidates, model, model.cost_shapes(candidates.columns), 0.0)


@dataclass(frozen=True)
class Trial:
    """The search of one job at its memory limit. `rung.point` is None if nothing fits."""

    shares: CostedShares
    explorer: SharesExplorer
    rung: Rung

    @property
    def used_gpus(self) -> int:
        """GPUs of the plan; fewer than were given where no configuration uses all."""
        return self.shares.job.cluster.num_gpus

    @property
    def proven(self) -> bool:
        """Whether the outcome is proven, be it a plan or that there is none."""
        if self.rung.point is None:
            return bool(np.isinf(self.rung.bound))
        return self.rung.gap <= TIE

    def plan(self) -> Plan | None:
        """The fastest plan found."""
        return None if self.rung.point is None else self.plan_of(self.rung.point)

    def plan_of(self, point: Point) -> Plan:
        """The plan of a point of this search, with the gap of its rung."""
        gap, costed_job = self.rung.gap, self.shares.jobs[point.source]
        return job_plan(
            costed_job.cost_model,
            costed_job.costed,
            point.row,
            point.layout,
            costed_job.candidates.columns,
            "optimal" if gap <= TIE else "feasible",
            gap,
        )


def search_costed(
    shares: CostedShares,
    *,
    probability: float = RECOMMENDED_FIT_PROBABILITY,
    limit_bytes: float | None = None,
    effort: Effort = TRIAL_EFFORT,
) -> Trial:
    """The fastest plan of a job that fits with at least `probability`, over its costed shares.

    `limit_bytes`: a tighter limit on the predicted peak.
    """
    explorer = shares.explorer(effort, None, probability, limit_bytes)
    return Trial(shares, explorer, explorer.climb(0))


def try_job(job: Job, probability: float = RECOMMENDED_FIT_PROBABILITY) -> Trial | None:
    """Search a changed job; None if nothing is legal there."""
    try:
        return search_costed(cost_shares(job), probability=probability)
    except (UsageError, HardwareError):
        return None
