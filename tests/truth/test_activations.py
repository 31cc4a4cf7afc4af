"""Bytes saved for backward against counts made with PyTorch saved-tensor hooks.

Models of transformers 5.23 and a nanoGPT-like module, on fake tensors: unique bytes per layer,
outside the layers, of the low-precision weight copies of autocast, and tensor by tensor.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.truth.counts import COUNTS, each_row
from tests.truth.predicted import TENSORS, Row, compare_activations, label
from tests.truth.predicted_tensors import Tensor, compare_tensors, saved_runs

RUNS = saved_runs(COUNTS[TENSORS])
# What the op table knows of and leaves out: casts of Nemotron's biases apart from those of weights,
# the temperatures of Llama 4's layers without positions, the cast of the weight of Qwen's gate of
# shared experts, the scales of Falcon's attention.
LEFT_OUT = 1e-4
LEFT_OUT_OF_A_TENSOR = 1e-3


@each_row("activations.csv")
def test_saved_bytes(row: Row) -> None:
    for figure in compare_activations(row):
        assert figure.predicted == pytest.approx(figure.counted, rel=LEFT_OUT), figure


@pytest.mark.parametrize(("run", "tensors"), RUNS, ids=[label(run) for run, _ in RUNS])
def test_saved_tensors(run: Row, tensors: list[Tensor]) -> None:
    """Term by term: no tensor without a row, no row without a tensor."""
    figures = list(compare_tensors(run, tensors))
    assert sum(figure.counted for figure in figures) == sum(each.size for each in tensors)
    for figure in figures:
        exact = pytest.approx(figure.counted, rel=LEFT_OUT_OF_A_TENSOR)
        assert figure.predicted == exact, figure


def test_terms_are_the_rows_of_the_op_table_where_storage_allows() -> None:
    """Only fused queries, keys and values share a storage, and only fused gate and up a cast;
    scores have a column for the sink; experts as wide as the residual are not told apart."""
    joint = {
        figure.quantity
        for run in RUNS
        for figure in compare_tensors(*run)
        if "+" in figure.quantity
    }
    assert joint == {
        "attention/q + attention/k + attention/v",
        "cast of mlp/gate + cast of mlp/up",
        "attention/scores + attention/sink",
        "cast of moe/experts_up + cast of moe/experts_down",
        "moe/experts_up/input + moe/activation_input + moe/experts_down/input + moe/expert_output",
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
