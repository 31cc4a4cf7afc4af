"""Rows as somebody predicts them who has not seen their source: tables of `planner validate`.

Constants of whole steps leave the row's source out (`planner.evidence.fit.held_out`).
A framework that no other source has measured is predicted as a stranger to it would be: by what the
row says that it does, with no name, so that nothing in a profile that was made from one source
helps to predict that source. So these tables leave out mechanisms and memory as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from planner.evidence.fit.held_out import predict_held_out, shipped
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.predict.uncertainty.families import UNFAMILIAR
from planner.predict.uncertainty.residuals import shipped_tables


def measured_by() -> dict[str, frozenset[str]]:
    """Sources of the shipped runs of each framework."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in shipped_tables().values():
        for entry in table.entries:
            if entry.framework != UNFAMILIAR:
                found[entry.framework].add(entry.source)
    return {framework: frozenset(sources) for framework, sources in found.items()}


def left_out(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Rows of the shipped sources, each predicted without its own; refused ones are left away."""
    factors = {source: item.factors for source, item in shipped().items()}
    sources = measured_by()
    everyone = frozenset(factors).union(*sources.values())
    known = [item for item in predictions if item.row.source in everyone and not item.error]
    alone = [index for index, item in enumerate(known) if _is_sole(item, sources)]
    strange = predict_rows(known[index].row.unnamed for index in alone)
    for index, item in zip(alone, strange, strict=True):
        known[index] = item
    return predict_held_out(known, factors)


def _is_sole(prediction: Prediction, sources: dict[str, frozenset[str]]) -> bool:
    """Whether the row's source is the only one that has measured its framework."""
    if prediction.mapped is None:
        return False
    profile = prediction.mapped.job.framework
    return sources.get(profile.family or profile.name) == frozenset((prediction.row.source,))
