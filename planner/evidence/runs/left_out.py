"""Predict rows of the shipped sources without their source.

Constants of whole steps and of peaks (`planner.evidence.runs.constants`) were fitted on most of the
shipped sources. `planner/evidence/data/held_out.toml` has, for each source, the factors by which
they would differ without it; `python -m tests.fit.held_out` writes it. The wheel has the file
because it has the published runs, too: `planner validate` without --data and `planner tune
--replay` judge them so. Nothing was fitted to other runs, and no table of left-out predictions
shows them.

A framework that no other source has measured is predicted from the facts of the row, without its
name, so that nothing in a profile that was made from one source helps to predict that source. The
mechanisms that such a source revealed stay; first sights show how its rows were predicted before.
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
    """The factors of `held_out.toml`. A constant that a source does not move is not listed."""
    factors: SourceFactors = shipped_toml("planner.evidence", "data/held_out.toml")["factors"]
    return factors


def multiplied(job: Job, factors: Mapping[str, float]) -> dict[str, float]:
    """Factors of the compiled core's fields that a job depends on, by those of constants."""
    items = [one for one in CONSTANTS if factors.get(one.name, 1.0) != 1.0 and one.applies(job)]
    return {name: factors[one.name] for one in items for name in one.fields}


def predict_held_out(predictions: Sequence[Prediction], factors: SourceFactors) -> list[Prediction]:
    """The same rows, each with the constants times its source's factors."""
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
    """Sources of the shipped runs of each framework."""
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
    # Rows whose source is the only one that has measured their framework.
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
    """The views that `planner.evidence.runs.bars` judges beside today's predictions: the same rows
    without their sources, and as they were predicted at first sight."""
    return {"left_out": left_out(predictions), "first_sight": at_first_sight(predictions)}
