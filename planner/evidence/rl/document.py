"""Measured runs of reinforcement learning with their predictions as plain records for --json and
--csv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from planner.evidence.rl.bounds import Bounded
from planner.evidence.rl.pairs import Pair
from planner.evidence.rl.predict import RlPrediction, compared
from planner.evidence.rl.report import open_facts, summary_of, trusted
from planner.evidence.rl.rows import FIGURES, Figure
from planner.job.quantities import GIB

Record = dict[str, Any]


def row_record(prediction: RlPrediction) -> Record:
    """A row's columns; then each figure's prediction with the ends of its 80 % interval, whether it
    fits, the assumptions and the open facts. For a refused row all of these but `error` are empty.
    """
    mapped, costed = prediction.mapped, prediction.costed
    return {
        **prediction.row.cells,
        **_figures(prediction),
        "predicted_fits": costed.fits if costed else None,
        "response_len_taken": mapped.lengths.response if mapped else None,
        "response_len_known": mapped.lengths.counted if mapped else None,
        "assumed": list(mapped.assumed) if mapped else [],
        "open_facts": list(prediction.open_facts),
        "error": prediction.error,
    }


def _figures(prediction: RlPrediction) -> Record:
    """For every figure, its prediction and the ends of its interval, in seconds, or GiB for memory;
    None for a figure that is not compared. If a row has several times of one figure, their sums."""
    found: Record = {name: None for figure in FIGURES for name in _columns(figure)}
    for figure in FIGURES:
        some = [one for one in compared(prediction) if one.figure == figure]
        unit = GIB if figure == "memory" else 1.0
        for name, part in zip(_columns(figure), ("predicted", "low", "high"), strict=True):
            if some:
                found[name] = sum(getattr(one, part) for one in some) / unit
    return found


def _columns(figure: Figure) -> tuple[str, str, str]:
    unit = "gib" if figure == "memory" else "s"
    names = ("", "_low", "_high")
    return tuple(f"predicted_{figure}{part}_{unit}" for part in names)  # type: ignore[return-value]


def rl_document(predictions: Sequence[RlPrediction], bounded: Sequence[Bounded] = ()) -> Record:
    """Everything: a record for each row, the summary, the comparisons of placements, the upper
    bounds."""
    found: Record = {"rows": [row_record(one) for one in predictions]}
    if predictions:
        kept = trusted(predictions)
        summary = summary_of(kept)
        record = asdict(summary) | {"judged": summary.judged, "right": summary.right}
        record["pairs"] = [_pair(one) for one in summary.pairs]
        record["open"] = [
            {"fact": fact, "rows": rows, "deviation": deviation}
            for fact, rows, deviation in open_facts(kept)
        ]
        found["summary"] = record
    if bounded:
        found["bounds"] = [{**asdict(one), "kept": one.is_kept} for one in bounded]
    return found


def _pair(one: Pair) -> Record:
    return {
        "source": one.first.source,
        "first": one.first.place,
        "second": one.second.place,
        "what": one.what,
        "by_gpu": one.by_gpu,
        "ln_measured": one.measured,
        "ln_predicted": one.predicted,
        "right": one.is_right,
    }


def csv_rows(predictions: Sequence[RlPrediction]) -> tuple[list[str], Iterable[Record]]:
    """Columns and records of the CSV file, with lists as text."""
    records = [row_record(one) for one in predictions]
    columns = list(dict.fromkeys(name for record in records for name in record))
    lists = ("assumed", "open_facts")
    texts = ({**one, **{name: "; ".join(one[name]) for name in lists}} for one in records)
    return columns, texts
