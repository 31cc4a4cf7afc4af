"""How model families cut a video into patches, and how many tokens it becomes.

A video is a number of frames of one size, already sampled by a program. Each rule follows the
family's video processor in transformers 5.23; `planner/job/images.toml` has the parameters, below
the family's image rule. `marks` is the number of text tokens around each part (time stamps),
approximately as the family's tokenizer makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from planner.job.image_rules import ImageCount, Rule, fitted, fitted_sides
from planner.job.vision import VisionSpec


def pairs(vision: VisionSpec, rule: Rule, frames: int, width: int, height: int) -> ImageCount:
    """Two frames share each patch, and each pair of frames is an image of its own. `of_all`: limits
    of the area apply to all frames together (Qwen3-VL), else to each (Qwen2-VL)."""
    tower = vision.tower
    parts = math.ceil(frames / tower.frames)
    limits = rule["least_pixels"], rule["most_pixels"]
    if rule.get("of_all"):
        shorter = max(1.0, rule["factor"] / height, rule["factor"] / width)
        width, height = int(width * shorter), int(height * shorter)
        whole = max(1, round(frames / tower.frames)) * tower.frames
        sides = fitted_sides(width, height, rule["factor"], limits, (whole, frames))
    else:
        sides = fitted_sides(width, height, rule["factor"], limits)
    one = (sides[0] // tower.patch) * (sides[1] // tower.patch)
    tokens = parts * (one // vision.projector.merged + rule.get("marks", 0))
    return ImageCount(tokens + rule.get("around", 0), parts * one, one)


def pooled(vision: VisionSpec, rule: Rule, frames: int, width: int, height: int) -> ImageCount:
    """Every frame is a square whose features are shrunk to half of each side (LLaVA-OneVision)."""
    del width, height
    side = rule["size"] // vision.tower.patch
    one = side * side + vision.tower.class_tokens
    return ImageCount(frames * math.ceil(side / 2) ** 2 + 1, frames * one, one)


def tiles(vision: VisionSpec, rule: Rule, frames: int, width: int, height: int) -> ImageCount:
    """Every frame is one tile (InternVL, SmolVLM)."""
    del width, height
    one = (rule["size"] // vision.tower.patch) ** 2 + vision.tower.class_tokens
    return ImageCount(frames * (rule["tokens"] + rule["marks"]), frames * one, one)


def chunks(vision: VisionSpec, rule: Rule, frames: int, width: int, height: int) -> ImageCount:
    """Frames are grouped in chunks whose patches attend to each other; the mean over a chunk gives
    the tokens of one frame (Kimi K2.5)."""
    parts = math.ceil(frames / rule["frames"])
    one = fitted(vision, rule, width, height)
    tokens = parts * (one // vision.projector.merged + rule["marks"])
    span = min(frames, rule["frames"]) * one
    return ImageCount(tokens, frames * one, span, read=parts / frames)


KINDS: Mapping[str, Callable[[VisionSpec, Rule, int, int, int], ImageCount]] = {
    "pairs": pairs,
    "pooled": pooled,
    "tiles": tiles,
    "chunks": chunks,
}
