"""Models that are trained in part, against counts made with peft and bitsandbytes."""

from __future__ import annotations

import pytest

from tests.truth.predicted import Row
from tests.truth.predicted_tensors import Tensor
from tests.truth.predicted_tuning import (
    HELD,
    compare_tuned_activations,
    compare_tuned_parameters,
    is_planned,
)
from tests.truth.predicted_tuning_tensors import compare_tuned_tensors, tuned_runs
from tests.truth.tuning_accuracy import tuning_accuracy
from tests.truth.tuning_counts import ACTIVATIONS, PARAMETERS, tuning_counts, tuning_label

OF_A_LAYER, OF_A_TENSOR, OF_THE_WHOLE = 1e-3, 1e-3, 1e-3
# GPT-NeoX's two norms each cast the first layer's stream of 16 bits, which is fp32 after quantised
# layers.
OF_TWO_NORMS = 2e-3
# Scales of int8 and the tables of bitsandbytes' formats are left out.
OF_HELD_BYTES = 1e-2


def rows_of(file: str) -> list[Row]:
    return [row for row in tuning_counts(file) if is_planned(row)]


RUNS, WHOLE = rows_of(ACTIVATIONS), rows_of(PARAMETERS)
LISTED = [(run, tensors) for run, tensors in tuned_runs() if is_planned(run)]


@pytest.mark.parametrize("row", RUNS, ids=map(tuning_label, RUNS))
def test_saved_bytes(row: Row) -> None:
    figures = {figure.quantity: figure for figure in compare_tuned_activations(row)}
    layer, whole = figures["layer"], figures["whole"]
    assert layer.predicted == pytest.approx(layer.counted, rel=OF_A_LAYER)
    two_norms = row["model"].startswith("gpt-neox") and row["base"]
    rel = OF_TWO_NORMS if two_norms else OF_THE_WHOLE
    assert whole.predicted == pytest.approx(whole.counted, rel=rel)


@pytest.mark.parametrize(("run", "tensors"), LISTED, ids=[tuning_label(run) for run, _ in LISTED])
def test_saved_tensors(run: Row, tensors: list[Tensor]) -> None:
    """Term by term: no tensor without a row, no row without a tensor."""
    figures = list(compare_tuned_tensors(run, tensors))
    assert sum(figure.counted for figure in figures) == sum(each.size for each in tensors)
    for figure in figures:
        exact = pytest.approx(figure.counted, rel=OF_A_TENSOR)
        assert figure.predicted == exact, figure


@pytest.mark.parametrize("row", WHOLE, ids=map(tuning_label, WHOLE))
def test_parameters(row: Row) -> None:
    """As many to the last one; bytes by what they are for, and their sum."""
    figures = {figure.quantity: figure for figure in compare_tuned_parameters(row)}
    for name in ("total", "trained", "trained_per_layer"):
        assert figures[name].predicted == figures[name].counted, name
    held = [figures[name] for name in HELD]
    for figure in held:
        assert figure.predicted == pytest.approx(figure.counted, rel=OF_HELD_BYTES), figure
    counted, predicted = (
        sum(getattr(one, side) for one in held) for side in ("counted", "predicted")
    )
    assert predicted == pytest.approx(counted, rel=OF_THE_WHOLE)


def test_every_kind_of_training_is_compared() -> None:
    """No method, format, type of adapters or family is left out as a whole."""
    for cell in ("model", "method", "base", "adapter", "mode", "prepared", "freeze", "dropout"):
        counted = {row[cell] for row in tuning_counts(ACTIVATIONS)}
        assert {row[cell] for row in RUNS} == counted


def test_the_table_has_every_way_and_family() -> None:
    ways, families = tuning_accuracy()
    assert "QLoRA of nf4-double, prepared" in ways
    assert len(families) == len({row["model"] for row in RUNS})
    assert all(errors.p95 < OF_THE_WHOLE for errors in (*ways.values(), *families.values()))
