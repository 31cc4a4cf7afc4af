"""Micro-batch of a measured run that states none.

Operators tune it, and what is published is what they settled on: of a few powers of two the
smallest that by prediction is about as fast as the fastest, among those that fit.
"""

from __future__ import annotations

from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow

_CANDIDATES = (1, 2, 4, 8)
# A larger micro-batch costs memory: one that gains less than this share of the time is not taken.
LEAST_GAIN = 0.02


def other_micro_batches(row: MeasuredRow, mapped: MappedRow) -> list[MappedRow]:
    """The row at each micro-batch that a run of its batch may have had; none where it is stated or
    follows from the batch."""
    if row.text("mbs") is not None or mapped.row is not row or mapped.layout is not None:
        return []
    found = []
    for size in _CANDIDATES:
        trial = MeasuredRow(row.file, row.line, row.cells | {"mbs": str(size)})
        try:
            one_map_row = map_row(trial)
        except (UnpredictableRowError, ValueError):
            continue
        # Smaller where a rank's share of the batch is.
        if one_map_row.degrees.mbs == size and one_map_row.batch_share == 1.0:
            found.append(one_map_row)
    return found
