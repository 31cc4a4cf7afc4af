"""How certain it is that the chosen cluster is better than the next one.

Each figure of a choice is an upper bound at the requested certainty. Two clusters that share a
framework, and even more so a type of GPU, share part of their error. So it may be certain which is
better even if both bounds are wide (`planner.compare.differences`).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.compare.differences import days_ratio
from planner.compare.interval import Range
from planner.compare.results import Choice, ChoiceLimits, Objective, RunnerUp
from planner.predict.uncertainty.differences import Ratio


def runner_up(
    best: Choice, choices: Sequence[Choice], limits: ChoiceLimits, objective: Objective
) -> RunnerUp | None:
    """The next best choice for the same job that keeps the limits, compared with the best; None if
    there is none, or if the choices do not come from runs."""
    others = [
        one for one in choices
        if one.job == best.job and one.cluster != best.cluster and _keeps(one, limits)
        if _figure(one, objective) is not None
    ]  # fmt: skip
    value = _figure(best, objective)
    if not others or value is None or best.run is None:
        return None
    other = min(others, key=lambda one: one.bounds(limits.certainty)[objective])
    beside = _figure(other, objective)
    if beside is None or other.run is None:
        return None
    days = days_ratio(best.run, other.run)
    scale = beside.value / value.value
    low, high = (scale * end / days.value for end in (days.low, days.high))
    return RunnerUp(cluster=other.cluster, ratio=Ratio(value=scale, low=low, high=high))


def _figure(choice: Choice, objective: Objective) -> Range | None:
    """The figure of a choice that is minimised, with its interval; None for a cost that is not
    known."""
    return {"cost": choice.cost, "time": choice.days, "energy": choice.mwh}[objective]


def _keeps(choice: Choice, limits: ChoiceLimits) -> bool:
    """Whether a choice by itself keeps every limit."""
    bounds = choice.bounds(limits.certainty)
    return all(bounds[name] <= limit for name, limit in limits.given.items())
