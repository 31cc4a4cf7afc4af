"""Predict rows of the shipped sources without their own source.

Constants of whole steps and of peaks (`planner.evidence.runs.constants`) were fitted to most of the
shipped sources. `planner/evidence/data/held_out.toml` has, for each source, the factors by which
they would differ without it; `python -m tests.fit.held_out` writes it. The wheel includes the file
because it includes the published runs too: `planner validate` without --data and `planner tune
--replay` judge them this way. Nothing was fitted to other runs, so tables of left-out predictions
do not show them.

A framework that no other source has measured is predicted from the facts of the row, without its
name, so that a profile made from one source does not help to predict that source. Mechanisms that
such a source revealed stay in the model; predictions at first sight show how its rows were
predicted before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

from hardware.files import shipped_toml
from planner.evidence.runs.constants import CONSTANTS
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import at_first_sight
from planner.evidence.runs.rows import grouped
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from planner.predict.uncertainty.families import UNFAMILIAR
from planner.predict.uncertainty.shipped import shipped_tables

SourceFactors = Mapping[str, Mapping[str, float]]
"""Factor on each constant by its name, for the runs of each source."""


@cache
def left_out_factors() -> SourceFactors:
    """The factors in `held_out.toml`. Constants that do not change without a source are not
    listed."""
    factors: SourceFactors = shipped_toml("planner.evidence", "data/held_out.toml")["factors"]
    return factors


def multiplied(job: Job, factors: Mapping[str, float]) -> dict[str, float]:
    """Factors on the compiled core's fields, from factors on the constants that a job depends
    on."""
    items = [one for one in CONSTANTS if factors.get(one.name, 1.0) != 1.0 and one.applies(job)]
    return {name: factors[one.name] for one in items for name in one.fields}


def predict_held_out(predictions: Sequence[Prediction], factors: SourceFactors) -> list[Prediction]:
    """The same rows, each predicted with the constants times its source's factors."""
    results = list(predictions)
    changed = {source for source, some in factors.items() if any(by != 1.0 for by in some.values())}
    chosen = (index for index, one in enumerate(results) if one.row.source in changed)
    for source, indices in grouped(chosen, lambda index: predictions[index].row.source).items():
        costed = cost_predictions(
            [results[index] for index in indices],
            lambda job, by=factors[source]: CostModel(job, multiplied(job, by)),  # type: ignore[misc]
        )
        for index, prediction in zip(indices, costed, strict=True):
            results[index] = prediction
    return results


def measured_by() -> dict[str, frozenset[str]]:
    """For each framework, the sources of its shipped runs."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in shipped_tables().values():
        for entry in table.entries:
            if entry.framework != UNFAMILIAR:
                found[entry.framework].add(entry.source)
    return {framework: frozenset(sources) for framework, sources in found.items()}


def left_out(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Rows of the shipped sources, each predicted without its own; refused rows are dropped."""
    factors, sources = left_out_factors(), measured_by()
    everyone = frozenset(factors).union(*sources.values())
    known = [item for item in predictions if item.row.source in everyone and not item.error]
    # Rows from the only source that has measured their framework.
    alone = [
        index
        for index, item in enumerate(known)
        if sources.get(item.job.framework.family or item.job.framework.name)
        == frozenset((item.row.source,))
    ]
    strange = predict_rows(known[index].row.unnamed for index in alone)
    for index, item in zip(alone, strange, strict=True):
        known[index] = item
    return predict_held_out(known, factors)


def other_views(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """The views that `planner.evidence.runs.bars` judges in addition to today's predictions: the
    same rows without their sources, and as they were predicted at first sight."""
    return {"left_out": left_out(predictions), "first_sight": at_first_sight(predictions)}
