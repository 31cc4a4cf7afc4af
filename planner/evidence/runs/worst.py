"""The rows that are predicted worst, with what the prediction is made of; and the groups in which
the run ranked first was not the best, with what was picked and why.

The run ranked first was predicted to be the faster of the two, or the better one not to fit. Of the
predicted step's terms the one that favours the pick most is named: had it been as large in both,
the pick would have gained that much less. It need not be wrong, but it decided.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from planner.cost import fields as f
from planner.evidence.runs.predict import Prediction, assumed
from planner.evidence.runs.ranking import candidates_of, first_of, measured_groups, pick_share
from planner.evidence.runs.report import time_comparison, time_error
from planner.predict.plan_text import batch_text, degrees_text

WORST_ROWS = 10
# Terms of a step by their column, in the words of a table.
TERMS = {
    f.STEP_COMPUTE: "compute",
    f.STEP_RECOMPUTE: "recompute",
    f.STEP_TP: "TP",
    f.STEP_CP: "CP",
    f.STEP_EP: "EP",
    f.STEP_FSDP: "FSDP gathers",
    f.STEP_PP: "PP traffic",
    f.STEP_BUBBLE: "bubble",
    f.STEP_DP: "DP traffic",
    f.STEP_OPTIMIZER: "optimizer",
    f.STEP_STRAGGLERS: "stragglers",
    f.STEP_HOST: "host",
}
_SMALLEST_SHARE = 0.05
_SHOWN_REMEDIES = 2
# Fewer sister rows than this show no pattern.
_FEWEST_SISTERS = 3
# Errors of sisters on the same side and this near in size make it a pattern.
_PATTERN = 0.5


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One row: where it stands, its times in seconds, and why it may be wrong."""

    file: str
    line: int
    source: str
    description: str
    measured_s: float
    predicted_s: float
    error: float
    terms: tuple[tuple[str, float], ...]
    why: str


def worst_rows(predictions: Sequence[Prediction], count: int = WORST_ROWS) -> list[WorstRow]:
    """Rows with the largest |ln(measured / predicted)|, so that half and double weigh the same."""
    errors = [
        (abs(math.log1p(error)), index)
        for index, prediction in enumerate(predictions)
        if (error := time_error(prediction)) is not None
    ]
    sisters = _errors_by_group(predictions)
    worst = sorted(errors, key=lambda error: (-error[0], error[1]))[:count]
    return [_worst_row(predictions[index], sisters) for _, index in worst]


def _worst_row(prediction: Prediction, sisters: dict[tuple[str, ...], list[float]]) -> WorstRow:
    row, comparison = prediction.row, time_comparison(prediction)
    if comparison is None:
        raise ValueError(f"{row.file} line {row.line} has no step time to compare")
    return WorstRow(
        file=row.file,
        line=row.line,
        source=row.source,
        description=describe(prediction),
        measured_s=comparison.measured,
        predicted_s=comparison.predicted,
        error=comparison.error,
        terms=terms(prediction),
        why=_why(prediction, comparison.error, sisters[_sister_group(prediction)]),
    )


def describe(prediction: Prediction) -> str:
    """`Llama-8B, 64xH100-80GB, nanotron, tp4 pp2 dp8 z1, 2×16`."""
    row, mapped = prediction.row, prediction.mapped
    words = [
        row.text("model") or "",
        f"{row.text('num_gpus') or '?'}x{row.text('gpu') or '?'}",
        row.text("framework") or "",
    ]
    if mapped is not None:
        degrees = mapped.degrees
        if mapped.job.model.moe is None:
            degrees = degrees.model_copy(update={"etp": 1})
        words += [f"seq {mapped.job.seq:,}", degrees_text(degrees)]
        words += [batch_text(degrees), f"recompute {mapped.mode.name}"]
    return ", ".join(word for word in words if word)


def terms(prediction: Prediction) -> tuple[tuple[str, float], ...]:
    """Shares of the predicted step, largest first; small ones are left out."""
    if prediction.step is None or prediction.step_time_s is None:
        return ()
    shares = [
        (name, float(prediction.step[column]) / prediction.step_time_s)
        for column, name in TERMS.items()
    ]
    large = [share for share in shares if share[1] >= _SMALLEST_SHARE]
    return tuple(sorted(large, key=lambda item: -item[1]))


def _sister_group(prediction: Prediction) -> tuple[str, ...]:
    row = prediction.row
    return (row.source, *(row.text(name) or "" for name in ("model", "gpu", "num_gpus")))


def _errors_by_group(predictions: Sequence[Prediction]) -> dict[tuple[str, ...], list[float]]:
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for prediction in predictions:
        error = time_error(prediction)
        if error is not None:
            groups[_sister_group(prediction)].append(error)
    return groups


def _why(prediction: Prediction, error: float, sisters: Sequence[float]) -> str:
    """The predicted terms, what would make up the difference, whether rows like it err alike,
    and what was assumed."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in terms(prediction))
    taken = assumed(prediction)
    sentences = (
        f"Predicted: {shares}." if shares else "",
        _remedies(terms(prediction), error),
        _pattern(error, sisters),
        f"Assumed: {', '.join(taken)}." if taken else "",
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _remedies(shares: Sequence[tuple[str, float]], error: float) -> str:
    """By what factor each of the largest terms alone would have to change to agree."""
    missing = 1.0 / (1.0 + error) - 1.0
    factors = [(name, 1.0 + missing / share) for name, share in shares[:_SHOWN_REMEDIES]]
    texts = [
        f"{name} ×{factor:.{0 if factor >= 10.0 else 1}f}"
        for name, factor in factors
        if factor > 0.0
    ]
    return f"To agree: {' or '.join(texts)}." if texts else ""


def _pattern(error: float, sisters: Sequence[float]) -> str:
    """Whether the runs of this source, model, GPU type and count err alike, or this one does."""
    others = len(sisters) - 1
    if others < _FEWEST_SISTERS:
        return ""
    middle = median(sisters)
    alike = middle * error > 0 and abs(middle) >= _PATTERN * abs(error)
    verdict = "runs like it err alike" if alike else "runs like it do better"
    of = f"Of {others + 1} runs of this model and cluster"
    return f"{of} the median error is {middle:+.0%}: {verdict}."


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
