"""Image patches that a vision tower reads if samples differ in length.

The op table has the tower's rows per token of the language model, averaged over all samples. But
padding has no images, and the longest sample need not have the most patches, so the rows are costed
at the patches of a micro-batch: once for memory and once for time (`planner.predict.sample_costs`).
Memory contains the longest row and the most patches at once, whether or not one sample has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from planner.job.job import Job
from planner.predict.ops.rows import Piece, times

# Prefix of the names of a vision part's rows.
VISION = "vision/"


def is_pictured(job: Job) -> bool:
    """Whether patches are counted per sample."""
    lengths = job.samples.lengths
    return lengths is not None and bool(lengths.mean_patches) and bool(job.model.images.patches)


def held_pictures(job: Job, mbs: int) -> float:
    """Factor on the image patches for memory: patches of a row in the micro-batch that has the
    most, divided by the average number for as many tokens as the longest row has. 1 if patches are
    spread evenly over tokens."""
    if not is_pictured(job):
        return 1.0
    row = job.row(mbs)
    return row.most_patches / (job.model.images.patches * row.most)


def timed_pictures(job: Job, mbs: int) -> float:
    """Factor on the image patches for time: patches of a mean row, divided by the average number
    for as many tokens as the row computes. 1 if patches are spread evenly over tokens."""
    if not is_pictured(job):
        return 1.0
    row = job.row(mbs)
    return row.patches / (job.model.images.patches * row.computed)


def with_pictures(pieces: Sequence[Piece], factor: float) -> tuple[Piece, ...]:
    """The pieces with their numbers of patches multiplied by `factor`."""
    return tuple(pieces) if factor == 1.0 else _scaled(tuple(pieces), factor)


@lru_cache(maxsize=64)
def _scaled(pieces: tuple[Piece, ...], factor: float) -> tuple[Piece, ...]:
    return tuple(
        replace(
            piece,
            ops=tuple(times(op, factor) if op.name.startswith(VISION) else op for op in piece.ops),
        )
        for piece in pieces
    )
