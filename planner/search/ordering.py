"""The order in which plans are shown, and what is said of a search that was cut short."""

from __future__ import annotations

from planner.predict.plan import Plan
from planner.search.explorer import Stopped

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
