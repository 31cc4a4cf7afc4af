"""The images of a sample: what `--images` means, and how many patches and tokens they are.

`2x1024x768`: two images of 1,024 by 768 pixels per sample. `16x640x480@video`: a video of 16
frames. Families count patches by different rules (`planner/job/images.toml`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hardware.files import shipped_toml
from planner.job.errors import UsageError
from planner.job.image_rules import KINDS, ImageCount
from planner.job.specs import ModelSpec
from planner.job.video_rules import KINDS as VIDEO_KINDS
from planner.job.vision import ImageLoad, VisionSpec

if TYPE_CHECKING:
    from constraints.condition import UserCondition

# The largest side of an image, and the most images of a sample, that are accepted.
_WIDEST, _MOST = 1 << 20, 4096
_SIZE = re.compile(r"(?:(\d{1,9})x)?(\d{1,9})x(\d{1,9})(@video)?", re.ASCII)
# An image smaller by this factor shows whether a processor shrinks larger ones.
_SMALLER = 0.8
# Text only, for a model whose vision part is loaded anyway.
WITHOUT = "none"
_HINT = (
    "write number, width and height in pixels (2x1024x768), frames of a video (16x640x480@video), "
    "or none"
)


@dataclass(frozen=True, slots=True)
class ImageSize:
    """A number of images per sample of one size in pixels, or of frames of a video."""

    number: int
    width: int
    height: int
    video: bool = False


def read_images(text: str) -> ImageSize:
    """Parse the value of `--images`. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"--images {text}: {_HINT}")
    size = ImageSize(int(match[1] or 1), int(match[2]), int(match[3]), bool(match[4]))
    if not (0 < size.number <= _MOST and min(size.width, size.height) > 0):
        raise UsageError(
            f"--images {text}: give 1 to {_MOST} images of at least one pixel per side"
        )
    if max(size.width, size.height) > _WIDEST:
        raise UsageError(f"--images {text}: a side has at most {_WIDEST:,} pixels")
    return size


def image_load(
    model: ModelSpec, images: str | None, image_tokens: int | None, sample_tokens: float
) -> ImageLoad:
    """The images of a batch. `sample_tokens`: mean tokens of a sample, including those of its
    images. Raises UsageError."""
    if images is None and image_tokens is None:
        return ImageLoad() if model.vision is None else _usual(model.vision, sample_tokens)
    option = f"--images {images}" if images else f"--image-tokens {image_tokens}"
    if model.vision is None:
        raise UsageError(f"{option}: {model.name} reads only text; leave it out")
    if images is not None and image_tokens is not None:
        raise UsageError(f"{option} --image-tokens {image_tokens}: give one of them")
    if images == WITHOUT:
        return ImageLoad()
    if images is None:
        one, number = of_tokens(model.vision, image_tokens or 0), 1
    else:
        one, number = counted(model.vision, read_images(images), option)
    tokens = number * one.tokens
    if tokens > sample_tokens:
        raise UsageError(
            f"{option}: the images of a sample are {tokens:,} tokens, but a sample has only "
            f"{sample_tokens:,.0f}; give --seq {tokens} or more, or smaller images"
        )
    found = _load(one, number, sample_tokens)
    if images is None or not is_shrunk(model.vision, read_images(images)):
        return found
    return found.model_copy(update={"shrunk": images})


def is_shrunk(vision: VisionSpec, size: ImageSize) -> bool:
    """Whether the family's processor shrinks images of this size."""
    usual, scale = usual_size(vision.rule), _SMALLER
    if size.video or size.width * size.height <= usual[0] * usual[1]:
        return False
    whole = image_count(vision, size.width, size.height)
    less = image_count(vision, int(size.width * scale), int(size.height * scale))
    return less.patches >= whole.patches


def stated_tokens(model: ModelSpec, images: str | None, image_tokens: int | None) -> int:
    """Tokens of a sample's images as the options state them; 0 if they do not. Raises
    UsageError."""
    if model.vision is None or images == WITHOUT:
        return 0
    if images is None:
        return image_tokens or 0
    one, number = counted(model.vision, read_images(images), f"--images {images}")
    return number * one.tokens


