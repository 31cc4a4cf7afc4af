"""Differences between plans in words: `3.1 % slower, -1 to +7 %`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.job.quantities import number_ranges, share
from planner.predict.uncertainty.differences import Ratio, plan_ratio
from planner.report.plan_table import Numbered
from planner.search.result import JobSummary

# Most ties that are compared one by one.
_MOST_COMPARED = 3


def is_mixture(job: JobSummary) -> bool:
    """Whether the job's model is a mixture of experts."""
    return job.active_parameters < job.parameters


def ratio_text(ratio: Ratio) -> str:
    """How much slower or faster a plan is than another, with the 80 % interval: `3.1 % slower, -1
    to +7 %`."""
    return f"{share(abs(ratio.value - 1.0))} {slower_or_faster(ratio)}, {ends_text(ratio)}"


def beside_text(ratio: Ratio) -> str:
    """The same difference for use inside a sentence: `3.1 % (-1 to +7 %) slower`."""
    size = share(abs(ratio.value - 1.0))
    return f"{size} ({ends_text(ratio)}) {slower_or_faster(ratio)}"


def slower_or_faster(ratio: Ratio) -> str:
    """`slower` or `faster`."""
    return "slower" if ratio.value >= 1.0 else "faster"


def ends_text(ratio: Ratio) -> str:
    """The ends of the interval of a difference in whole percent, counted in the direction of its
    value: for a plan that is slower, positive means slower; for one that is faster, positive means
    faster. `-1 to +7 %`, `2 to 7 %`."""
    sign = 1.0 if ratio.value >= 1.0 else -1.0
    low, high = sorted(round(100.0 * sign * (end - 1.0)) for end in (ratio.low, ratio.high))
    return f"{low} to {high} %" if low >= 0 else f"{low:+d} to {high:+d} %"


def gain_text(ratio: Ratio) -> str:
    """How much a change raises tokens/s, with the 80 % interval: `+4 %, -3 to +11 %`. `ratio`:
    tokens/s after the change divided by tokens/s before it."""
    ends = (ratio.value, ratio.low, ratio.high)
    value, low, high = (round(100.0 * (end - 1.0)) for end in ends)
    return f"{value:+d} %, {low:+d} to {high:+d} %"


def ties(plans: Numbered, mixture: bool, gpus: Sequence[str] = ()) -> dict[int, Ratio]:
    """Plans that may be as fast as the first: their seconds per token, divided by the first's, have
    an 80 % interval that reaches down to 1 or below. These ratios are given by plan number; the
    dictionary is empty if there are none. `gpus`: the GPU type of each plan, if they differ."""
    if not plans:
        return {}
    types = gpus or [""] * len(plans)
    (_, first), *others = plans
    ratios = {
        number: plan_ratio(first, plan, mixture, (types[0], types[index]))
        for index, (number, plan) in enumerate(others, start=1)
    }
    return {number: ratio for number, ratio in ratios.items() if ratio.low <= 1.0}


def tie_note(first: int, near: Mapping[int, Ratio]) -> str:
    """A sentence about plans that are not surely slower than plan `first`: it gives the difference
    for a few of them and the numbers of the others. `near`: their ratios, as `ties` returns them.
    Empty if there are none."""
    if not near:
        return ""
    listed = sorted(near, key=lambda number: near[number].value)
    compared = sorted(listed[:_MOST_COMPARED])
    said = "; ".join(f"plan {number} is {ratio_text(near[number])}" for number in compared)
    others = sorted(listed[_MOST_COMPARED:])
    verb = "is plan" if len(others) == 1 else "are plans"
    also = f"; nor {verb} {number_ranges(others)}" if others else ""
    return f"≈ Not surely slower than plan {first}: {said}{also}."
