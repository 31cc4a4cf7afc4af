"""What a vision tower reads of samples of unlike lengths: it follows the sample, not its tokens.

The op table has a tower's rows for each token of the language model, by the mean of all samples.
Padding has no images, and the longest sample need not have the most: the rows are costed at the
patches that a micro-batch has, twice, as all else is (`planner.predict.sample_costs`). Memory holds
the longest row and the most patches at once, whether or not one sample has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from planner.job.job import Job
from planner.predict.ops.rows import Piece, times

# What names of a vision part's rows begin with.
VISION = "vision/"


def is_pictured(job: Job) -> bool:
    """Whether patches are counted by the sample."""
    lengths = job.samples.lengths
    return lengths is not None and bool(lengths.mean_patches) and bool(job.model.images.patches)


def held_pictures(job: Job, mbs: int) -> float:
    """Patches of a row of the micro-batch with the most, over those of as many tokens of the
    longest; 1 where they are spread over tokens."""
    if not is_pictured(job):
        return 1.0
    row = job.row(mbs)
    return row.most_patches / (job.model.images.patches * row.most)


def timed_pictures(job: Job, mbs: int) -> float:
    """The same of a row on average, over those of as many tokens as are computed."""
    if not is_pictured(job):
        return 1.0
    row = job.row(mbs)
    return row.patches / (job.model.images.patches * row.computed)


def with_pictures(pieces: Sequence[Piece], factor: float) -> tuple[Piece, ...]:
    """The pieces with so many times the patches."""
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
