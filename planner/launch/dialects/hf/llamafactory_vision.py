"""Vision-language models in LLaMA-Factory's file: what it freezes, how large images are, the
template that puts them into chats (`towers.toml`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.job.job import Job
from planner.job.request import Request
from planner.job.tuning import PARTS, PROJECTOR, VISION_TOWER, Tuning
from planner.job.vision import VisionSpec
from planner.launch.contract import Refusal
from planner.launch.dialects.hf.towers import adapters_reach_projector, tower_settings
from planner.launch.dialects.hf.vision_program import most_pixels, of_language
from planner.launch.quoting import Value

Row = tuple[str, Value, str]
_PROGRAM = "llamafactory"


def vision_refusals(job: Job) -> Iterator[Refusal]:
    """What LLaMA-Factory cannot express of a vision-language model."""
    model, tuning = job.model, job.tuning
    vision = model.vision
    if vision is None:
        return
    if not template(job):
        yield Refusal(
            f"LLaMA-Factory 0.9.5 neither has a template for images of {model.name} nor knows its "
            "parts",
            "--model qwen2.5-vl-7b, llava-1.5-7b, internvl3-8b, gemma-3-4b or another of their "
            "families",
        )
        return
    if of_language(tuning).frozen:
        named = " ".join(of_language(tuning).frozen)
        yield Refusal(
            f"beside a vision tower LLaMA-Factory freezes parts, not {named}",
            f"--freeze {','.join(PARTS[:2])}",
        )
    if job.samples.lengths is not None and job.samples.packing != "longest":
        yield Refusal(
            "its files are written for samples with images that are padded, not packed",
            "--packing longest",
        )
    yield from _projector(tuning, vision, model.name)


def _projector(tuning: Tuning, vision: VisionSpec, name: str) -> Iterator[Refusal]:
    """What becomes of a projector that is to be trained, or of one beside a trained tower."""
    frozen, kept = tuning.freezes(VISION_TOWER), tuning.freezes(PROJECTOR)
    adapted = kept or adapters_reach_projector(_PROGRAM, vision.rule, frozen)
    if vision.projector.taps and frozen != kept:
        yield Refusal(
            f"LLaMA-Factory freezes the projectors of {name}'s earlier layers with its tower",
            f"--freeze {VISION_TOWER},{PROJECTOR}, or neither",
        )
    elif tuning.has_adapters and not adapted:
        parts = [part for part in PARTS if tuning.freezes(part) or part == PROJECTOR]
        yield Refusal(
            f"LLaMA-Factory puts no adapters on the projector of {name}",
            f"--freeze {','.join(parts)}",
        )


def vision_rows(job: Job, request: Request) -> Iterator[Row]:
    """Settings of the parts and of images."""
    if job.model.vision is None:
        return
    for part in PARTS:
        frozen = job.tuning.freezes(part)
        yield _row()[part][0], frozen, "nothing trains it" if frozen else "trained"
    pixels = most_pixels(job.model.vision, request)
    yield _row()["pixels"][0], pixels, "larger images are shrunk to it"


def template(job: Job) -> str:
    """LLaMA-Factory's own template of a family; empty where it has none."""
    vision, templates = job.model.vision, _row()["templates"]
    if vision is None:
        return ""
    own = templates.get(f"{vision.rule} {job.model.family}")
    return str(own or templates.get(vision.rule, ""))


def _row() -> Mapping[str, Any]:
    return tower_settings(_PROGRAM)
