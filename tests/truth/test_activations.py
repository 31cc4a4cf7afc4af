"""Bytes saved for backward against counts made with PyTorch saved-tensor hooks.

Models of transformers 5.23 and a nanoGPT-like module, on fake tensors: unique bytes per layer,
outside the layers, of the low-precision weight copies of autocast, and tensor by tensor.
"""

from __future__ import annotations

import dataclasses

import pytest

from planner.calibrate.truth import TENSORS, Row, compare_activations, label
from planner.calibrate.truth_tensors import Tensor, compare_tensors, saved_runs
from tests.truth.counts import COUNTS, each_row

RUNS = saved_runs(COUNTS[TENSORS])
# 4 bytes an expert that the op table leaves out: where each expert's copies begin.
EXPERT_OFFSETS_BYTES = 32


@each_row("activations.csv")
def test_saved_bytes(row: Row) -> None:
    for figure in compare_activations(row):
        assert figure.predicted == pytest.approx(figure.counted, rel=1e-7), figure


@pytest.mark.parametrize(("run", "tensors"), RUNS, ids=[label(run) for run, _ in RUNS])
def test_saved_tensors(run: Row, tensors: list[Tensor]) -> None:
    """To the byte, term by term: no tensor without a row, no row without a tensor."""
    figures = list(compare_tensors(run, tensors))
    assert sum(figure.counted for figure in figures) == sum(each.size for each in tensors)
    for figure in figures:
        missing = EXPERT_OFFSETS_BYTES if figure.quantity == "moe/permutation" else 0
        assert figure.counted - figure.predicted == missing, figure


def test_terms_are_the_rows_of_the_op_table_where_storage_allows() -> None:
    """Only fused queries, keys and values share a storage, and only fused gate and up a cast."""
    joint = {
        figure.quantity
        for run in RUNS
        for figure in compare_tensors(*run)
        if "+" in figure.quantity
    }
    assert joint == {
        "attention/q + attention/k + attention/v",
        "cast of mlp/gate + cast of mlp/up",
    }


@pytest.mark.parametrize("what", ["size", "module", "dropped"])
def test_comparison_notices_a_wrong_tensor(what: str) -> None:
    """A tensor of another size, of a module that no rule knows, and one that is not there."""
    run, tensors = RUNS[0]
    first, *others = tensors
    changed = {
        "size": [dataclasses.replace(first, size=2 * first.size), *others],
        "module": [dataclasses.replace(first, module="unheard_of"), *others],
        "dropped": others,
    }[what]
    wrong = [figure.quantity for figure in compare_tensors(run, changed) if figure.error]
    assert "attention/norm/input" in wrong
    assert len(wrong) == (2 if what == "module" else 1)
