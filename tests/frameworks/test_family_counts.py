"""Counts of small configurations made again in transformers: the rows of tests/truth/data."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from planner.job.models.hf_families import READERS
from tests.truth.counts import COUNTS
from tests.truth.predicted import Row, label, reference_model

pytestmark = pytest.mark.frameworks
# Of the models that the catalogue names as the counts do: eager attention, one sequence.
SMALL = {"mode": "bf16", "attention": "eager", "checkpointing": "none", "mbs": "1"}
ROWS = {
    row["model"]: row
    for row in COUNTS["activations.csv"]
    if row.items() >= SMALL.items()
    and not row["model"].startswith("nanogpt")
    and reference_model(row["model"]).name == row["model"]
}


@pytest.mark.parametrize("row", ROWS.values(), ids=[label(row) for row in ROWS.values()])
def test_counts_again(row: Row, needs: Callable[[str], ModuleType]) -> None:
    needs("transformers")
    from tests.frameworks.count_families import count_run

    settings = (int(row["seq"]), 1, "bf16", "eager", "none")
    again, _ = count_run(reference_model(row["model"]), settings)
    for name in ("per_layer", "non_layer", "weight_casts_per_layer"):
        assert again[name] == int(row[name])


def test_every_family_is_counted() -> None:
    counted = {reference_model(row["model"]).family for row in COUNTS["params.csv"]}
    assert counted == set(READERS)
