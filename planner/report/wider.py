"""What the error bars of plans are wider for, each reason said once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from planner.job.quantities import number_ranges
from planner.predict.plan import Plan

# Plans with the numbers by which the reader knows them.
Numbered = Sequence[tuple[int, Plan]]
_EXPOSED = re.compile(r"(\d+) % of the step")


def beyond_text(plans: Numbered, numbered: bool) -> str:
    """What the error bars are wider for, with the plans that it holds for unless all."""
    holders: dict[str, set[int]] = defaultdict(set)
    shares: dict[str, set[int]] = defaultdict(set)
    for index, (_, plan) in enumerate(plans):
        for text in plan.step_time.beyond:
            # Plans differ in how much they expose; the rest of the sentence is the same.
            reason = _EXPOSED.sub("{} % of the step", text, count=1)
            shares[reason].update(int(share) for share in _EXPOSED.findall(text)[:1])
            holders[reason].add(index)
    texts = [
        _with_shares(reason, shares[reason])
        if len(held) == len(plans)
        else f"{_with_shares(reason, shares[reason])} ({_holders(plans, held, numbered)})"
        for reason, held in holders.items()
    ]
    said = f" Wider because nothing like it was measured: {'; '.join(texts)}."
    return said if texts else ""


def _with_shares(reason: str, shares: set[int]) -> str:
    """A reason with its share of the step, or from the least to the most of several."""
    ends = dict.fromkeys((min(shares), max(shares))) if shares else ()
    return reason.replace("{}", " to ".join(map(str, ends)))


def _holders(plans: Numbered, held: set[int], numbered: bool) -> str:
    return numbered_plans([plans[index][0] for index in sorted(held)]) if numbered else "some plans"


def numbered_plans(numbers: Sequence[int]) -> str:
    """`plan 3`, `plans 1-4`."""
    return ("plan " if len(numbers) == 1 else "plans ") + number_ranges(numbers)
