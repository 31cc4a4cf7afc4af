"""Rows and passes of preference training, against real steps of TRL's trainers."""

from __future__ import annotations

import pytest

from planner.job.objective import objective_rules, read_objective
from planner.job.reads import reads_of
from tests.truth.predicted import Row
from tests.truth.tuning_counts import PREFERENCE, tuning_counts

ROWS = [row for row in tuning_counts(PREFERENCE) if row["objective"] != "sft"]


def named(row: Row) -> str:
    return f"{row['objective']} {row['reference']}, TRL {row['trl']}"


@pytest.mark.parametrize("row", ROWS, ids=map(named, ROWS))
def test_rows_that_are_trained_and_read(row: Row) -> None:
    """Rows of a sample in passes with gradients, and how often a model reads them without."""
    reference = f":reference={row['reference']}" if row["reference"] != "none" else ""
    objective = read_objective(row["objective"] + reference, adapters=row["adapters"] == "1")
    trained = int(row["rows"]) * int(row["forwards"]) / int(row["samples"])
    assert objective_rules()[objective.kind].rows == trained
    read = sum(one.times for one in reads_of(objective, None))
    assert read * trained == int(row["reference_rows"]) * int(row["reference_forwards"]) / int(
        row["samples"]
    )
