"""FLOP of layers and ends against torch's counter on models of transformers."""

from __future__ import annotations

import pytest

from tests.truth.counts import each_row
from tests.truth.predicted import Row
from tests.truth.predicted_flop import compare_flop


@each_row("flops.csv")
def test_flop(row: Row) -> None:
    """Left out: the product with Qwen's gate of the shared experts, which is of width 1."""
    for figure in compare_flop(row):
        assert figure.predicted == pytest.approx(figure.counted, rel=1e-4), figure
