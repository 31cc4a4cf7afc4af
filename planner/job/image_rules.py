"""How model families cut an image into patches, and how many tokens it becomes.

Each rule follows the family's image processor in transformers 5.23. Sizes are in pixels; grids of
tiles are (columns, rows). A rule of `planner/job/images.toml` names its function here and the
function's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.job.errors import UsageError
from planner.job.vision import VisionSpec

Rule = Mapping[str, Any]
# Ratio of areas up to which LLaVA-OneVision keeps all features of an image.
_KEPT_RATIO = 1.1
# Qwen's processors refuse images with a larger ratio of their sides.
_THINNEST = 200
# The largest side to which Idefics 3 scales an image.
_IDEFICS_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ImageCount:
    """Counts of one image: tokens of the language model, tokens that the tower reads (patches and
    learned tokens), and the tokens that one of them attends to in a layer without windows.

    `seen`: tokens that cross-attention layers of the language model attend to; 0 if images are
    tokens of the sequence. `read`: share of the patches that the projector reads, which excludes
    padding tiles.
    """

    tokens: int
    patches: int
    span: int
    seen: int = 0
    read: float = 1.0


def square(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Every image is resized to one square (LLaVA 1.5, Gemma 3)."""
    del width, height
    one = _tile(vision, rule["size"])
    return ImageCount(rule["tokens"] + rule.get("around", 0), one, one)


