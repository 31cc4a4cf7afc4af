"""How exact the memory model is for models that are trained in part: errors by way of training and
by family, against counts made with peft and bitsandbytes.

    python -m tests.truth.tuning_accuracy
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

from tests.truth.accuracy import Errors, counted_tables, summarise
from tests.truth.predicted import Compared, Row, reference_model
from tests.truth.predicted_tuning import (
    compare_tuned_activations,
    compare_tuned_parameters,
    is_planned,
)
from tests.truth.predicted_tuning_tensors import compare_tuned_tensors, tuned_runs
from tests.truth.tuning_counts import ACTIVATIONS, PARAMETERS, tuning_counts

_CALLED = {"lora": "LoRA", "qlora": "QLoRA", "dora": "DoRA", "full": "frozen modules"}


def way_of(row: Row) -> str:
    """How a row is trained, in words."""
    if row["method"] == "full" and not row["freeze"]:
        return "all weights"
    words = [_CALLED[row["method"]]]
    words += [f"of {row['base']}"] * bool(row["base"])
    words += ["prepared"] * (row["prepared"] == "1")
    words += ["with dropout"] * bool(row["dropout"])
    return ", ".join(words).replace(", of", " of")


def tuning_accuracy() -> tuple[dict[str, Errors], dict[str, Errors]]:
    """Errors of all that is counted and planned, by way of training and by family."""
    ways: dict[str, list[tuple[float, str]]] = defaultdict(list)
    families: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for row, figure in _figures():
        if figure.counted or figure.predicted:
            error = figure.error, f"{figure.quantity}, {figure.row}"
            ways[way_of(row)].append(error)
            families[reference_model(row["model"]).family].append(error)
    return (
        {way: summarise(ways[way]) for way in sorted(ways)},
        {family: summarise(families[family]) for family in sorted(families)},
    )


def _figures() -> Iterator[tuple[Row, Compared]]:
    for row in filter(is_planned, tuning_counts(ACTIVATIONS)):
        yield from ((row, figure) for figure in compare_tuned_activations(row))
    for row in filter(is_planned, tuning_counts(PARAMETERS)):
        yield from ((row, figure) for figure in compare_tuned_parameters(row))
    for run, tensors in tuned_runs():
        if is_planned(run):
            yield from ((run, figure) for figure in compare_tuned_tensors(run, tensors))


if __name__ == "__main__":
    titles = "trained in part", "the same, of"
    sys.stdout.write(counted_tables(*tuning_accuracy(), titles=titles))
