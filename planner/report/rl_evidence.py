"""Reports of measured runs of reinforcement learning and their predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from planner.evidence.rl.bounds import Bounded
from planner.evidence.rl.learn import LearntPhases
from planner.evidence.rl.pairs import Pair
from planner.evidence.rl.predict import Compared, RlPrediction, compared
from planner.evidence.rl.report import RlSummary, open_facts, summary_of, trusted
from planner.evidence.rl.rows import FIGURES
from planner.job.quantities import gib, plural, seconds, share
from planner.predict.rl.errors import Ends, learnt_ends, rl_errors
from planner.report.said import notes, table_of
from planner.report.tables import Block, Notes, TableData, as_report

_NONE = "-"
_SHOWN_REASONS = 4
# Up to this many runs are also listed one by one.
_MOST_RUNS = 6


@as_report
def rl_validation_report(
    predictions: Sequence[RlPrediction], bounded: Sequence[Bounded] = ()
) -> Iterator[Block]:
    """Tables of predictions against measured runs: errors of each figure and of each source; pairs
    of runs, and whether the better one was predicted; and whether runs fit. `bounded`: upper bounds
    on measured values that frameworks' tests assert, each next to the prediction. Tables without
    rows are left out."""
    kept = trusted(predictions)
    if predictions:
        found = summary_of(kept)
        tables = [_runs(kept), _figures(found), _sources(found), _pairs(found), _fits(found)]
        yield from (one for one in tables if one.rows)
        yield Notes(tuple(_notes(found, kept, len(predictions) - len(kept))))
    if bounded:
        yield table_of("rl_validation.bounds", [_bound(one) for one in bounded if one.predicted])
        yield Notes((_bounds_sentence(bounded),))


def _figures(found: RlSummary) -> TableData:
    rows = [
        {
            "figure": figure,
            "errors": found.total[figure],
            "sources": found.sources_of[figure],
            "of_sources": found.mean_of_sources[figure]["median"],
        }
        for figure in FIGURES
        if figure in found.total
    ]
    return table_of("rl_validation.figures", rows)


def _sources(found: RlSummary) -> TableData:
    rows = [
        {"source": one.source, "figure": figure, "errors": errors}
        for one in found.sources
        for figure, errors in one.errors.items()
    ]
    return table_of("rl_validation.sources", rows)


def _pairs(found: RlSummary) -> TableData:
    return table_of("rl_validation.pairs", [_pair(one) for one in found.pairs])


def _pair(one: Pair) -> dict[str, object]:
    right = one.is_right
    return {
        "first": _place(one.first),
        "second": _place(one.second),
        "what": f"{one.what}, GPU-seconds a sample" if one.by_gpu else one.what,
        "measured": math.exp(one.measured),
        "predicted": None if one.predicted is None else math.exp(one.predicted),
        "right": _NONE if right is None else "yes" if right else "NO",
    }


def _place(row: object) -> str:
    text = getattr(row, "text", lambda _: "")
    words = (text("model"), f"{text('num_gpus')}x{text('gpu')}", text("placement"))
    behind = text("asynchrony") or ""
    return " ".join(filter(None, (*words, behind if behind != "sync" else "")))


def _fits(found: RlSummary) -> TableData:
    some = found.fit.ran or found.fit.out_of_memory
    return table_of("rl_validation.fits", [found.fit] if some else [])


def _runs(predictions: Sequence[RlPrediction]) -> TableData:
    rows = [_run(one, each) for one in predictions for each in compared(one)]
    few = 0 < len(predictions) <= _MOST_RUNS
    return table_of("rl_validation.runs", rows if few else [])


def _run(prediction: RlPrediction, one: Compared) -> dict[str, object]:
    def text(value: float) -> str:
        return f"{gib(value)} GiB" if one.figure == "memory" else seconds(value)

    return {
        "line": f"line {prediction.row.line}",
        "one": one,
        "predicted": text(one.predicted),
        "measured": text(one.measured),
        "low": text(one.low),
        "high": text(one.high),
        "open": ", ".join(one.open) or _NONE,
    }


def _notes(found: RlSummary, kept: Sequence[RlPrediction], doubted: int) -> Iterator[str]:
    reasons = "; ".join(
        f"{why} ({count:,})" for why, count in islice(found.refusals.items(), _SHOWN_REASONS)
    )
    opened = ", ".join(
        f"{fact} ({plural(count, 'row')}, ±{share(math.expm1(deviation), 0)})"
        for fact, count, deviation in open_facts(kept)
    )
    return notes(
        "rl_validation.notes",
        found,
        summary=found,
        opened=opened,
        doubted=doubted,
        reasons=f"The most frequent: {reasons}." if reasons else "",
    )


def _bound(one: Bounded) -> dict[str, object]:
    is_time = one.figure == "step"
    predicted, bound = (
        (seconds(one.predicted or 0.0), seconds(one.bound))
        if is_time
        else (f"{gib(one.predicted or 0.0)} GiB", f"{gib(one.bound)} GiB")
    )
    return {
        "name": one.name, "figure": one.figure, "predicted": predicted, "bound": bound,
        "kept": one.is_kept,
    }  # fmt: skip


def _bounds_sentence(bounded: Sequence[Bounded]) -> str:
    known = [one for one in bounded if one.predicted]
    over = sum(not one.is_kept for one in known)
    shorter = sum(one.by_length for one in known)
    return (
        f"{len(known)} of {len(bounded)} bounds have a prediction, {over or 'none'} of which "
        f"{'lies' if over == 1 else 'lie'} above its bound."
        + (
            f" {shorter} more {'does' if shorter == 1 else 'do'} with samples of the usual length, "
            "but not with shorter ones, and no length is stated."
            if shorter
            else ""
        )
    )


@as_report
def learnt_report(found: LearntPhases) -> Iterator[Block]:
    """Learnt factors of phases, with the intervals before and after."""
    rows = [
        {"one": one, "before": _bar(rl_errors().kind[one.name].ends), "now": _bar(learnt_ends(one))}
        for one in found.phases
    ]
    yield table_of("rl_validation.learnt", rows)
    yield Notes((*found.notes, _LEARNT))


_LEARNT = (
    "factor: on the predicted seconds of these phases, on this cluster. Kinds: generation; "
    "training (updates of policy and critic); reading (log-probabilities and values); transfer of "
    "weights; moves (waking, sleeping, offload)."
)


def _bar(ends: Ends) -> str:
    return f"{math.exp(-ends.low):.2f} to {math.exp(ends.high):.2f}"
