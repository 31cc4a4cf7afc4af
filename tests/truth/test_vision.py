"""Vision towers and projectors, against counts made in transformers."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.truth.predicted import Row
from tests.truth.predicted_vision import (
    compare_across,
    compare_vision_activations,
    compare_vision_parameters,
    compare_vision_tensors,
    vision_label,
)
from tests.truth.tuning_counts import tuning_counts

OF_A_LAYER, OF_A_MODULE = 1e-3, 1e-2
# The first layer under adapters in towers that no hook reaches (Qwen3-VL's, Kimi's, InternVL's own)
# keeps no input of its norm, and Llama 4's patches no cast of an adapter.
OF_A_TOWER, UNHOOKED = 1e-3, 5e-3
# Nothing below the adapter of Llama 4's patches asks for the cast of its first matrix.
OF_FIRST_ADAPTER = 3e-2

RUNS = tuning_counts("vision_activations.csv")
HELD = tuning_counts("vision_parameters.csv")
ACROSS = tuning_counts("cross_activations.csv")
LISTED = [
    list(rows)
    for name, rows in groupby(tuning_counts("vision_breakdown.csv"), key=vision_label)
    # A further projector saves first what the next layer's norm reads.
    if "tapped" not in name
]


def is_unhooked(row: Row) -> bool:
    unhooked = ("qwen3", "llama-4", "kimi", "internvl2-")
    return row["model"].startswith(unhooked) and row["hooked"] == "1"


@pytest.mark.parametrize("row", RUNS, ids=map(vision_label, RUNS))
def test_saved_bytes(row: Row) -> None:
    layer, whole = compare_vision_activations(row)
    assert layer.predicted == pytest.approx(layer.counted, rel=OF_A_LAYER)
    rel = UNHOOKED if is_unhooked(row) else OF_A_TOWER
    assert whole.predicted == pytest.approx(whole.counted, rel=rel)


@pytest.mark.parametrize("rows", LISTED, ids=[vision_label(rows[0]) for rows in LISTED])
def test_saved_tensors(rows: list[Row]) -> None:
    """Module by module: none without a row, no row without a module."""
    for figure in compare_vision_tensors(rows[0], rows):
        first = rows[0]["model"].startswith("llama-4") and figure.quantity == "ends patches"
        rel = OF_FIRST_ADAPTER if first else OF_A_MODULE
        assert figure.predicted == pytest.approx(figure.counted, rel=rel), figure


@pytest.mark.parametrize("row", ACROSS, ids=map(vision_label, ACROSS))
def test_layers_that_attend_across(row: Row) -> None:
    """What a layer keeps beside the tensor that the projector makes, which all share."""
    layer = compare_across(row)
    assert layer.predicted == pytest.approx(layer.counted, rel=OF_A_LAYER)


@pytest.mark.parametrize(
    "row", HELD, ids=[f"{row['model']} {row['method']} {row['freeze']}" for row in HELD]
)
def test_parameters(row: Row) -> None:
    """As many to the last one."""
    for figure in compare_vision_parameters(row):
        assert figure.predicted == figure.counted, figure
