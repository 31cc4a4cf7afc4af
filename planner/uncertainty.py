"""How sure a prediction is: 80 % intervals from residuals on measured runs.

ln(measured / predicted) is taken as two half normals that meet at its median, with the 10 and
90 % quantiles of the nearest measured family (`planner.residuals`): a family whose runs are slower
than predicted has an interval that reaches further up. The prediction itself lies in the interval.
"""

from __future__ import annotations

from dataclasses import replace
from math import copysign, exp, hypot, log
from statistics import NormalDist

from planner.job import Job
from planner.plan import Interval
from planner.residuals import COVERAGE, Family, Figure, Spread, shipped_spread

_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)

# Spread of what lies outside live tensors, which few of the measured peaks include: three
# published runs reserve 2.8, 3.0 and 6.5 % more than they allocate (SimuMax, B200), where one
# share is predicted; context and communication buffers differ by driver and library.
OUTSIDE_SPREAD = 0.02

# Added to a step time's spread on an architecture without a measured run. Assumed: kernel rates
# that were carried over from another architecture missed the measured ones by 10 to 20 %.
UNMEASURED_GPU_SPREAD = 0.15


def family_of(job: Job) -> Family:
    """The family of measured runs that a job belongs to."""
    inside = job.cluster.num_gpus <= job.cluster.scale_up_domain_gpus
    return Family(
        framework=job.framework.family or job.framework.name,
        architecture=job.cluster.gpu.architecture,
        scale="one domain" if inside else "several domains",
        model="moe" if job.model.moe else "dense",
    )


def spread_of(job: Job, figure: Figure, without: str = "") -> Spread:
    """Quantiles of ln(measured / predicted) for a job; `without` leaves one source out."""
    family = family_of(job)
    return widened(shipped_spread(figure, family, without), family, figure)


def widened(own: Spread, family: Family, figure: Figure) -> Spread:
    """The spread of `own` for a job of `family`: with what its residuals leave out."""
    further = _Z * _further_spread(own, family, figure)
    return replace(
        own,
        low=own.middle - hypot(own.middle - own.low, further),
        high=own.middle + hypot(own.high - own.middle, further),
    )


def _further_spread(own: Spread, family: Family, figure: Figure) -> float:
    """Standard deviation of an independent error that no residual of `own` contains."""
    if figure == "memory":
        return OUTSIDE_SPREAD
    return 0.0 if own.family.architecture == family.architecture else UNMEASURED_GPU_SPREAD


def log_bounds(own: Spread) -> tuple[float, float]:
    """Ends of the interval as ln(bound / predicted); the prediction lies in it."""
    return min(0.0, own.low), max(0.0, own.high)


def family_text(own: Spread) -> str:
    """`145 runs, dense, megatron-core on hopper, several domains`."""
    framework, architecture, scale, model = own.family
    if not any(own.family):
        return f"all {own.rows:,} measured runs: nothing nearer was measured"
    place = f" on {architecture}" if architecture else " on other GPUs"
    words = (model, f"{framework or 'other frameworks'}{place}", scale)
    noun = "run" if own.rows == 1 else "runs"
    wider = "" if own.own_share >= 0.5 else ", and wider families"
    return f"{own.rows:,} {noun}, {', '.join(word for word in words if word)}{wider}"


def step_time_interval(job: Job, step_time_s: float, without: str = "") -> Interval:
    """Where the true step time lies with 80 % probability, s."""
    return _interval(step_time_s, spread_of(job, "time", without))


def peak_interval(job: Job, peak_bytes: float, without: str = "") -> Interval:
    """Where the true peak lies with 80 % probability, bytes."""
    return _interval(peak_bytes, spread_of(job, "memory", without))


def _interval(value: float, spread: Spread) -> Interval:
    low, high = log_bounds(spread)
    return Interval(low=value * exp(low), high=value * exp(high), family=family_text(spread))


def fit_probability(job: Job, peak_bytes: float, limit_bytes: float) -> float:
    """Probability that the true peak stays within the limit."""
    if limit_bytes <= 0.0:
        return 0.0
    own = spread_of(job, "memory")
    beyond = log(limit_bytes / peak_bytes) - own.middle
    side = own.high - own.middle if beyond > 0.0 else own.middle - own.low
    if side <= 0.0:
        return 0.5 + copysign(0.5, beyond)
    return NormalDist().cdf(_Z * beyond / side)
