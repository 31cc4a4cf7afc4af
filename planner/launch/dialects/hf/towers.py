"""How Hugging Face's programs treat the parts of a vision-language model, and how they limit the
size of images (`towers.toml`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hardware.files import shipped_toml
from planner.job.images import WITHOUT, usual_size
from planner.job.models.catalog import load_model
from planner.job.tuning import PARTS, PROJECTOR, VISION_TOWER
from planner.job.vision import VisionSpec
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import Named, Program, is_switched
from planner.launch.dialects.hf.family_scripts import LARGEST_IMAGE
from planner.launch.dialects.hf.modules import spares_the_tower
from planner.launch.dialects.hf.program_pieces import SAMPLE_IMAGES
from planner.launch.dialects.hf.python import OTHER_CLASS
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import CHECKPOINT_TOWER, USUAL, Found, Hints, Problem

_MAX_PIXELS = "MAX_PIXELS"
# Settings by which scripts limit the frames and pixels of videos. LLaMA-Factory's and ms-swift's
# are left out: they are usually set along with those for images.
_VIDEOS = re.compile(r"video_(max|min)_frames?(_pixels)?$|max_(video|num)_frames$|frames_upbound$")


@cache
def _programs() -> Mapping[str, Mapping[str, Any]]:
    return shipped_toml("planner.launch.dialects.hf", "towers.toml")


def tower_settings(program: str) -> Mapping[str, Any]:
    """The settings of a program for vision-language models."""
    return _programs()[program]


def adapters_reach_projector(program: str, rule: str, tower_frozen: bool) -> bool:
    """Whether a program adds adapters to the projector of a vision-language model. True for
    programs without the list `adapts_projector`. For others only if the family is in the list,
    since its projector's modules have the names of the tower's, and the tower is not frozen.
    `rule`: the family, by its rule for image tokens."""
    of = _programs().get(program, {}).get("adapts_projector")
    return of is None or (rule in of and not tower_frozen)


@cache
def tower_names() -> frozenset[str]:
    """Every setting that is read here."""
    names: set[str] = set()
    for row in _programs().values():
        names |= {row[part][0] for part in PARTS} | {row["pixels"][0]}
        names |= {*row.get("trains", ()), *row.get("also", ())}
    names.discard("")
    return frozenset(names | {SAMPLE_IMAGES})


def frozen_parts(named: Named, program: Program) -> tuple[str, ...]:
    """The parts that are frozen, in the words of `--freeze`; none for a program without such
    settings."""
    row = _programs().get(program)
    return tuple(part for part in PARTS if row and _is_frozen(part, row, named))


def _is_frozen(part: str, row: Mapping[str, Any], named: Named) -> bool:
    told = row.get("trains", {}).items()
    trains = [name for name, of in told if part in of.split() and name in named]
    if trains:
        return not any(is_switched(named, name) for name in trains)
    also = [name for name, of in row.get("also", {}).items() if of == part]
    said = [name for name in (row[part][0], *also) if name in named]
    return any(is_switched(named, name) for name in said) if said else bool(row[part][1])


def with_towers(
    found: Found, named: Named, program: Program, launch: LaunchCommand | None, hints: Hints
) -> Found:
    """A launch of a vision-language model, with its frozen parts and its images. `hints`: the
    caller's knowledge of these."""
    model = found.shape or (load_model(found.model).spec if found.model else None)
    vision = model.vision if model else None
    beside = None if vision else _beside(found, named, program)
    seen = vision or beside
    if seen is None:
        return found
    found = _loaded(found, named, program, seen)
    if hints.images or hints.image_tokens:
        images = None if hints.images == USUAL else hints.images
        return replace(found, images=images, image_tokens=hints.image_tokens)
    if SAMPLE_IMAGES in named:
        return replace(found, images=str(named[SAMPLE_IMAGES].value))
    if beside and not _says_images(named, program, launch):
        return _of_text(found, program)
    limited = _of_limits(found, named, program, launch)
    return _of_usual(limited, beside) if beside and not limited.images else limited


def _of_usual(found: Found, vision: VisionSpec) -> Found:
    """The launch for images whose size is not stated: one image per sample, of the largest usual
    size for the model's family."""
    size = "x".join(map(str, usual_size(vision.rule)))
    return _of_one_image(found, size, "the largest usual one")


def _of_one_image(found: Found, size: str, why: str) -> Found:
    """A launch with one image per sample of `size` pixels; `why`: where the size comes from."""
    note = f"one image a sample of {size} pixels, {why}; give --images for others"
    return replace(found, images=f"1x{size}", assumed=(*found.assumed, note))


def _of_limits(found: Found, named: Named, program: Program, launch: LaunchCommand | None) -> Found:
    """The launch with one image per sample, as large as the settings allow: the stated size, or a
    square of the stated area. Unchanged if nothing limits images."""
    if (largest := named.get(LARGEST_IMAGE)) is not None:
        why = f"the most that {largest.key} lets it have"
        return _of_one_image(found, str(largest.value), why)
    areas = ((key, digits(text)) for key, text in _limits(named, program, launch))
    key, pixels = next(((key, pixels) for key, pixels in areas if pixels), ("", 0))
    if not pixels:
        return found
    side = math.isqrt(pixels)
    return _of_one_image(found, f"{side}x{side}", f"the most that {key} = {pixels:,} lets it have")


