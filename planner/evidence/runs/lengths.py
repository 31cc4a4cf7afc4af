"""The lengths of a measured run's samples, and how they form the rows of a micro-batch."""

from __future__ import annotations

import re
from functools import lru_cache
from math import log, sqrt

from planner.evidence.runs.rows import MeasuredRow
from planner.job.length_text import lengths_of_mean, read_lengths
from planner.job.sample_rows import longest_of
from planner.job.samples import Lengths, Packing, Samples, lengths_of

# Samples of a micro-batch are concatenated, with attention within each: nothing is padded.
_UNPADDED = r"padding[- ]free"
# Single samples, or samples padded to the longest of their micro-batch.
_LONGEST = r"padded to (the )?longest|single sample"
# Every sample is as long as the limit.
_TO_LIMIT = r"padded( or (cut|truncated))? to (\d|(the )?(limit|max))"
# Forms of the column `lengths`: `mean 3234 std 2548 max 19548`, or with padding, `padded mean about
# 410 at micro-batch 8`.
_SPREAD = r"mean (\d+) std (\d+)(?:.* max (\d+))?"
_PADDED = r"padded mean (?:about )?(\d+) at micro-batch (\d+)"
# Cells that an open fact puts into `length_mean` and `lengths` (`open_facts.toml`): mean and
# maximum of a sample as shares of the limit, or the spread about a stated mean.
_OF_LIMIT = r"^([\d.]+) to ([\d.]+) of the limit$"
_SIGMA = r"^sigma ([\d.]+)$"
# The same for `length_max`, if images are stated but their text is not.
_BESIDE = r"^images and (\d+)$"
# Standard deviation of ln(length) of a data set if the row does not state it: the data that
# fms-acceleration ran padded and unpadded (Alpaca, OrcaMath; 4 and 8 samples together) is 1.44 to
# 1.81 times as long padded, which 0.35 to 0.55 gives.
_SIGMA_OF_SETS = 0.55
# The usual mean, as a share of the limit, of samples with only a known limit.
_USUAL_FILL = "0.3 to 1 of the limit"
# Assumed number of samples that a run meets: a data set of some tens of thousands.
_SEEN = 20_000


def longest_row(row: MeasuredRow) -> int | None:
    """Most tokens of a row of a micro-batch, if the row says so: the limit, or the longest sample
    that the run met. Unpadded samples of unknown distribution count with their mean."""
    limit, known = _limit(row), _known(row)
    if known is None or not _has_samples(row):
        mean = row.number("length_mean") if row.says("sequences", _UNPADDED) else None
        return max(1, round(mean)) if mean else limit
    met = round(known.quantile(1.0 - 1.0 / _samples_met(row)))
    return max(2, min(met, limit or met))


def samples_of(row: MeasuredRow) -> Samples:
    """How samples form the rows of a micro-batch; one length for all if the row says no more."""
    most, known = longest_row(row), _known(row)
    if not _has_samples(row) or known is None or most is None:
        return Samples()
    within = _within(row, known, most)
    packing: Packing = "longest" if pads_to_longest(row) else "padding-free"
    return Samples(within, packing=packing) if within.mean < most else Samples()


def _has_samples(row: MeasuredRow) -> bool:
    """Whether the rows of a micro-batch are samples, padded to the longest or joined without
    padding."""
    return row.says("sequences", f"{_LONGEST}|{_UNPADDED}")


def pads_to_longest(row: MeasuredRow) -> bool:
    """Whether samples are padded to the longest of their micro-batch."""
    return row.says("sequences", _LONGEST)


def differs_in_length(row: MeasuredRow) -> bool:
    """Whether micro-batches of a fine-tuning run differ in length, because samples are unpadded or
    only padded to the longest."""
    return _has_samples(row) and bool(row.text("tuning"))


def states_lengths(row: MeasuredRow) -> bool:
    """Whether the row states the length of its samples. Fine-tuning samples with a known limit
    count too, if each is a row or is padded to the limit: their mean is then an open fact."""
    fills = _has_samples(row) or row.says("sequences", _TO_LIMIT)
    if fills and row.text("tuning") and _limit(row) is not None:
        return True
    return bool(row.text("length_mean")) or _known(row) is not None


