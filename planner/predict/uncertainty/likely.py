"""The predicted memory up to which plans fit with a given probability."""

from __future__ import annotations

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.predict.plan import Plan
from planner.predict.uncertainty.intervals import fit_probability

# Least probability of fitting for plans that were given or that a change would make fit.
EVEN_CHANCE = 0.5


def likely_limit_bytes(job: Job, probability: float) -> float:
    """The largest predicted peak, in bytes, that fits into the GPU's memory with at least this
    probability. For a probability of 0 or of at least one half it is never above the memory limit;
    in between, it may be. For a pool of several kinds of machines, the least of the machines'
    values, each scaled to the largest memory (`memory_scales`)."""
    if job.pool is None:
        return _likely_bytes(job, probability)
    scaled = zip(job.machines, memory_scales(job), strict=True)
    return min(_likely_bytes(machine, probability) * scale for machine, scale in scaled)


def memory_scales(job: Job) -> tuple[float, ...]:
    """For each machine, the factor that converts its bytes to the same share of the largest
    machine's usable memory. Usable is memory up to the peak that fits with the probability that the
    job demands."""
    limits = [_likely_bytes(machine, job.fit_probability) for machine in job.machines]
    return tuple(max(limits) / limit for limit in limits)


def weighed_bytes(job: Job, plan: Plan) -> float:
    """The peak of a plan, scaled to the largest memory of its machines."""
    names = [machine.cluster.gpu.name for machine in job.machines]
    gpu = plan.stage_gpus[plan.heaviest_stage] if plan.stage_gpus else names[0]
    return plan.peak_bytes * (1.0 if job.pool is None else memory_scales(job)[names.index(gpu)])


def _likely_bytes(job: Job, probability: float) -> float:
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
        fits = fit_probability(job, middle, limit) >= probability
        low, high = (middle, high) if fits else (low, middle)
    return low
