"""How long the samples of a measured run are, and how they became rows of a micro-batch."""

from __future__ import annotations

import re
from math import log, sqrt

from planner.evidence.runs.rows import MeasuredRow
from planner.job.length_text import lengths_of_mean, read_lengths
from planner.job.sample_rows import longest_of
from planner.job.samples import Lengths, Samples, lengths_of

# Samples of a micro-batch behind each other, attention within each: nothing is padded.
_UNPADDED = r"padding[- ]free"
# A sample by itself, or the samples of a micro-batch as long as the longest of them.
_LONGEST = r"padded to (the )?longest|single sample"
# What the column `lengths` says of them: `mean 3234 std 2548 max 19548`, or what padding made of
# them, `padded mean about 410 at micro-batch 8`.
_SPREAD = r"mean (\d+) std (\d+)(?:.* max (\d+))?"
_PADDED = r"padded mean (?:about )?(\d+) at micro-batch (\d+)"
# Samples of a data set of some tens of thousands, whose longest a run meets.
_SEEN = 20_000


def longest_row(row: MeasuredRow) -> int | None:
    """Tokens of a row of a micro-batch at most, where the row says so: the limit, or the longest
    sample that the run met; of samples without padding their mean, which is what each adds."""
    if row.says("sequences", _UNPADDED) and (mean := row.number("length_mean")):
        return max(1, round(mean))
    limit, known = _limit(row), _known(row)
    if known is None or not pads_to_longest(row):
        return limit
    met = round(known.quantile(1.0 - 1.0 / _samples_met(row)))
    return max(2, min(met, limit or met))


def samples_of(row: MeasuredRow) -> Samples:
    """How the row's samples became rows of a micro-batch; one length where it says no more."""
    most, known = longest_row(row), _known(row)
    if not pads_to_longest(row) or known is None or most is None:
        return Samples()
    within = _within(row, known, most)
    return Samples(within, packing="longest") if within.mean < most else Samples()


def pads_to_longest(row: MeasuredRow) -> bool:
    """Whether samples are padded to the longest of their micro-batch."""
    return row.says("sequences", _LONGEST)


def differs_in_length(row: MeasuredRow) -> bool:
    """Whether the row, of which little is padded or all to the longest, says that its micro-batches
    differ in length, and how long its samples are."""
    apart = row.says("sequences", f"{_LONGEST}|{_UNPADDED}")
    return apart and bool(row.text("tuning")) and bool(row.text("lengths"))


def states_lengths(row: MeasuredRow) -> bool:
    """Whether the row says how long its samples are on average, beside how long they may be."""
    return bool(row.text("length_mean")) or _known(row) is not None


def _limit(row: MeasuredRow) -> int | None:
    return row.integer("seq") or row.integer("length_max")


def _known(row: MeasuredRow) -> Lengths | None:
    """The distribution of a row's samples, where it says enough of it."""
    text = row.fact("lengths")
    if spread := re.search(_SPREAD, text):
        mean, deviation = float(spread[1]), float(spread[2])
        sigma = min(3.0, sqrt(log(1.0 + (deviation / mean) ** 2)))
        most = f",max={spread[3]}" if spread[3] else ""
        return read_lengths(f"lognormal:mean={spread[1]},sigma={sigma:.4f}{most}")
    if padded := re.search(_PADDED, text):
        return _before_padding(float(padded[1]), int(padded[2]))
    mean_row = row.number("length_mean")
    if mean_row is None or mean_row >= (_limit(row) or mean_row + 1.0):
        return None
    return _before_padding(mean_row, row.integer("mbs") or 1)


def _before_padding(mean: float, mbs: int) -> Lengths:
    """Samples of the usual spread whose rows, padded to the longest of `mbs`, have a mean length;
    both are in proportion."""
    usual = lengths_of_mean(1000)
    longest, _ = longest_of(usual, "none", mbs)
    return lengths_of_mean(max(1, round(mean * usual.mean / longest)))


def _within(row: MeasuredRow, known: Lengths, most: int) -> Lengths:
    """The samples cut at a length, or those alone that are no longer."""
    if not row.says("lengths", "dropped"):
        return known.cut(most)
    pairs = [pair for pair in zip(known.tokens, known.shares, strict=True) if pair[0] <= most]
    return lengths_of(pairs, known.origin) if pairs else known.cut(most)


def _samples_met(row: MeasuredRow) -> int:
    """Samples of the steps that were measured, where the row says how many; else a data set's."""
    steps = re.search(r"(\d+)(?: optimizer)? steps", row.fact("time_kind"))
    batch = row.integer("gbs") or row.integer("mbs") or 1
    return max(2, int(steps[1]) * batch) if steps else _SEEN
