"""Predictions and their errors as plain records for --json, --csv and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from planner.evidence.runs.bars import Views, bars_record
from planner.evidence.runs.doubts import narrowing_sentence, open_record, open_summary
from planner.evidence.runs.open_facts import open_facts
from planner.evidence.runs.predict import Prediction, assumed
from planner.evidence.runs.ranking import rank_groups
from planner.evidence.runs.report import (
    error_of,
    family_reports,
    memory_interval,
    predicted,
    summary_of,
    time_interval,
)
from planner.evidence.runs.worst import missed_picks, worst_rows
from planner.job.quantities import GIB

Record = dict[str, Any]


def row_record(prediction: Prediction) -> Record:
    """A row's columns, then the prediction; for a refused row only `error` is set."""
    return {**prediction.row.cells, **_predicted(prediction), "error": prediction.error}


def _predicted(prediction: Prediction) -> Record:
    seconds = prediction.step_time_s
    interval = rate = None
    if seconds is not None:
        interval, mapped = time_interval(prediction, seconds), prediction.configured
        sequences = mapped.degrees.gbs * mapped.batch_share
        rate = sequences * mapped.job.seq / (seconds * mapped.job.cluster.num_gpus)
    time, memory = error_of(prediction, "time"), error_of(prediction, "memory")
    peak = predicted(prediction, "memory")
    held = None if peak is None else memory_interval(prediction, peak)
    return {
        "predicted_step_time_s": seconds,
        "predicted_low_s": interval and interval.low,
        "predicted_high_s": interval and interval.high,
        "predicted_expected_s": prediction.expected_step_time_s,
        "predicted_tokens_per_s_per_gpu": rate,
        "predicted_peak_mem_gib": None if peak is None else peak / GIB,
        "predicted_low_gib": held and held.low / GIB,
        "predicted_high_gib": held and held.high / GIB,
        "predicted_fits": prediction.fits,
        "fit_probability": prediction.fit_probability,
        "time_ape": None if time is None else abs(time),
        "mem_ape": None if memory is None else abs(memory),
        "interval_family": interval and interval.family,
        "memory_interval_family": held and held.family,
        "assumed": list(assumed(prediction)),
        "open_facts": None if (left := open_facts(prediction)) is None else list(left),
        "open_values": open_record(prediction),
        "narrowing_time": narrowing_sentence(prediction, "time"),
        "narrowing_memory": narrowing_sentence(prediction, "memory"),
    }


def summary_record(
    predictions: Sequence[Prediction], family: Callable[[Prediction], str]
) -> Record:
    """`Summary` as a record, with the figures of all rows at its top level; then missed picks,
    groups and worst rows."""
    summary = asdict(summary_of(predictions, family))
    return {
        **summary.pop("total"),
        **summary,
        "missed_picks": [asdict(item) for item in missed_picks(predictions)],
        "groups": [asdict(rank_group) for rank_group in rank_groups(predictions)],
        "worst": [asdict(worst_row) for worst_row in worst_rows(predictions)],
        "open": [asdict(fact) for fact in open_summary(predictions)],
    }


def document(
    predictions: Sequence[Prediction],
    family: Callable[[Prediction], str],
    views: Views | None = None,
) -> Record:
    """Everything: a record for each row, then the summary, with the error bars of each view by
    family. `views`: other predictions of the same rows (`planner.evidence.runs.bars`); the summary
    has their errors under their names."""
    views = views or {}
    others = {
        name: [asdict(one) for one in family_reports(some, family)] for name, some in views.items()
    }
    summary = summary_record(predictions, family) | others
    summary["bars"] = bars_record({"known": predictions, **views})
    return {"rows": [row_record(prediction) for prediction in predictions], "summary": summary}


def csv_columns(predictions: Sequence[Prediction]) -> list[str]:
    """The rows' columns in order of first appearance, then those of the prediction."""
    added = [*_predicted(predictions[0]), "error"]
    known = dict.fromkeys(name for prediction in predictions for name in prediction.row.cells)
    return [*(name for name in known if name not in added), *added]


def csv_record(prediction: Prediction) -> Record:
    """`row_record` with lists as text."""
    record = row_record(prediction)
    lists = {name: "; ".join(record[name] or ()) for name in ("assumed", "open_facts")}
    values = json.dumps(record["open_values"]) if record["open_values"] else ""
    return record | lists | {"open_values": values}
