"""Plans near full memory: how likely it is that memory fills up, and how long a step takes then.

If torch's caching allocator gets no new segment, it frees unused ones, synchronises the device and
asks again (`num_alloc_retries` of `torch.cuda.memory_stats`), and only then gives up. So a plan
whose reserved memory outgrows the GPU runs slowly or not at all. The probability follows from the
memory model's error; the seconds come from the framework's measured runs near the limit, if any
slowed down (`full_memory` of the profile). This risk is stated next to the step time and is not a
term of it: the search's proof, the kernel, its bounds and the layout solver ignore it.
"""

from __future__ import annotations

from math import exp, log

from planner.job.job import Job
from planner.job.quantities import share
from planner.predict.plan import Degrees, FullMemory, Interval
from planner.predict.uncertainty.residuals import HIGH
from planner.predict.uncertainty.tails import share_below

# Probabilities of being full, or of fitting, below this are not shown and do not widen error bars.
SMALL_CHANCE = 0.1


def full_step_time_s(job: Job, degrees: Degrees, step_time_s: float) -> float | None:
    """Seconds of a step once memory is full: each send and receive between pipeline stages takes
    longer by the profile's `exchange_s` (`exchange_wait_s`). None if no measured run of the
    framework was slower then, or if there is only one stage."""
    from planner.cost.pipeline import exchange_wait_s

    wait_s = job.framework.full_memory.exchange_s
    if degrees.tp > 2 * job.cluster.scale_up_domain_gpus:
        # Such a stage waits even with memory to spare.
        wait_s -= job.framework.kernels.wide_stage_wait_s
    if wait_s <= 0.0 or degrees.pp == 1:
        return None
    return step_time_s + float(exchange_wait_s(wait_s, degrees.pp, degrees.grad_acc))


def full_memory(
    job: Job, degrees: Degrees, step_time_s: float, fit_probability: float
) -> FullMemory | None:
    """The risk that a configuration fills memory: its probability, and the step time then. None if
    the probability is negligible, if it is so high that the plan hardly fits, or if the allocator
    is not torch's."""
    known, chance = job.framework.full_memory, 1.0 - fit_probability
    if not SMALL_CHANCE <= chance <= 1.0 - SMALL_CHANCE or known.allocator != "torch":
        return None
    return FullMemory(
        probability=chance,
        step_time_s=full_step_time_s(job, degrees, step_time_s),
        note=known.evidence or "no run near the limit",
    )


def full_memory_notes(risk: FullMemory | None) -> tuple[str, ...]:
    """One note: the step time assumes spare memory, with the probability that memory is full and
    the seconds of a step then. Empty if there is no such risk or no measured run was slower near
    the limit."""
    if risk is None or risk.step_time_s is None:
        return ()
    return (
        f"the step time assumes spare memory; if memory is full (probability "
        f"{share(risk.probability, 0)}), a step takes {risk.step_time_s:.3g} s",
    )


def with_full_memory(
    interval: Interval, step_time_s: float, full_s: float | None, chance: float
) -> Interval:
    """The interval with its upper end at the 90 % quantile of both outcomes together; the lower end
    stays.

    (1 - p) F(x) + p F(x · t/full), where F is the distribution above the prediction in ln(x) whose
    90 % quantile is the interval's upper end.
    """
    if full_s is None or not SMALL_CHANCE <= chance <= 1.0 - SMALL_CHANCE:
        return interval
    width, ratio = log(interval.high / step_time_s), log(full_s / step_time_s)

    def below(log_ratio: float) -> float:
        return (1.0 - chance) * _share(log_ratio, width) + chance * _share(log_ratio - ratio, width)

    low, high = width, width + ratio
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < HIGH else (low, middle)
    return interval.model_copy(update={"high": step_time_s * exp(high)})


def _share(log_ratio: float, width: float) -> float:
    """Distribution function of ln(true / predicted) whose 90 % quantile is `width`."""
    return share_below(log_ratio / width) if width > 0.0 else float(log_ratio >= 0.0)
