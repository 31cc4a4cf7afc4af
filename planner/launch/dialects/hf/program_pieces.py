"""Pieces of the programs that train transformers models, which vary with the job: the class, the
processor and the images of a vision-language model, and the training of part of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

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
from planner.launch.settings_text import filled, piece

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
_IMAGE_ARGUMENTS = (
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
    return [line for one in _IMAGE_ARGUMENTS for line in written(*one)]


def _argument(name: str, kind: str, usual: str, meaning: str) -> Iterator[str]:
    yield "parser.add_argument("
    yield f'    "--{name.replace("_", "-")}", type={kind}, default={usual},'
    yield f'    help="{meaning}",'
    yield ")"


def _field(name: str, kind: str, usual: str, meaning: str) -> Iterator[str]:
    yield f"{name}: {kind} = field("
    yield f'    default={usual}, metadata={{"help": "{meaning}"}}'
    yield ")"


# --- training of a part of the weights ------------------------------------------------------------

MERGE = "merge.py"
# Arguments of train.py: name, type and default.
_FREEZING = ("freeze_modules", "str", '""')
_ADAPTERS: tuple[tuple[str, str, str], ...] = (
    ("lora_r", "int", "16"),
    ("lora_alpha", "float", "32.0"),
    ("lora_dropout", "float", "0.0"),
    ("lora_target_modules", "str", '"all-linear"'),
    ("modules_to_save", "str", '""'),
    ("use_dora", "str", '"false"'),
    ("load_in_8bit", "str", '"false"'),
    ("load_in_4bit", "str", '"false"'),
    ("bnb_4bit_use_double_quant", "str", '"false"'),
)


def tuning_arguments(job: Job, joint: str = "_") -> dict[str, object]:
    """Arguments of train.py. `joint`: between the words of a name."""
    values = adapter_arguments(job)
    if job.tuning.frozen:
        values["freeze_modules"] = frozen_text(job.tuning)
    return {name.replace("_", joint): value for name, value in values.items()}


def trainer_pieces(job: Job, dtype: str) -> Mapping[str, Value]:
    """Additional pieces of the Trainer's program."""
    names = ("tuned_imports", "tuned_fields", "tuning", "tuned_kinds", "saved")
    if job.tuning.trains_all:
        return {**dict.fromkeys(names, ""), "tuned_model": Code("model")}
    return {
        "tuned_imports": _imports(job),
        "tuned_fields": [f"{name}: {kind} = {usual}" for name, kind, usual in _arguments(job)],
        "tuning": "\n" + _functions(job),
        "tuned_kinds": _packing(job, dtype),
        "tuned_model": Code("with_part_trained(model, run)"),
        "saved": piece("hf/saved.py.txt"),
    }


def frozen_pieces(job: Job) -> Mapping[str, Value]:
    """Additional pieces, to freeze modules, of a program around TRL's trainers, which add adapters
    themselves."""
    if not job.tuning.frozen:
        return {"frozen_argument": "", "tuning": "", "frozen": ""}
    return {
        "frozen_argument": "freeze_modules: str = " + _FREEZING[2],
        "tuning": _functions(job, puts_adapters=False) + "\n\n",
        "frozen": "with_part_trained(trainer.model, run)",
    }


def accelerate_pieces(job: Job) -> Mapping[str, Value]:
    """Additional pieces of the loop under accelerate."""
    loads = loading_pieces(job.model)
    if job.tuning.trains_all:
        return {
            **dict.fromkeys(("tuned_imports", "tuned_arguments", "tuning", "saved"), ""),
            "more_imports": ["import contextlib", *(["import os"] if job.model.vision else [])],
            "make_model": piece("hf/whole_model.py.txt", **loads),
            "trained": Code("model.parameters()"),
        }
    arguments = [
        f'parser.add_argument("--{name.replace("_", "-")}", type={kind}, default={usual})'
        for name, kind, usual in _arguments(job)
    ]
    kinds = _packing(job, "bfloat16")
    return {
        "more_imports": "import os",
        "tuned_imports": _imports(job),
        "tuned_arguments": arguments,
        "tuning": "\n" + _functions(job),
        "make_model": piece("hf/tuned_model.py.txt", tuned_kinds=kinds, **loads),
        "trained": Code("[one for one in model.parameters() if one.requires_grad]"),
        "saved": ["if run.checkpoints:", "    save_trained(accelerator, model, run.checkpoints)"],
    }


def _arguments(job: Job) -> tuple[tuple[str, str, str], ...]:
    return (_FREEZING, *(_ADAPTERS if job.tuning.has_adapters else ()))


def _imports(job: Job) -> str:
    return "from transformers import BitsAndBytesConfig" if job.tuning.has_adapters else ""


def _packing(job: Job, dtype: str) -> list[str]:
    """Lines that have bitsandbytes pack the frozen weights."""
    test = f"if (packing := packed(run, torch.{dtype})) is not None:"
    put = '    kinds["quantization_config"] = packing'
    return [test, put] if job.tuning.has_adapters else []


def _functions(job: Job, *, puts_adapters: bool = True) -> str:
    """Functions that add adapters to the model, unless something else does, and freeze modules. A
    vision-language model is frozen by parts, and frozen parts get no adapters."""
    has_adapters, seen = job.tuning.has_adapters and puts_adapters, job.model.vision is not None
    first = "0" if seen else "layers_frozen(frozen)"
    excludes = seen and bool(job.tuning.frozen)
    excluded = 'exclude_modules=left_out(run.freeze_modules.split(",")),' if excludes else ""
    adapters = piece("hf/adapters.py.txt", excluded=excluded, **loading_pieces(job.model))
    shared: Mapping[str, Value] = {
        "adapters": adapters + "\n\n" if has_adapters else "",
        "adapted": f"model = with_adapters(model, run, {first})" if has_adapters else "",
    }
    if seen:
        return piece("hf/parts.py.txt", **shared)
    return piece("hf/tuning.py.txt", layers=_layers(job), **shared)


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
