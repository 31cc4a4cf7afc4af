"""A job with all its legal shapes costed: what every search starts from."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from constraints.numbers import Mask
from planner.job.job import Job
from planner.predict.altered_model import AlteredModel, Factors
from planner.predict.cost_model import CostedShapes, CostModel
from planner.predict.shapes import Candidates, legal_candidates
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search.explorer import Explorer
from planner.search.limit_results import Effort


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


def cost_job(job: Job, factors: Factors | None = None) -> CostedJob:
    """Enumerate the legal shapes of a job and cost them, with `factors` on the hardware's numbers.
    UsageError if there are none."""
    candidates = legal_candidates(job)
    job = candidates.job
    return cost_candidates(candidates, AlteredModel(job, factors) if factors else CostModel(job))


def cost_candidates(candidates: Candidates, cost_model: CostModel) -> CostedJob:
    """Cost the shapes of a job."""
    # The first call of a process loads the kernels, or compiles them: not part of their speed.
    cost_model.cost_shapes({name: values[:1] for name, values in candidates.columns.items()})
    started = time.perf_counter()
    costed = cost_model.cost_shapes(candidates.columns)
    return CostedJob(candidates, cost_model, costed, time.perf_counter() - started)
