"""The reference counts that the tests compare with: one CSV file each in `data/`."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.evidence.fit.truth import label, read_counts

FOLDER = Path(__file__).parent / "data"
COUNTS = read_counts(FOLDER)


def each_row(file: str) -> pytest.MarkDecorator:
    """Parametrise a test over the rows of a file."""
    rows = COUNTS[file]
    return pytest.mark.parametrize("row", rows, ids=[label(row) for row in rows])