def _limit(row: MeasuredRow) -> int | None:
    beside = re.search(_BESIDE, row.fact("length_max"))
    if beside and (images := _of_images(row)):
        return images + int(beside[1])
    return row.integer("seq") or row.integer("length_max")


def _of_images(row: MeasuredRow) -> int:
    """Image tokens, which every sample has; 0 if not stated."""
    stated = re.match(r"\d+", row.fact("image_tokens"))
    return int(stated[0]) if stated else 0


def _known(row: MeasuredRow) -> Lengths | None:
    """The distribution of a row's sample lengths; None if the row does not say enough."""
    text = row.fact("lengths")
    if spread := re.search(_SPREAD, text):
        mean, deviation = float(spread[1]), float(spread[2])
        sigma = min(3.0, sqrt(log(1.0 + (deviation / mean) ** 2)))
        most = f",max={spread[3]}" if spread[3] else ""
        return read_lengths(f"lognormal:mean={spread[1]},sigma={sigma:.4f}{most}")
    if padded := re.search(_PADDED, text):
        return _before_padding(float(padded[1]), int(padded[2]))
    limit = _limit(row)
    if share := re.search(_OF_LIMIT, row.fact("length_mean") or _usual_fill(row)):
        return _of_limit(float(share[1]), float(share[2]), limit or 0, _of_images(row))
    mean_row = row.number("length_mean")
    if mean_row is None or mean_row >= (limit or mean_row + 1.0):
        return None
    together = 1 if row.says("sequences", _UNPADDED) else row.integer("mbs") or 1
    return _before_padding(mean_row, together, _sigma(row))


def _usual_fill(row: MeasuredRow) -> str:
    """The assumed `length_mean` for fine-tuning samples if only their limit is known; otherwise
    empty."""
    told = row.text("length_mean") or not row.text("tuning") or _limit(row) is None
    return "" if told or not _has_samples(row) else _USUAL_FILL


@lru_cache(maxsize=4096)
def _of_limit(mean: float, longest: float, limit: int, images: int) -> Lengths | None:
    """Samples whose mean and maximum are given as shares of the limit, not counting image tokens;
    None if all samples reach the limit."""
    if mean >= 1.0:
        return None
    most = max(2, images + round(longest * max(0, limit - images)))
    return lengths_of_mean(max(1, images + round(mean * max(0, limit - images)))).cut(most)


def _sigma(row: MeasuredRow) -> float:
    """Standard deviation of ln(length), stated or usual."""
    found = re.search(_SIGMA, row.fact("lengths"))
    return float(found[1]) if found else _SIGMA_OF_SETS


@lru_cache(maxsize=4096)
def _before_padding(mean: float, mbs: int, sigma: float = _SIGMA_OF_SETS) -> Lengths:
    """Samples whose rows, padded to the longest of `mbs`, have this mean length."""
    some = read_lengths(f"lognormal:mean=1000,sigma={sigma}")
    longest, _ = longest_of(some, "none", mbs)
    before = max(1, round(mean * some.mean / longest))
    return read_lengths(f"lognormal:mean={before},sigma={sigma}")


def _within(row: MeasuredRow, known: Lengths, most: int) -> Lengths:
    """The samples cut at a length, or without the longer ones if the row says that they are
    dropped."""
    if not row.says("lengths", "dropped"):
        return known.cut(most)
    pairs = [pair for pair in zip(known.tokens, known.shares, strict=True) if pair[0] <= most]
    return lengths_of(pairs, known.origin) if pairs else known.cut(most)


def _samples_met(row: MeasuredRow) -> int:
    """The number of samples in the measured steps, if the row says so; otherwise that of a data
    set."""
    steps = re.search(r"(\d+)(?: optimizer)? steps", row.fact("time_kind"))
    batch = row.integer("gbs") or row.integer("mbs") or 1
    return max(2, int(steps[1]) * batch) if steps else _SEEN
