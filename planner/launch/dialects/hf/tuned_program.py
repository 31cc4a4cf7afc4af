"""Pieces of train.py for training part of the weights; empty if all weights are trained."""

from __future__ import annotations

from collections.abc import Mapping

from planner.job.job import Job
from planner.job.tuned_layers import linear_layers
from planner.launch.contract import Files
from planner.launch.dialects.hf.modules import modules_of_family
from planner.launch.dialects.hf.tuning_words import adapter_arguments, frozen_text
from planner.launch.dialects.hf.vision_program import loading_pieces
from planner.launch.quoting import Code, Value
from planner.launch.settings_text import filled, piece

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
