"""Counts of models that are trained in part, and of the logits that preference trainers hold."""

from __future__ import annotations

import csv
from functools import cache

from tests.truth.accuracy import COUNTS
from tests.truth.predicted import Row

ACTIVATIONS, TENSORS, PARAMETERS, PREFERENCE = (
    "tuning_activations.csv", "tuning_breakdown.csv", "tuning_parameters.csv", "preference.csv"
)  # fmt: skip
# The cells that say how a model is trained and run.
_CELLS = ("mode", "attention", "checkpointing", "mbs", "method", "rank", "targets", "dropout",
          "adapter", "base", "whole", "freeze")  # fmt: skip
_BEFORE = {
    "mbs": "b", "rank": "r", "dropout": "dropout ", "adapter": "adapters ", "whole": "whole ",
    "freeze": "frozen "
}  # fmt: skip


@cache
def tuning_counts(file: str) -> tuple[Row, ...]:
    """Rows of one of the files."""
    with (COUNTS / file).open(newline="", encoding="utf-8") as handle:
        return tuple(csv.DictReader(handle))


def tuning_label(row: Row) -> str:
    """What sets a row apart, in words."""
    cells = [f"{_BEFORE.get(name, '')}{row[name]}" for name in _CELLS if row.get(name)]
    prepared = ["prepared"] * (row["prepared"] == "1")
    return " ".join([row["model"], *cells, *prepared])
