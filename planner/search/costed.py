"""A job with all its legal shapes costed: what every search starts from."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from constraints.numbers import Mask
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.cost_model import CostedShapes, CostModel
from planner.predict.shapes import Candidates, legal_candidates
from planner.predict.uncertainty.intervals import fit_probability
from planner.search.explorer import Explorer
from planner.search.limit_results import Effort

# What a plan that was given, or that a change would make fit, is at least asked for.
EVEN_CHANCE = 0.5


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

    def keep(self, rows: Mask) -> CostedJob:
        """The job with some of its shapes."""
        columns = {name: values[rows] for name, values in self.candidates.columns.items()}
        costed = replace(
            self.costed, steps=self.costed.steps[rows], shapes=self.costed.shapes[rows]
        )
        candidates = replace(self.candidates, columns=columns)
        return replace(self, candidates=candidates, costed=costed)

    def explorer(self, effort: Effort, probability: float | None = None) -> Explorer:
        """Search of this job's layouts among plans that fit with at least `probability`, or as
        surely as the job asks."""
        least = self.job.fit_probability if probability is None else probability
        return Explorer(
            self.cost_model,
            self.costed,
            self.candidates.columns,
            likely_limit_bytes(self.job, least),
            effort,
        )


def cost_job(job: Job) -> CostedJob:
    """Enumerate the legal shapes of a job and cost them. UsageError if there are none."""
    candidates = legal_candidates(job)
    return cost_candidates(candidates, CostModel(candidates.job))


def cost_candidates(candidates: Candidates, cost_model: CostModel) -> CostedJob:
    """Cost the shapes of a job."""
    # The first call of a process loads the kernels, or compiles them: not part of their speed.
    cost_model.cost_shapes({name: values[:1] for name, values in candidates.columns.items()})
    started = time.perf_counter()
    costed = cost_model.cost_shapes(candidates.columns)
    return CostedJob(candidates, cost_model, costed, time.perf_counter() - started)


def likely_limit_bytes(job: Job, probability: float) -> float:
    """Largest predicted peak that fits with `probability` or more; from an even chance on, and for
    0, at most the memory there is."""
    limit = job.hbm_limit_bytes
    if limit <= 0.0:
        raise UsageError(
            f"the reserve leaves no memory: {job.cluster.gpu.hbm_usable_bytes / 2**30:.1f} GiB "
            "are usable on each GPU; give a smaller --hbm-reserve"
        )
    low, high = 0.0, limit
    if fit_probability(job, limit, limit) >= probability:
        if probability == 0.0 or probability >= EVEN_CHANCE:
            return limit
        while fit_probability(job, high, limit) >= probability:
            low, high = high, 2.0 * high
    while high - low > 1e-6 * limit:
        middle = 0.5 * (low + high)
        if fit_probability(job, middle, limit) >= probability:
            low = middle
        else:
            high = middle
    return low
