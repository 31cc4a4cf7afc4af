"""Images and videos of samples, as a lengths file states them row by row.

Columns: `images` (how many; 1 if a size is stated but no number), `width` and `height` in pixels,
`frames` of a video, or `image_tokens`. Image tokens count in the length of the sample. They are
added to a column `text_tokens`, which is text alone; any other column of lengths already includes
them. Samples are drawn together with their images, so what a tower reads follows the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from planner.job.errors import UsageError
from planner.job.image_rules import ImageCount
from planner.job.images import ImageSize, counted, of_tokens
from planner.job.samples import Lengths, demand_length, pictured_lengths_of
from planner.job.vision import ImageLoad, VisionSpec


class Pictured(NamedTuple):
    """Samples with their images: lengths including image tokens; `load`, the images of a batch of
    such samples; and the most image tokens of one sample."""

    lengths: Lengths
    load: ImageLoad
    most_tokens: int


class _Seen(NamedTuple):
    """Counts of a sample's images: tokens in the row, patches, patches that one attends to, patches
    that the projector reads, and tokens that cross-attention layers read."""

    tokens: int = 0
    patches: int = 0
    span: float = 0.0
    read: float = 0.0
    across: int = 0


@lru_cache(maxsize=64)
def has_pictures(text: str, _: tuple[int, int]) -> bool:
    """Whether a text names a file with image columns."""
    from planner.job.length_files import columns_of_file
    from planner.job.length_text import is_file

    return is_file(text.strip()) and bool(columns_of_file(text.strip()).images)


@lru_cache(maxsize=8)
def pictured(
    text: str, _: tuple[int, int], vision: VisionSpec | None, name: str
) -> Pictured | None:
    """The samples of a lengths file with image columns, as a model reads them; None for other
    texts. The second argument is the file's stamp, so that a changed file is read again. Raises
    UsageError."""
    from planner.job.length_files import samples_of_file
    from planner.job.length_text import is_file

    if not is_file(text.strip()):
        return None
    samples, columns, text_alone = samples_of_file(text.strip())
    if not columns:
        return None
    rows, most_tokens = [], 0
    sums = [0.0] * 5
    for sample, number in samples.items():
        cells = dict(zip(columns, sample.images, strict=True))
        seen = _seen(cells, vision, f"--lengths {text}", name)
        length = sample.tokens + seen.tokens if text_alone else sample.tokens
        _demand_room(length, seen, f"--lengths {text}")
        most_tokens = max(most_tokens, seen.tokens)
        rows.append((float(length), float(number), float(seen.patches)))
        weighed = (seen.tokens, seen.patches, seen.patches * seen.span, seen.patches * seen.read,
                   seen.across)  # fmt: skip
        sums = [total + number * one for total, one in zip(sums, weighed, strict=True)]
    most = max(patches for *_, patches in rows)
    origin = f"{Path(text).name}: {sum(samples.values()):,} samples with their images"
    return Pictured(pictured_lengths_of(rows, origin, most), _load(rows, sums), most_tokens)


def _load(rows: list[tuple[float, float, float]], sums: list[float]) -> ImageLoad:
    """The images of a batch, per token of its samples."""
    tokens = sum(length * number for length, number, _ in rows)
    of_images, patches, spanned, read, across = sums
    if not patches:
        return ImageLoad()
    samples = sum(number for _, number, _ in rows)
    return ImageLoad(
        patches=patches / tokens,
        span=max(1, round(spanned / patches)),
        read=read / patches,
        across=round(across / samples),
        seen=across / tokens,
        tokens=min(1.0, of_images / tokens),
    )


def _seen(
    cells: Mapping[str, int | None], vision: VisionSpec | None, said: str, name: str
) -> _Seen:
    """The images in one row of the file. Raises UsageError."""
    number, width, height = cells.get("images"), cells.get("width"), cells.get("height")
    frames, tokens = cells.get("frames"), cells.get("image_tokens")
    sized = bool(width) and bool(height)
    if number == 0 or not (sized or tokens):
        if number and "image_tokens" not in cells:
            raise UsageError(f"{said}: a sample has {number} images but no width and height")
        return _Seen()
    if vision is None:
        raise UsageError(f"{said}: samples have images, but {name} reads only text")
    if not sized:
        return _of(of_tokens(vision, tokens or 0), 1)
    size = ImageSize(frames or number or 1, width or 0, height or 0, bool(frames))
    return _counted(vision, size, said)


@lru_cache(maxsize=65536)
def _counted(vision: VisionSpec, size: ImageSize, said: str) -> _Seen:
    return _of(*counted(vision, size, said))


def _of(one: ImageCount, number: int) -> _Seen:
    """`number` equal images."""
    return _Seen(
        number * one.tokens, number * one.patches, float(one.span), one.read, number * one.seen
    )


def _demand_room(length: int, seen: _Seen, said: str) -> None:
    """Raise UsageError if a sample is empty or shorter than its images."""
    if length < seen.tokens:
        raise UsageError(
            f"{said}: a sample of {length:,} tokens has images of {seen.tokens:,} tokens; call "
            "the column text_tokens if it leaves images out"
        )
    demand_length(length, said)
