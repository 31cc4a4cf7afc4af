"""How long the samples of a measured run are, and how they became rows of a micro-batch."""

from __future__ import annotations

from planner.evidence.runs.rows import MeasuredRow
from planner.job.length_text import lengths_of_mean
from planner.job.samples import Samples

# Samples of a micro-batch behind each other, attention within each: nothing is padded.
_UNPADDED = r"padding[- ]free"


def longest_row(row: MeasuredRow) -> int | None:
    """Tokens of a row of a micro-batch at most, where the row says so: of samples without padding
    their mean, which is what each adds."""
    if row.says("sequences", _UNPADDED) and (mean := row.number("length_mean")):
        return max(1, round(mean))
    return row.integer("seq") or row.integer("length_max")


def samples_of(row: MeasuredRow) -> Samples:
    """How the row's samples became rows of a micro-batch; one length where it says no more."""
    mean, most = row.number("length_mean"), longest_row(row)
    if not pads_to_longest(row) or mean is None or most is None or mean >= most:
        return Samples()
    return Samples(lengths_of_mean(round(mean)).cut(most), packing="longest")


def pads_to_longest(row: MeasuredRow) -> bool:
    """Whether samples are padded to the longest of their micro-batch."""
    return row.says("sequences", "padded to (the )?longest")
