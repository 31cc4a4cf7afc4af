"""The rows with the worst predictions, with the terms of their prediction; and the groups in which
the run ranked first was not the best, with both runs and the reason.

Either the run ranked first was predicted to be faster, or the better one was predicted not to fit.
Of the predicted step's terms, the one that favours the pick most is named: had it been equal in
both, the pick would have gained that much less. The term need not be wrong, but it decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.cost import fields as f
from planner.cost.terms import TIME_WORDS
from planner.evidence.runs.mapping import MappedRow
from planner.evidence.runs.predict import Prediction, assumed
from planner.evidence.runs.ranking import candidates_of, first_of, measured_groups, pick_share
from planner.evidence.runs.report import error_of, known
from planner.job.quantities import share
from planner.predict.plan_text import batch_text, degrees_text

WORST_ROWS = 10
_SMALLEST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One row: its place in the file, its times in seconds, and why it may be wrong."""

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
    """Rows with the largest |ln(measured / predicted)|, so that half and double count as equally
    wrong."""
    errors = [
        (-abs(math.log1p(error)), index)
        for index, prediction in enumerate(predictions)
        if (error := error_of(prediction, "time")) is not None
    ]
    return [_worst_row(predictions[index]) for _, index in sorted(errors)[:count]]


def _worst_row(prediction: Prediction) -> WorstRow:
    row, (predicted, measured) = prediction.row, known(prediction, "time") or (0.0, 0.0)
    return WorstRow(
        file=row.file,
        line=row.line,
        source=row.source,
        description=describe(prediction),
        measured_s=measured,
        predicted_s=predicted,
        error=predicted / measured - 1.0,
        terms=terms(prediction),
        why=_why(prediction),
    )


def describe(prediction: Prediction) -> str:
    """A row in words, as `Llama-8B, 64xH100-80GB, nanotron, seq 4,096, tp4 pp2 dp8 z1, 2×16,
    recompute none`."""
    row, mapped = prediction.row, prediction.mapped
    words = [
        row.text("model") or "",
        f"{row.text('num_gpus') or '?'}x{row.text('gpu') or '?'}",
        row.text("framework") or "",
    ]
    if mapped is not None:
        words += [f"seq {mapped.job.seq:,}", _degrees_text(mapped)]
        words += [batch_text(mapped.degrees), f"recompute {mapped.mode.name}"]
    return ", ".join(word for word in words if word)


def _degrees_text(mapped: MappedRow) -> str:
    dense = mapped.job.model.moe is None
    return degrees_text(mapped.degrees.model_copy(update={"etp": 1}) if dense else mapped.degrees)


def term_seconds(prediction: Prediction) -> dict[str, float]:
    """Seconds of a predicted step by term, in words; empty if nothing was predicted."""
    step = prediction.step
    if step is None:
        return {}
    return {TIME_WORDS[name]: float(step[column]) for name, column in f.TIME_COLUMNS.items()}


def terms(prediction: Prediction) -> tuple[tuple[str, float], ...]:
    """The terms' shares of the predicted step, largest first, without small ones."""
    whole = prediction.step_time_s or math.inf
    shares = ((name, seconds / whole) for name, seconds in term_seconds(prediction).items())
    large = [share for share in shares if share[1] >= _SMALLEST_SHARE]
    return tuple(sorted(large, key=lambda item: -item[1]))


def _why(prediction: Prediction) -> str:
    """Sentences with the predicted terms and the assumptions."""
    shares = ", ".join(f"{name} {share(part, 0)}" for name, part in terms(prediction))
    taken = assumed(prediction)
    sentences = (
        f"Predicted: {shares}." if shares else "",
        f"Assumed: {', '.join(taken)}." if taken else "",
    )
    return " ".join(sentence for sentence in sentences if sentence)


# Picks this close to the best measured throughput count as good.
GOOD = 0.95
MEMORY = "memory: the best was not sure to fit"
OUT = "memory: the pick ran out"


@dataclass(frozen=True, slots=True)
class MissedPick:
    """One group: `share` as in `GroupRanking.pick`; the two configurations, and the reason for the
    pick."""

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
    """A configuration in short, as `tp2 pp2 dp8 z1 2×16, full`."""
    mapped, kernel = prediction.configured, prediction.row.text("kernel")
    words = f"{_degrees_text(mapped)} {batch_text(mapped.degrees)}, {mapped.mode.name}"
    return f"{words}, {kernel}" if kernel else words


def _decided_by(pick: Prediction, best: Prediction, *, in_question: bool) -> str:
    """The reason why the pick was ranked above the best run: it ran out of memory although it was
    predicted to fit, the best run was not sure enough to fit (`in_question` is False), or the term
    of the step that favours the pick most, with its milliseconds."""
    if pick.measured("step_time_s") is None:
        return OUT
    if not in_question:
        return MEMORY
    ours = term_seconds(pick)
    gains = {name: (seconds - ours[name]) * 1e3 for name, seconds in term_seconds(best).items()}
    name = max(gains, key=lambda term: gains[term])
    return f"{name}: {gains[name]:,.0f} ms less"
