"""The order in which plans are shown, and what is said of a search that was cut short."""

from __future__ import annotations

from collections.abc import Sequence

from planner.predict.plan import Plan
from planner.search.front import ALIKE
from planner.search.limit_results import Stopped

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
    """Number, from 1, of the plan to take where nothing else counts: of those as fast as the
    fastest, within ALIKE, the one that is likeliest to fit; 0 without plans."""
    most = max((plan.tokens_per_s for plan in plans), default=0.0)
    fast = [(plan, n) for n, plan in enumerate(plans, 1) if plan.tokens_per_s * (1 + ALIKE) >= most]
    return max(fast, key=lambda plan: plan[0].fit_probability)[1] if fast else 0


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
