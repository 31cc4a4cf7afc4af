"""Megatron-Core against counts on its own modules (core 0.16.1, local spec, fusions off)."""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from tests.truth.counts import each_row
from tests.truth.predicted import (
    Row,
    compare_megatron_activations,
    compare_megatron_parameters,
    megatron_rank,
    reference_model,
)


@each_row("megatron_activations.csv")
def test_saved_bytes(row: Row) -> None:
    layer, outside = compare_megatron_activations(row)
    assert layer.predicted == pytest.approx(layer.counted, rel=1e-7)
    assert outside.predicted == pytest.approx(outside.counted, rel=1e-4)


@each_row("megatron_params.csv")
def test_parameters_of_a_rank(row: Row) -> None:
    for figure in compare_megatron_parameters(row):
        assert figure.predicted == figure.counted, figure


@each_row("megatron_params.csv")
def test_padding_of_the_vocabulary(row: Row) -> None:
    """Left to itself Megatron rounds the vocabulary up to a multiple of 128·tp: every table of a
    rank grows by those rows, and nothing else does (megatron/training/tokenizer,
    `_vocab_size_with_padding`)."""
    model, tp = reference_model(row["model"]), int(row["tp"])
    multiple = 128 * tp
    rows = (-model.vocab % multiple) * model.hidden // tp
    rank = megatron_rank(row, load_framework("megatron-core"))
    padded = {quantity: round(parameters) for quantity, parameters in rank}
    tables = 0
    for name in ("embedding", "head"):
        table = int(row[name]) > 0
        tables += table
        assert padded[name] == int(row[name]) + table * rows
    assert padded["params"] == int(row["params"]) + tables * rows
    assert padded["expert"] == int(row["expert"])


@pytest.mark.parametrize(
    ("name", "tp", "rows"),
    [("llama3-8b", 2, 0), ("llama3-8b", 4, 64), ("llama3-8b", 8, 96), ("mixtral-8x7b", 8, 96)],
)
def test_rows_that_padding_adds(name: str, tp: int, rows: int) -> None:
    """128,256 and 32,000 are multiples of 256 but not of 512 or 1024."""
    row = {"model": name, "tp": str(tp), "expert_tp": str(tp)}
    row |= {"pp": "1", "ep": "1", "stage": "0", "layers_here": "32"}
    model = reference_model(name)
    embedding = dict(megatron_rank(row, load_framework("megatron-core")))["embedding"]
    assert round(embedding) == (model.vocab // tp + rows) * model.hidden
