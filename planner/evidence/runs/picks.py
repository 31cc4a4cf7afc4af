"""Groups in which the run ranked first was not the best: what was picked, and why.

The run ranked first was predicted to be the faster of the two, or the better one not to fit. Of the
predicted step's terms the one that favours the pick most is named: had it been as large in both,
the pick would have gained that much less. It need not be wrong, but it decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.ranking import candidates_of, first_of, measured_groups, pick_share
from planner.evidence.runs.worst import TERMS
from planner.predict.plan_text import batch_text, degrees_text

# Picks this near to the best measured throughput are as good as it.
GOOD = 0.95
MEMORY = "memory: the best was called too large"
OUT = "memory: the pick ran out"


@dataclass(frozen=True, slots=True)
class MissedPick:
    """One group: `share` as `GroupRanking.pick`; the two configurations, and what decided."""

    group: str
    runs: int
    share: float
    picked: str
    best: str
    decided_by: str


def missed_picks(predictions: Iterable[Prediction], below: float = GOOD) -> list[MissedPick]:
    """Groups whose pick reached less than `below` of the best throughput, worst first."""
    missed = []
    for group, members in measured_groups(predictions).items():
        share = pick_share(members)
        if share >= below:
            continue
        candidates = candidates_of(members)
        ran = [member for member in members if member.measured("step_time_s") is not None]
        best = min(ran, key=lambda member: member.measured("step_time_s") or float("inf"))
        pick = min(first_of(candidates), key=lambda member: -(member.measured("step_time_s") or 0))
        missed.append(
            MissedPick(
                group, len(ran), share, _text(pick), _text(best),
                _decided_by(pick, best, in_question=best in candidates),
            )
        )  # fmt: skip
    return sorted(missed, key=lambda item: item.share)


def _text(prediction: Prediction) -> str:
    """`tp2 pp2 dp8 z1 2×16, full`."""
    mapped = prediction.mapped
    if mapped is None:
        return "refused"
    dense = mapped.job.model.moe is None
    degrees = mapped.degrees.model_copy(update={"etp": 1}) if dense else mapped.degrees
    kernel = prediction.row.text("kernel")
    words = f"{degrees_text(degrees)} {batch_text(degrees)}, {mapped.mode.name}"
    return f"{words}, {kernel}" if kernel else words


def _decided_by(pick: Prediction, best: Prediction, *, in_question: bool) -> str:
    """What made the pick come first."""
    if pick.measured("step_time_s") is None:
        return OUT
    if not in_question:
        return MEMORY
    if pick.step is None or best.step is None:
        return ""
    gains = {
        name: float(best.step[column] - pick.step[column]) * 1e3 for column, name in TERMS.items()
    }
    name = max(gains, key=lambda term: gains[term])
    return f"{name}: {gains[name]:,.0f} ms less"