def whole(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Every image is resized to the square that the tower has positions for (PaliGemma)."""
    del rule, width, height
    one = vision.tower.positions
    return ImageCount(one // vision.projector.merged, one, one)


def capped(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """An image is shrunk to a maximum number of patches, then padded to whole squares of patches
    (Kimi)."""
    patches = fitted(vision, rule, width, height)
    return ImageCount(patches // vision.projector.merged + rule["around"], patches, patches)


def fitted(vision: VisionSpec, rule: Rule, width: int, height: int) -> int:
    """Number of patches of an image after limits on their number and on each side."""
    patch, most, longest = vision.tower.patch, rule["most_patches"], rule["most_side"]
    count = max(1.0, height // patch) * max(1.0, width // patch)
    limits = (math.sqrt(most / count), *(longest * patch / side for side in (height, width)))
    if rule.get("refuses"):
        longest_after = min(1.0, limits[0]) * max(width, height)
        if longest_after >= longest * patch:
            raise UsageError(
                f"an image of {width}x{height} pixels: the family's processor refuses images with "
                f"{longest} or more patches of {patch} pixels per side; give another"
            )
        limits = limits[:1]
    scale = min(1.0, *limits)
    step = patch * math.isqrt(vision.projector.merged)
    rows, columns = (
        math.ceil(min(max(1, int(side * scale)), longest * patch) / step)
        for side in (height, width)
    )
    return int(rows * columns) * vision.projector.merged


def resized(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Sides become multiples of `factor` pixels, within limits of the area (Qwen-VL)."""
    limits = rule["least_pixels"], rule["most_pixels"]
    sides = fitted_sides(width, height, rule["factor"], limits)
    patches = (sides[0] // vision.tower.patch) * (sides[1] // vision.tower.patch)
    tokens = patches // vision.projector.merged
    return ImageCount(tokens + rule.get("around", 0), patches, patches)


def fitted_sides(
    width: int, height: int, factor: int, limits: tuple[int, int], frames: tuple[int, int] = (1, 1)
) -> list[int]:
    """(height, width) as multiples of `factor` pixels, within limits of the area.

    For videos the limits apply to the area times `frames`: one count when the area is compared,
    another when it is scaled. Raises UsageError.
    """
    if max(width, height) > _THINNEST * min(width, height):
        raise UsageError(
            f"an image of {width}x{height} pixels: the family refuses images whose sides differ "
            f"more than {_THINNEST}-fold (smart_resize); give another"
        )
    (least, most), (compared, scaled) = limits, frames
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    area = compared * sides[0] * sides[1]
    if area > most:
        scale = math.sqrt(scaled * height * width / most)
        return [max(factor, math.floor(side / scale / factor) * factor) for side in (height, width)]
    if area < least:
        scale = math.sqrt(least / (scaled * height * width))
        return [math.ceil(side * scale / factor) * factor for side in (height, width)]
    return sides


def nearest_ratio(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Tiles in the grid with the nearest aspect ratio, and a view of the whole image (InternVL)."""
    across, down = _nearest_grid(rule["least"], rule["most"], rule["size"], width, height)
    tiles = across * down
    tiles += 1 if tiles > 1 else 0
    one = _tile(vision, rule["size"])
    return ImageCount(tiles * rule["tokens"] + rule["around"], tiles * one, one)


@cache
def _nearest_grid(least: int, most: int, size: int, width: int, height: int) -> tuple[int, int]:
    """The grid with `least` to `most` tiles whose aspect ratio is nearest to the image's. Among
    equal ratios, a grid with more tiles wins if the image covers more than half of its area."""
    sides = range(1, most + 1)
    grids = sorted(
        ((a, d) for a in sides for d in sides if least <= a * d <= most), key=lambda g: g[0] * g[1]
    )
    best, found = math.inf, (1, 1)
    for grid in grids:
        apart = abs(width / height - grid[0] / grid[1])
        covers = width * height > 0.5 * size * size * grid[0] * grid[1]
        if apart < best or (apart == best and covers):
            best, found = apart, grid
    return found


def any_resolution(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Tiles of the best of a list of resolutions, without padding, beside a view of the whole
    image; a token ends each row (LLaVA-NeXT). With more tokens than `most_tiles` tiles have, the
    features are shrunk (LLaVA-OneVision's anyres_max)."""
    size, patch = rule["size"], vision.tower.patch
    side = size // patch
    down, across = _best_resolution(_grids(rule), width, height)
    rows, columns = side * (down // size), side * (across // size)
    if width / height > columns / rows:
        rows -= 2 * ((rows - int(round(height * columns / width, 7))) // 2)
    else:
        columns -= 2 * ((columns - int(round(width * rows / height, 7))) // 2)
    most = rule.get("most_tiles")
    ratio = math.sqrt(rows * columns / (most * side**2)) if most else 0.0
    if ratio > _KEPT_RATIO:
        rows, columns = int(rows // ratio), int(columns // ratio)
    tiles = 1 + (down // size) * (across // size)
    one = _tile(vision, size)
    return ImageCount(rows * columns + rows + side * side, tiles * one, one)


def _grids(rule: Rule) -> tuple[tuple[int, int], ...]:
    """Resolutions (height, width): those that the rule lists, or all up to a number of tiles per
    side."""
    if "grids" in rule:
        return tuple((down, across) for down, across in rule["grids"])
    sides = [rule["size"] * count for count in range(1, rule["side_tiles"] + 1)]
    return tuple((down, across) for down in sides for across in sides)


def _best_resolution(grids: Iterable[tuple[int, int]], width: int, height: int) -> tuple[int, int]:
    """The resolution that keeps most of an image, and among those the one that wastes least."""
    best, wasted, found = 0, math.inf, (0, 0)
    for down, across in grids:
        scale = min(across / width, down / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        waste = across * down - kept
        if kept > best or (kept == best and waste < wasted):
            best, wasted, found = kept, waste, (down, across)
    return found


def canvas(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Tiles of the canvas that enlarges an image least, or shrinks it least.

    Llama 4 adds a view of the whole image if there are several tiles, and tokens between tiles.
    Layers of Llama 3.2 cross-attend to the tiles; unused ones are padded to `padded`.
    """
    size, most = rule["size"], rule["most"]
    across, down = _least_canvas(most, size, width, height)
    tiles = across * down
    one = _tile(vision, size)
    if "padded" in rule:
        # All tiles of an image are one sequence.
        every = rule["padded"] * rule["tile_tokens"]
        # The class tokens of the tiles are read too.
        read = one / (one - vision.tower.class_tokens)
        return ImageCount(rule["around"], every, every, rule["padded"] * one, read)
    separators = tiles if tiles > 1 else 0
    tiles += 1 if tiles > 1 else 0
    return ImageCount(tiles * rule["tokens"] + separators + rule["around"], tiles * one, one)


def _least_canvas(most: int, size: int, width: int, height: int) -> tuple[int, int]:
    sides = range(1, most + 1)
    grids = [(a, d) for a in sides for d in sides if a * d <= most]
    scales = {(a, d): min(a * size / width, d * size / height) for a, d in grids}
    larger = [scale for scale in scales.values() if scale >= 1.0]
    wanted = min(larger) if larger else max(scales.values())
    return min((g for g in grids if scales[g] == wanted), key=lambda g: g[0] * g[1])


def broken_rows(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Patches of an image scaled to a longest side, with a token at the end of each row
    (Pixtral)."""
    longest, patch = rule["longest"], vision.tower.patch
    merged = math.isqrt(vision.projector.merged)
    step = patch * merged
    ratio = max(height / longest, width / longest)
    if ratio > 1.0:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = (height - 1) // step + 1, (width - 1) // step + 1
    patches = rows * columns * merged * merged
    return ImageCount((columns + 1) * rows, patches, patches)


def split(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """An image scaled to a longest side and split into tiles, with tokens for their positions,
    beside a view of the whole image (Idefics 3, SmolVLM)."""
    size, longest = rule["size"], rule["longest"]
    height, width = _to_longest(height, width, longest)
    height, width = _below(height, width, _IDEFICS_LIMIT)
    down, across = math.ceil(height / size), math.ceil(width / size)
    tokens, one = rule["tokens"], _tile(vision, size)
    if down * across == 1:
        return ImageCount(tokens + 3, one, one)
    tiles = down * across
    every = tokens + 3 + down * ((tokens + 2) * across + 1)
    return ImageCount(every, (tiles + 1) * one, one)


def _to_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """(height, width) with the longer side scaled to `longest` and the other one even."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        return max(shorter + shorter % 2, 1), longest
    shorter = int(longest * ratio)
    return longest, max(shorter + shorter % 2, 1)


def _below(height: int, width: int, most: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > most:
        height, width = int(most / ratio), most
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return max(height, 1), max(width, 1)


def high_definition(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """Tiles of a grid that covers the image, without padding, with a token at the end of each row,
    beside a view of the whole image (Phi-4-multimodal)."""
    size, most, patch = rule["size"], rule["most"], vision.tower.patch
    across, down = math.ceil(width / size), math.ceil(height / size)
    if across * down > most:
        across, down = _nearest_grid(1, most, size, width, height)
    side = size // patch
    wide, high = size * across / width, size * down / height
    padded = [0, 0]
    if wide < high:
        padded[1] = size * down - int(height * wide)
    else:
        padded[0] = size * across - int(width * high)
    half = (
        _half_places(side, across, padded[0] // patch),
        _half_places(side, down, padded[1] // patch),
    )
    one = _tile(vision, size)
    tokens = rule["tokens"] + 1 + half[0] * half[1] + half[1] + math.isqrt(rule["tokens"])
    return ImageCount(tokens, (1 + across * down) * one, one)


def high_definition_3(vision: VisionSpec, rule: Rule, width: int, height: int) -> ImageCount:
    """As many tiles along the longer side as the maximum allows, and as many along the shorter side
    as that needs, beside a view of the whole image. A token ends each row of patches, and one
    is in between. The tower always reads the maximum number of tiles (Phi-3-vision)."""
    size, most, tokens = rule["size"], rule["most"], rule["tokens"]
    ratio = max(width, height) / min(width, height)
    along = 1
    while along * math.ceil(along / ratio) <= most:
        along += 1
    along -= 1
    beside = max(1, math.ceil(int(along * size / ratio) / size))
    down = along if height > width else beside
    row = math.isqrt(tokens)
    one = _tile(vision, size)
    count = (along * beside + 1) * tokens + 1 + (down + 1) * row
    seen = count * vision.projector.merged
    return ImageCount(count, (most + 1) * one, one, read=seen / ((most + 1) * (one - 1)))


def _half_places(side: int, tiles: int, padded: int) -> int:
    """Number of positions along one side if every second one of each tile is kept, without the last
    `padded` positions, which are padding."""
    held = side * tiles - padded
    return sum(tile * side + place < held for tile in range(tiles) for place in range(0, side, 2))


def _tile(vision: VisionSpec, size: int) -> int:
    """Tokens that the tower reads for a square of `size` pixels a side."""
    return (size // vision.tower.patch) ** 2 + vision.tower.class_tokens


KINDS: Mapping[str, Callable[[VisionSpec, Rule, int, int], ImageCount]] = {
    "square": square,
    "resized": resized,
    "nearest-ratio": nearest_ratio,
    "any-resolution": any_resolution,
    "canvas": canvas,
    "broken-rows": broken_rows,
    "split": split,
    "high-definition": high_definition,
    "high-definition-3": high_definition_3,
    "whole": whole,
    "capped": capped,
}
