"""Counts of vision towers made again with transformers: tests/truth/data."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from tests.truth.predicted import Row
from tests.truth.predicted_vision import vision_label
from tests.truth.tuning_counts import tuning_counts

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("default")]
Needs = Callable[[str], ModuleType]
SMALLEST = "smolvlm2-500m"
ROWS = [row for row in tuning_counts("vision_activations.csv") if row["model"] == SMALLEST]


@pytest.mark.parametrize("row", ROWS, ids=map(vision_label, ROWS))
def test_counts_again(row: Row, needs: Needs) -> None:
    needs("peft")
    needs("bitsandbytes")
    from tests.frameworks.count_vision import count_run, described, settings_of

    cells = {
        frozenset((name, str(cell)) for name, cell in described(SMALLEST, one).items()): one
        for one in settings_of(SMALLEST)
    }
    [setting] = [one for said, one in cells.items() if set(row.items()) >= said]
    again, _ = count_run(SMALLEST, setting)
    for name in ("per_layer", "ends", "weight_casts_per_layer", "weight_casts_ends"):
        assert again[name] == int(row[name]), name
