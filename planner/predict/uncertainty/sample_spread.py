"""The further uncertainty of a step time if samples of different lengths are padded or packed."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log

from planner.predict.plan import Interval
from planner.predict.uncertainty.residuals import DEVIATIONS

# Standard deviation of ln(measured / predicted) for the gain from another rule of padding, packing
# or balance: root mean square of 17 published pairs of runs (torchtune, fms-acceleration;
# `docs/model/samples.md`).
SAMPLES_DEVIATION = 0.14
_HALF_WIDTH = SAMPLES_DEVIATION * DEVIATIONS


def with_unlike_samples(
    interval: Interval, step_time_s: float, others: Sequence[float]
) -> Interval:
    """The interval of a step time, s, widened by two errors: that of the rule by which rows are
    made of samples, and the distance to `others`, the step times for other distributions of lengths
    that fit the given facts equally well."""
    reason = "the spread of the lengths, of which only the mean is given"
    below = max(0.0, log(step_time_s / min(others, default=step_time_s)))
    above = max(0.0, log(max(others, default=step_time_s) / step_time_s))
    low = hypot(log(step_time_s / interval.low), below, _HALF_WIDTH)
    high = hypot(log(interval.high / step_time_s), above, _HALF_WIDTH)
    return interval.model_copy(
        update={
            "low": step_time_s * exp(-low),
            "high": step_time_s * exp(high),
            "beyond": (*interval.beyond, reason) if others else interval.beyond,
        }
    )
