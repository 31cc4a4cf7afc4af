"""Pieces of the programs that train transformers models, which vary with the job: the class, the
processor and the images of a vision-language model, and the training of part of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.images import WITHOUT, read_images, usual_size
from planner.job.job import Job
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import linear_layers
from planner.job.tuning import PARTS, Tuning
from planner.job.vision import VisionSpec
from planner.launch.contract import Files, Refusal
from planner.launch.dialects.hf.modules import modules_of_family
from planner.launch.dialects.hf.tuning_words import adapter_arguments, frozen_text
from planner.launch.quoting import Code, Value
from planner.launch.registry import dialect_toml
from planner.launch.sentences import evaluated, holds
from planner.launch.settings_text import filled, piece

SAMPLE_IMAGES = "sample_images"
MERGE = "merge.py"


def of_language(tuning: Tuning) -> Tuning:
    """How the language model is trained: without the vision parts that are frozen."""
    return replace(tuning, frozen=tuple(name for name in tuning.frozen if name not in PARTS))


def parts_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of parts that these programs cannot freeze beside a vision tower."""
    others = of_language(job.tuning).frozen if job.model.vision else ()
    if others:
        yield Refusal(
            f"beside a vision tower its files freeze parts, not {' '.join(others)}",
            f"--freeze {','.join(PARTS[:2])}",
        )


def program_pieces(model: ModelSpec) -> Mapping[str, Value]:
    """The varying pieces of both programs, accelerate's loop and the Trainer's."""
    return _pieces("shared", {"seen": model.vision is not None})


def part_pieces(job: Job, table: str, *, adds: bool = True, **names: object) -> Mapping[str, Value]:
    """The pieces of one table of `pieces.toml`, filled in for a job, together with those for
    training part of the weights. `adds`: True if the program itself adds adapters, False if a
    library does."""
    tuning, seen = job.tuning, job.model.vision is not None
    facts = {"job": job, "model": job.model, "seen": seen, **names}
    known: dict[str, Any] = {**program_pieces(job.model), **facts}
    if not tuning.trains_all:
        adds_adapters = adds and tuning.has_adapters
        more = {"adds": adds_adapters, "layers": [] if seen else _layers(job)}
        known["functions"] = _pieces("functions", known | more)["functions"]
    tuned = _pieces("tuned", known) if adds else {}
    return {**tuned, **_pieces(table, {**known, **tuned})}


def _pieces(table: str, names: Mapping[str, Any]) -> dict[str, Value]:
    """The pieces of a table, each the first of its rows whose condition holds."""
    found: dict[str, Value] = {}
    for row in dialect_toml("hf", "pieces.toml")[table]:
        known = {**names, **found}
        if found.setdefault(row["name"], Code("")) != "" or not holds(row.get("when"), known):
            continue
        if "template" in row:
            text: Value = piece(f"hf/{row['template']}.py.txt", **known)
        else:
            text = evaluated(row["value"], known) if "value" in row else row["text"]
        is_text = isinstance(text, str)
        found[row["name"]] = Code(f"{text}{row.get('after', '')}") if is_text else text
    return found


def image_arguments(job: Job, request: Request, joint: str = "_") -> dict[str, object]:
    """The arguments of train.py for images, by name; empty for a model without vision. `joint`: the
    character between the words of an argument's name."""
    vision = job.model.vision
    if vision is None:
        return {}
    name = SAMPLE_IMAGES.replace("_", joint)
    images: dict[str, object] = {name: sample_images(vision, request)}
    if request.images != WITHOUT:
        images[f"max{joint}pixels"] = most_pixels(vision, request)
    return images


def most_pixels(vision: VisionSpec, request: Request) -> int:
    """The area of the largest image that the plan accounts for."""
    if request.images:
        size = read_images(request.images)
        return size.width * size.height
    if request.image_tokens:
        patches = request.image_tokens * vision.projector.merged
        return patches * vision.tower.patch**2
    width, height = usual_size(vision.rule)
    return width * height


def sample_images(vision: VisionSpec, request: Request) -> str:
    """Images of a made-up sample: number, width and height in pixels, or none."""
    if request.images == WITHOUT:
        return WITHOUT
    if request.images:
        size = read_images(request.images)
        return f"{size.number}x{size.width}x{size.height}"
    width, height = usual_size(vision.rule)
    if request.image_tokens:
        width = height = int(most_pixels(vision, request) ** 0.5)
    return f"1x{width}x{height}"


def tuning_arguments(job: Job, joint: str = "_") -> dict[str, object]:
    """The arguments of train.py that say how the weights are trained, by name. `joint`: the
    character between the words of an argument's name."""
    values = adapter_arguments(job)
    if job.tuning.frozen:
        values["freeze_modules"] = frozen_text(job.tuning)
    return {name.replace("_", joint): value for name, value in values.items()}


def _layers(job: Job) -> list[str]:
    """The modules that hold each linear layer, as lines of a Python table."""
    held: dict[str, list[str]] = {word: [] for word in linear_layers(job.model)}
    for name, words in modules_of_family(job.model).items():
        for word in set(words.split()) & held.keys():
            held[word].append(name)
    return [
        f'"{word}": (' + "".join(f'"{name}", ' for name in names).rstrip(" ") + "),"
        for word, names in held.items()
        if names
    ]


def merging(job: Job) -> Files:
    """A program that merges adapters into the weights, if there are any."""
    if not job.tuning.has_adapters:
        return {}
    loads = "AutoModelForImageTextToText" if job.model.vision else "AutoModelForCausalLM"
    title = f"{job.model.name}: adapters merged."
    return {MERGE: filled("hf/merge.py.txt", title=title, loads=Code(loads))}
