"""Parameters against models built in transformers 5.23: equal to the last one."""

from __future__ import annotations

from planner.evidence.fit.truth import Row, compare_parameters
from tests.truth.counts import each_row


@each_row("params.csv")
def test_parameters(row: Row) -> None:
    for figure in compare_parameters(row):
        assert figure.predicted == figure.counted, figure
