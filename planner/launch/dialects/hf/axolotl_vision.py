"""Vision-language models in axolotl's file: their processor, template and adapters.

axolotl 0.19, docs/multimodal.qmd and examples/qwen2_5-vl: samples with images are prepared as they
are read, never packed; adapters on the language model alone are a pattern of its modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.job.tuning import PROJECTOR, VISION_TOWER
from planner.launch.contract import Refusal
from planner.launch.dialects.hf.modules import modules_of_family
from planner.launch.quoting import Value

Row = tuple[str, Value, str]
# Its template by the rule of an image's tokens (utils/schemas/enums.py, ChatTemplate).
_TEMPLATES: Mapping[str, str] = {
    "qwen2_vl": "qwen2_vl", "llava": "llava", "gemma3": "gemma3", "pixtral": "pixtral",
    "mistral3": "mistral_v7_tekken",
}  # fmt: skip


def vision_refusals(job: Job) -> Iterator[Refusal]:
    """What axolotl cannot be told of a vision-language model."""
    vision, tuning = job.model.vision, job.tuning
    if vision is None:
        return
    if vision.rule not in _TEMPLATES:
        text = f"axolotl 0.19 has no template for images of {job.model.name}"
        yield Refusal(text, "--framework trl, or --model qwen2.5-vl-7b, llava-1.5-7b or gemma-3-4b")
    if job.objective.kind != "lm":
        text = f"with images axolotl trains by next-token prediction, not by {job.objective.kind}"
        yield Refusal(text, "no --objective")
    if job.samples.lengths is not None and job.samples.packing != "longest":
        yield Refusal("samples with images are padded, not packed", "--packing longest")
    others = set(tuning.frozen) != {VISION_TOWER, PROJECTOR} or tuning.whole
    if tuning.has_adapters and others:
        text = "its files are written for adapters on the language model of a vision-language model"
        yield Refusal(text, f"--freeze {VISION_TOWER},{PROJECTOR}")
    if not tuning.has_adapters and tuning.frozen:
        text = f"beside a vision tower its files train all weights or adapters, not {tuning.words}"
        yield Refusal(text, f"--train lora --freeze {VISION_TOWER},{PROJECTOR}, or no --freeze")


def vision_rows(model: ModelSpec) -> Iterator[Row]:
    """How samples with images are read."""
    if model.vision is None:
        return
    yield "processor_type", "AutoProcessor", ""
    yield "chat_template", _TEMPLATES[model.vision.rule], ""
    yield "skip_prepare_dataset", True, "images are read as rows are made"
    yield "remove_unused_columns", False, ""


def language_pattern(job: Job) -> str:
    """The modules of the language model that have adapters, as a pattern of their paths."""
    adapted = set(job.tuning.adapted(job.model.language))
    known = modules_of_family(job.model.language)
    names = [name for name, words in known.items() if set(words.split()) & adapted]
    starts = "|".join(name.removesuffix("_proj") for name in names)
    return rf"model.language_model.layers.[\d]+.(mlp|self_attn).({starts})_proj"
