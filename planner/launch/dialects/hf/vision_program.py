"""Pieces of train.py for a vision-language model: its class, its processor, its images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from planner.job.images import WITHOUT, read_images, usual_size
from planner.job.job import Job
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.job.tuning import PARTS, Tuning
from planner.job.vision import VisionSpec
from planner.launch.contract import Refusal
from planner.launch.quoting import Code, Value
from planner.launch.settings_text import filled

_TEXT, _SEEN = "AutoModelForCausalLM", "AutoModelForImageTextToText"
_LOADER = "loader = torch.utils.data.DataLoader(data, batch_size=batch, drop_last=True)"
_SEEN_LOADER = """collator = Collator(run, config)
loader = torch.utils.data.DataLoader(
    data, batch_size=batch, drop_last=True, collate_fn=collator
)"""
_TRAINER = "trainer = Trainer(model=model, args=training, train_dataset=data)"
_SEEN_TRAINER = """training.remove_unused_columns = False
collator = Collator(run, config)
trainer = Trainer(model=model, args=training, train_dataset=data, data_collator=collator)"""
SAMPLE_IMAGES = "sample_images"
# Arguments of train.py: name, type, default, meaning.
_ARGUMENTS = (
    (SAMPLE_IMAGES, "str", '"1x640x480"', "of a made-up sample: number, width, height"),
    ("max_pixels", "int", str(1 << 40), "area to which larger images are shrunk"),
)


def of_language(tuning: Tuning) -> Tuning:
    """How the language model is trained: without the vision parts that are frozen."""
    return replace(tuning, frozen=tuple(name for name in tuning.frozen if name not in PARTS))


def parts_refusals(job: Job) -> Iterator[Refusal]:
    """What these programs cannot freeze beside a vision tower."""
    others = of_language(job.tuning).frozen if job.model.vision else ()
    if others:
        yield Refusal(
            f"beside a vision tower its files freeze parts, not {' '.join(others)}",
            f"--freeze {','.join(PARTS[:2])}",
        )


def loading_pieces(model: ModelSpec) -> Mapping[str, Value]:
    """How a model is loaded: its class, and where its config holds the shape of the language
    model."""
    seen = model.vision is not None
    return {
        "auto": Code(_SEEN if seen else _TEXT),
        "text": Code(".get_text_config()" if seen else ""),
    }


def program_pieces(model: ModelSpec) -> Mapping[str, Value]:
    """The varying pieces of both programs, accelerate's loop and the Trainer's."""
    seen = model.vision is not None
    tokens = 'input_ids=batch["input_ids"], labels=batch["labels"]'
    return {
        **loading_pieces(model),
        "loads": Code(f"{_SEEN}, AutoProcessor" if seen else _TEXT),
        "data": filled("hf/image_data.py.txt" if seen else "hf/data.py.txt"),
        "batch": Code("**batch" if seen else tokens),
        "imaged_arguments": _lines(_argument) if seen else [],
        "imaged_fields": _lines(_field) if seen else [],
        "rows": Code(
            f"run.{SAMPLE_IMAGES}, run.seq_length" if seen else "run.seq_length, config.vocab_size"
        ),
        "loader": _SEEN_LOADER if seen else _LOADER,
        "trainer": _SEEN_TRAINER if seen else _TRAINER,
    }


def image_arguments(job: Job, request: Request, joint: str = "_") -> dict[str, object]:
    """Arguments of train.py. `joint`: between the words of a name."""
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


def _lines(written: Callable[[str, str, str, str], Iterator[str]]) -> list[str]:
    return [line for one in _ARGUMENTS for line in written(*one)]


def _argument(name: str, kind: str, usual: str, meaning: str) -> Iterator[str]:
    yield "parser.add_argument("
    yield f'    "--{name.replace("_", "-")}", type={kind}, default={usual},'
    yield f'    help="{meaning}",'
    yield ")"


def _field(name: str, kind: str, usual: str, meaning: str) -> Iterator[str]:
    yield f"{name}: {kind} = field("
    yield f'    default={usual}, metadata={{"help": "{meaning}"}}'
    yield ")"
