"""Parameters against models built in transformers 5.23: equal to the last one."""

from __future__ import annotations

from tests.truth.counts import each_row
from tests.truth.predicted import Row, compare_parameters


@each_row("params.csv")
def test_parameters(row: Row) -> None:
    for figure in compare_parameters(row):
        assert figure.predicted == figure.counted, figure
