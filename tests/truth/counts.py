"""The reference counts that the tests compare with: one CSV file each in `data/`."""

from __future__ import annotations

import pytest

from tests.truth import accuracy
from tests.truth.predicted import label, read_counts

COUNTS = read_counts(accuracy.COUNTS)


def each_row(file: str) -> pytest.MarkDecorator:
    """Parametrise a test over the rows of a file."""
    rows = COUNTS[file]
    return pytest.mark.parametrize("row", rows, ids=[label(row) for row in rows])