def counted(vision: VisionSpec, size: ImageSize, option: str) -> tuple[ImageCount, int]:
    """One image or video, and how many a sample has. `option`: its name in errors. Raises
    UsageError."""
    try:
        if size.video:
            return video_count(vision, size.number, size.width, size.height), 1
        return image_count(vision, size.width, size.height), size.number
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def video_count(vision: VisionSpec, frames: int, width: int, height: int) -> ImageCount:
    """Counts of a video by the family's rule. Raises UsageError."""
    rule = image_rules()[vision.rule].get("video")
    if rule is None:
        having = ", ".join(name for name, row in image_rules().items() if "video" in row)
        raise UsageError(
            f"videos of the family {vision.rule} are not planned; those of {having} are. To count "
            f"the frames as images, give {frames}x{width}x{height}"
        )
    kind: str = rule["kind"]
    return VIDEO_KINDS[kind](vision, rule, frames, width, height)


def vision_conditions(model: ModelSpec) -> tuple[UserCondition, ...]:
    """Conditions on the degrees that a vision tower imposes."""
    from constraints.condition import user_condition

    if model.vision is None:
        return ()
    wanted = (user_condition("require", text) for text in _demands(model.vision))
    return tuple(replace(one, of=f"the vision tower of {model.name}") for one in wanted)


def first_layers(model: ModelSpec) -> int:
    """Fewest layers of a pipeline's first block, if further projectors of a tower on the first
    stage add to its layers (Megatron-Bridge 0.6.2, modelling_qwen3_vl/model.py)."""
    vision = model.vision
    return len(vision.projector.taps) if vision and vision.place != "layers" else 0


def _demands(vision: VisionSpec) -> Iterator[str]:
    """Conditions on the degrees. A split tower needs whole heads on every rank (Megatron adds heads
    to InternViT-6B's 25, examples/multimodal/config.py). For the last condition see `first_layers`.
    """
    if vision.place == "layers":
        yield from ("tp == 1", "pp == 1", "cp == 1")
        return
    if vision.place == "copied":
        yield "cp == 1"
    elif vision.tower.heads % 2 == 0:
        yield f"{vision.tower.heads} % tp == 0"
    if vision.tower.kind == "qwen3_vl":
        # Its provider gives the chunks no numbers (qwen3_vl_provider.py, `provide`).
        yield "vpp == 1"
    if vision.projector.taps:
        yield f"layers // (pp*vpp) >= {len(vision.projector.taps)}"


def image_side(rule: str) -> int:
    """Side in pixels of the squares that a family cuts images into, or of the longest side that it
    scales them to; 0 if it does neither."""
    row = image_rules()[rule]
    return int(row.get("size") or row.get("longest") or 0)


def usual_size(rule: str) -> tuple[int, int]:
    """Width and height in pixels of the image that is assumed for a family by default."""
    width, height = image_rules()[rule]["usual"]
    return int(width), int(height)


def image_count(vision: VisionSpec, width: int, height: int) -> ImageCount:
    """Counts of one image of a size in pixels, by the family's rule. Raises UsageError."""
    rule = image_rules()[vision.rule]
    return KINDS[rule["kind"]](vision, rule, width, height)


def _usual(vision: VisionSpec, sample_tokens: float) -> ImageLoad:
    """One image per sample of the family's default size (`usual_size`), or the part of it that a
    sample has room for."""
    width, height = usual_size(vision.rule)
    one = image_count(vision, width, height)
    room = min(1.0, sample_tokens / one.tokens)
    found = _load(one, room, sample_tokens)
    return found.model_copy(update={"usual": f"{width}x{height}"})


def _load(one: ImageCount, number: float, sample_tokens: float) -> ImageLoad:
    """The images of a batch, with `number` images in samples of `sample_tokens` tokens."""
    return ImageLoad(
        patches=number * one.patches / sample_tokens,
        span=one.span,
        read=one.read,
        across=round(number * one.seen),
        seen=number * one.seen / sample_tokens,
        tokens=number * one.tokens / sample_tokens,
    )


def of_tokens(vision: VisionSpec, tokens: int) -> ImageCount:
    """One image of a given number of tokens. Raises UsageError."""
    demand_tokens(tokens)
    patches = tokens * vision.projector.merged
    return ImageCount(tokens, patches, patches)


def demand_tokens(tokens: int) -> None:
    """Raise UsageError for a number of tokens that no image can have."""
    if tokens < 1:
        raise UsageError(
            f"--image-tokens {tokens}: give a whole number of at least 1, for example 1280"
        )


@cache
def image_rules() -> dict[str, dict[str, Any]]:
    """How families count the tokens of an image (`planner/job/images.toml`)."""
    return shipped_toml("planner.job", "images.toml")