def unsized(named: Named, found: Found, hints: Hints) -> Iterator[Problem]:
    """Limits of image areas that are not whole numbers, which every program refuses; and videos,
    since only the data tells how many tokens a sample of videos has."""
    model = found.shape or (load_model(found.model).spec if found.model else None)
    if model is None or model.vision is None:
        return
    for name in sorted({row["pixels"][0] for row in _programs().values()} & named.keys()):
        setting = named[name]
        if not (setting.unknown or setting.value is None or digits(str(setting.value))):
            yield from said("no_area", setting.place, setting=setting)
    video = next((name for name in named if _VIDEOS.match(name)), None)
    limit = named.get("max_pixels")
    usual = limit is not None and not limit.line and not limit.spans
    stated = (found.images and not usual) or hints.images or hints.image_tokens
    if video is not None and not stated:
        yield from said("videos_unknown", named[video].place, video=video)


def loads_its_tower(program: Program, model: str | None) -> bool:
    """Whether a program loads a model's vision tower and its settings say which parts train."""
    resolved = load_model(model) if model else None
    has_tower = resolved is not None and (resolved.vision or resolved.spec.vision) is not None
    return has_tower and (program == "trl" or program in _programs())


# Classes that load a vision-language model, and never a text model.
_OF_VISION = re.compile(
    r"AutoModelFor(ImageTextToText|Vision2Seq)|\w+ForConditionalGeneration|FastVisionModel"
)


def is_class_of_vision(kind: str) -> bool:
    """Whether a class loads a vision-language model with its tower."""
    return _OF_VISION.fullmatch(kind) is not None


def _by_class(named: Named) -> bool:
    setting = named.get(OTHER_CLASS)
    return setting is not None and is_class_of_vision(str(setting.value))


def _beside(found: Found, named: Named, program: Program) -> VisionSpec | None:
    """The vision part that the checkpoint holds besides its language model. None if the checkpoint
    has none, or the program is not known to load it."""
    loads = _programs().get(program, {}).get("loads_beside") or _by_class(named)
    unknown = any(problem.rule == CHECKPOINT_TOWER for problem in found.problems)
    if not (loads and unknown and found.model):
        return None
    return load_model(found.model).vision


def _loaded(found: Found, named: Named, program: Program, vision: VisionSpec) -> Found:
    """The launch with the frozen parts of its vision-language model, and without the problem that
    the checkpoint holds a vision tower."""
    frozen = (*found.freeze, *_frozen(found, vision, named, program))
    known = tuple(problem for problem in found.problems if problem.rule != CHECKPOINT_TOWER)
    return replace(found, freeze=tuple(dict.fromkeys(frozen)), problems=known)


def _says_images(named: Named, program: Program, launch: LaunchCommand | None) -> bool:
    """Whether files limit images or load a class for them, which those with images do."""
    row = _programs().get(program, {})
    signs = (*row.get("shows_images", ()), row.get("pixels", ("",))[0])
    limits = launch is not None and _MAX_PIXELS in launch.command.environment
    return limits or _by_class(named) or any(name in named for name in signs)


def _of_text(found: Found, program: Program) -> Found:
    """A launch that loads the vision part of a checkpoint but trains on text only."""
    blank = _programs().get(program, {}).get("blank", "")
    pixels = blank.removeprefix("1x")
    runs = f", with the blank image of {pixels} that the program puts beside it" if blank else ""
    note = (
        f"the vision tower of {found.model}'s checkpoint is loaded beside its language model, and "
        f"samples are text alone{runs}; give --images where they have some"
    )
    return replace(found, images=blank or WITHOUT, assumed=(*found.assumed, note))


def _frozen(found: Found, vision: VisionSpec, named: Named, program: Program) -> tuple[str, ...]:
    """The parts that are frozen, including a projector that adapters do not reach."""
    frozen, left_out = {*frozen_parts(named, program)}, set[str]()
    pattern = named.get("lora_target_modules")
    if found.train != "full":
        if pattern and spares_the_tower(pattern.value):
            left_out = {VISION_TOWER, PROJECTOR}
        elif not adapters_reach_projector(program, vision.rule, VISION_TOWER in frozen):
            left_out = {PROJECTOR}
    return tuple(part for part in PARTS if part in frozen | left_out)


def _limits(
    named: Named, program: Program, launch: LaunchCommand | None
) -> Iterator[tuple[str, str]]:
    """Settings that may limit an image, by priority."""
    if program not in _programs():
        return
    key, usual = _programs()[program]["pixels"]
    if key in named:
        yield key, str(named[key].value)
    if launch is not None and program == "swift":
        given = launch.command.environment.get(_MAX_PIXELS)
        yield _MAX_PIXELS, given.value if given else ""
    yield key, str(usual or "")
