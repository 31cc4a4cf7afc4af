"""A job with all its legal shapes costed: what every search starts from."""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.cost_model import CostedShapes, CostModel
from planner.errors import UsageError
from planner.job import Job
from planner.search.explorer import Effort, Explorer, Progress
from planner.search.shapes import Candidates, legal_candidates
from planner.uncertainty import fit_probability

# Plans less likely to fit than this are not recommended, even if they fit nominally.
LEAST_FIT_PROBABILITY = 0.5


@dataclass(frozen=True)
class CostedJob:
    """A job with every legal shape costed in its even layout; `seconds`: of the kernel."""

    candidates: Candidates
    cost_model: CostModel
    costed: CostedShapes
    seconds: float

    @property
    def job(self) -> Job:
        """The job, on the GPUs that are used."""
        return self.candidates.job

    def explorer(self, effort: Effort, progress: Progress | None = None) -> Explorer:
        """Search of this job's layouts within the memory that a recommended plan may use."""
        return Explorer(
            self.cost_model,
            self.costed,
            self.candidates.columns,
            recommended_limit_bytes(self.job),
            effort,
            progress,
        )


def cost_job(job: Job) -> CostedJob:
    """Enumerate the legal shapes of a job and cost them. UsageError if there are none."""
    candidates = legal_candidates(job)
    cost_model = CostModel(candidates.job)
    started = time.perf_counter()
    costed = cost_model.cost_shapes(candidates.columns)
    return CostedJob(candidates, cost_model, costed, time.perf_counter() - started)


def recommended_limit_bytes(job: Job) -> float:
    """Largest predicted peak within the limit that fits with LEAST_FIT_PROBABILITY or more."""
    limit = job.hbm_limit_bytes
    if limit <= 0.0:
        raise UsageError(
            f"the reserve leaves no memory: {job.cluster.gpu.hbm_usable_bytes / 2**30:.1f} GiB "
            "are usable on each GPU; give a smaller --hbm-reserve"
        )
    if fit_probability(job, limit, limit) >= LEAST_FIT_PROBABILITY:
        return limit
    low, high = 0.0, limit
    while high - low > 1e-6 * limit:
        middle = 0.5 * (low + high)
        if fit_probability(job, middle, limit) >= LEAST_FIT_PROBABILITY:
            low = middle
        else:
            high = middle
    return low
