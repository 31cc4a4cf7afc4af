"""What a program of Hugging Face does with the parts of a vision-language model, and how large it
lets images be (`towers.toml`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hardware.files import shipped_toml
from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.job.tuning import PARTS
from planner.launch.dialects.hf.arguments import Named, Program, is_switched
from planner.launch.dialects.hf.tuned import FULL, asks_for
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Problem

_MAX_PIXELS = "MAX_PIXELS"
# Settings of scripts of one's own that limit the frames and pixels of videos, and none that merely
# stand beside those of images, as LLaMA-Factory's and ms-swift's do.
_VIDEOS = re.compile(r"video_(max|min)_frames?(_pixels)?$|max_video_frames$|frames_upbound$")
_VIDEOS_FIX = "--images 16x640x480@video, with frames and size of yours"


@cache
def _programs() -> Mapping[str, Mapping[str, Any]]:
    return shipped_toml("planner.launch.dialects.hf", "towers.toml")


@cache
def tower_names() -> frozenset[str]:
    """Every setting that is read here."""
    names: set[str] = set()
    for row in _programs().values():
        names |= {row[part][0] for part in PARTS} | {row["pixels"][0]}
        names |= {*row.get("trains", ()), *row.get("also", ())}
    return frozenset(names)


def frozen_parts(named: Named, program: Program) -> tuple[str, ...]:
    """Parts that nothing trains, in the words of `--freeze`; of a program that has no settings for
    them none is frozen."""
    row = _programs().get(program)
    return tuple(part for part in PARTS if row and _is_frozen(part, row, named))


def _is_frozen(part: str, row: Mapping[str, Any], named: Named) -> bool:
    trains = [name for name, of in row.get("trains", {}).items() if of == part and name in named]
    if trains:
        return not any(is_switched(named, name) for name in trains)
    also = [name for name, of in row.get("also", {}).items() if of == part]
    said = [name for name in (row[part][0], *also) if name in named]
    return any(is_switched(named, name) for name in said) if said else bool(row[part][1])


def with_towers(
    found: Found, named: Named, program: Program, launch: LaunchCommand | None, images: str | None
) -> Found:
    """A launch of a vision-language model with the parts that it freezes, and its images. `images`:
    what the caller knows of them."""
    model = found.shape or (load_model(found.model).spec if found.model else None)
    if model is None or model.vision is None:
        return found
    frozen = (*found.freeze, *frozen_parts(named, program))
    found = replace(found, freeze=tuple(dict.fromkeys(frozen)), images=images)
    area = _most_pixels(named, program, launch)
    if images is not None or area is None:
        return found
    key, pixels = area
    side = math.isqrt(pixels)
    note = (
        f"one image a sample of {side}x{side} pixels, the most that {key} = {pixels:,} lets it "
        "have; give --images for others"
    )
    return replace(found, images=f"1x{side}x{side}", assumed=(*found.assumed, note))


def unsized(named: Named, found: Found) -> tuple[Problem, ...]:
    """Videos, of which settings limit frames and pixels and say no more: how many tokens a sample
    has of them, only the data says."""
    model = found.shape or (load_model(found.model).spec if found.model else None)
    video = next((name for name in named if _VIDEOS.match(name)), None)
    if video is None or model is None or model.vision is None or found.images is not None:
        return ()
    text = f"{video}: it trains on videos, of which the file does not say how large they are"
    return (Problem("videos-unknown", text, "missing", (named[video].place,), _VIDEOS_FIX),)


def loads_its_tower(named: Named, program: Program, model: ModelSpec | None) -> bool:
    """Whether a program loads a vision-language model with its tower and its settings say what of
    it is trained: in full alone, since adapters go by names that layers of the tower have too."""
    has_tower = model is not None and model.vision is not None
    return (
        has_tower
        and (program == "trl" or program in _programs())
        and (asks_for(named, program) == FULL)
    )


def _most_pixels(
    named: Named, program: Program, launch: LaunchCommand | None
) -> tuple[str, int] | None:
    """The setting that limits an image's area and the limit; None where nothing does."""
    for key, text in _limits(named, program, launch):
        number = digits(text)
        if number:
            return key, number
    return None


def _limits(
    named: Named, program: Program, launch: LaunchCommand | None
) -> Iterator[tuple[str, str]]:
    """Settings that may limit it, the first that counts first."""
    row = _programs().get(program)
    if row is None:
        return
    key, usual = row["pixels"]
    if key in named:
        yield key, str(named[key].value)
    if launch is not None and program == "swift":
        given = launch.command.environment.get(_MAX_PIXELS)
        yield _MAX_PIXELS, given.value if given else ""
    yield key, str(usual or "")
