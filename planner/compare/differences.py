"""How certain it is that one cluster trains a job in fewer days than another.

Both predictions come from one model of one framework and share part of their errors, so their ratio
is more certain than either of them (`planner.predict.uncertainty.differences`). Published failure
rates are too low or too high for both clusters at once, so only the difference between their
effects counts.
"""

from __future__ import annotations

from math import hypot, log

from planner.compare.goodput import Goodput
from planner.compare.results import Run
from planner.predict.uncertainty.differences import Ratio, plan_ratio, ratio_between


def days_ratio(first: Run, other: Run) -> Ratio:
    """Days of another run divided by those of the first, with the 80 % interval."""
    mixture = first.job.active_parameters < first.job.parameters
    steps = plan_ratio(first.plan, other.plan, mixture, (first.job.gpu, other.job.gpu))
    (fewer, more), (other_fewer, other_more) = map(_interruptions, (first.goodput, other.goodput))
    return ratio_between(
        other.days.value / first.days.value,
        hypot(log(steps.value / steps.low), fewer - other_fewer),
        hypot(log(steps.high / steps.value), more - other_more),
    )


def _interruptions(goodput: Goodput) -> tuple[float, float]:
    """How much shorter and how much longer than expected interruptions may make a run, both as ln
    of a ratio. If they may leave no useful time at all, the second is infinite, so the first is
    used for both."""
    fewer = log(goodput.high / goodput.share)
    return fewer, log(goodput.share / goodput.low) if goodput.low > 0.0 else fewer
