"""The order in which plans are shown, and what is said of a search that was cut short."""

from __future__ import annotations

from collections.abc import Sequence

from planner.predict.plan import Plan
from planner.search.front import ALIKE
from planner.search.limit_results import Stopped

# Probabilities of fitting that differ by less are not told apart: each rests on few measured
# peaks.
AS_SURE = 0.05

# What plans may be sorted by: whether more is better.
SORT_KEYS: dict[str, bool] = {
    "tokens_per_s": True,
    "tokens_per_s_per_gpu": True,
    "mfu": True,
    "fit_probability": True,
    "step_time_s": False,
    "peak_bytes": False,
}


def sort_value(plan: Plan, sort: str) -> float:
    """A plan's place in an order by one of SORT_KEYS: smaller comes first."""
    value = float(getattr(plan, sort))
    return -value if SORT_KEYS[sort] else value


def recommended(plans: Sequence[Plan]) -> int:
    """Number, from 1, of the plan to take where nothing else counts; 0 without plans.

    Of the plans as fast as the fastest, within ALIKE, the fastest that fits as surely as any of
    them, within AS_SURE: a layer recomputed or twenty chunks a stage are not worth a point of it.
    """
    most = max((plan.tokens_per_s for plan in plans), default=0.0)
    fast = [(plan, n) for n, plan in enumerate(plans, 1) if plan.tokens_per_s * (1 + ALIKE) >= most]
    surest = max((plan.fit_probability for plan, _ in fast), default=0.0)
    sure = [(plan, n) for plan, n in fast if plan.fit_probability >= surest - AS_SURE]
    return max(sure, key=lambda plan: plan[0].tokens_per_s)[1] if sure else 0


def stop_notes(stopped: Stopped, time_limit_s: float | None) -> tuple[str, ...]:
    """That the search was cut short."""
    if stopped == "time-limit":
        return (
            f"stopped by the time limit of {time_limit_s:g} s, with layouts left to solve; this is "
            "the best front so far",
        )
    if stopped == "interrupted":
        return ("interrupted, with layouts left to solve; this is the best front so far",)
    return ()
