"""Words for plans whose memory may be full: the chance, the step then, the cure."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.quantities import gib, percent_sure, seconds
from planner.predict.plan import Plan

CURE = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes that less likely; a lighter plan or "
    "--hbm-reserve avoids it."
)


def limit_text(limit_bytes: float, usable_bytes: float) -> str:
    """`of 79.1`, or `of 70.0 allowed, 79.1 usable`, GiB."""
    beyond = f" allowed, {gib(usable_bytes)} usable" if limit_bytes < usable_bytes else ""
    return f"of {gib(limit_bytes)}{beyond}"


def full_memory_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The row of a plan's facts; none where memory is safe."""
    risk = plan.full_memory
    if risk is None:
        return ()
    slowly, full_s = "", risk.step_time_s
    if full_s is not None:
        times = f"{full_s / plan.step_time_s:.1f} times as long"
        slowly = f"; a step then takes {seconds(full_s)}, {times}"
    sentence = (
        f"{percent_sure(risk.probability)} chance that the memory does not suffice: torch then "
        f"frees its cache and tries again, or stops with an out-of-memory error{slowly}. "
        f"Measured: {risk.note}. {CURE}"
    )
    return (("memory full", sentence),)


def full_memory_note(plans: Sequence[tuple[int, Plan]]) -> str:
    """What follows if the plans that may not fit do not; an empty text where nothing is known."""
    at_risk = [(n, plan.full_memory) for n, plan in plans if plan.full_memory is not None]
    slow = [(n, risk, risk.step_time_s) for n, risk in at_risk if risk.step_time_s is not None]
    if not slow:
        return CURE if at_risk else ""
    listed = ", ".join(f"plan {n}: {seconds(full_s)}" for n, _, full_s in slow)
    return f"A step with full memory: {listed}. Measured: {slow[0][1].note}. {CURE}"
