"""Vision-language models with Megatron-Bridge 0.6: the start script that defines their data.

Megatron-Bridge's class for the family builds the model from the config of the weights that a run
starts from; the overrides state the plan, and the language model's shape once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.job.images import WITHOUT
from planner.job.job import Job
from planner.job.models.hf_config import read_hf_model
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import ALL_LINEAR
from planner.job.tuning import LANGUAGE_MODEL, PARTS, PROJECTOR, VISION_TOWER, read_tuning
from planner.launch.contract import Files, Launch, Refusal
from planner.launch.dialects.hf.files import hf_config
from planner.launch.dialects.hf.program_pieces import sample_images
from planner.launch.dialects.megatron.bridge_finetune import held_in, own_adapters
from planner.launch.quoting import Code
from planner.launch.read.beside import text_beside
from planner.launch.read.found import Found
from planner.launch.sentences import names_of, names_of_job, said_refusals, said_settings
from planner.launch.settings_text import filled, python_arguments

SCRIPT = "bridge_images.py"
CONFIG = "model/config.json"
# The module of the training step that passes images on (examples/models/qwen: --step_func), by the
# kind of tower and the family of the language model.
_STEPS: Mapping[tuple[str, str], str] = {
    ("qwen2_5_vl", "qwen2"): "megatron.bridge.training.vlm_step",
    ("qwen3_vl", "qwen3"): "megatron.bridge.models.qwen_vl.qwen3_vl_step",
    ("qwen3_vl", "qwen3_moe"): "megatron.bridge.models.qwen_vl.qwen3_vl_step",
}
# Fields of the providers (models/qwen_vl/qwen25_vl_provider.py, qwen3_vl_provider.py).
_FREEZING = {
    VISION_TOWER: "model.freeze_vision_model",
    PROJECTOR: "model.freeze_vision_projection",
    LANGUAGE_MODEL: "model.freeze_language_model",
}


def _step(model: ModelSpec) -> str:
    kind = model.vision.tower.kind if model.vision else ""
    return _STEPS.get((kind, model.family), "")


def family_refusals(model: ModelSpec) -> Iterator[Refusal]:
    """Refusals of model families for which no Megatron-Bridge training step is known."""
    names = {"model": model, "step": _step(model)}
    yield from said_refusals("megatron", "family_refusals", names)


def vision_refusals(job: Job) -> Iterator[Refusal]:
    """Ways of training a vision-language model that Megatron-Bridge has no settings for."""
    tuning = job.tuning
    if job.model.vision is not None:
        chosen = set(tuning.frozen) & set(PARTS) or ALL_LINEAR not in tuning.targets
        unnamed = [name for name in tuning.frozen if name not in PARTS]
        names = names_of_job(job) | {"chosen": chosen, "tuning": tuning, "unnamed": unnamed}
        yield from said_refusals("megatron", "vision_refusals", names)


def of_language(job: Job) -> Job:
    """The job of the language model without the vision parts and without frozen parts."""
    if job.model.vision is None:
        return job
    tuning = replace(job.tuning, frozen=())
    return replace(job, model=job.model.language, tuning=tuning)


def overrides(launch: Launch) -> dict[str, str]:
    """Overrides for frozen parts and for the positions of image tokens. With adapters, nothing is
    frozen here, because adapters freeze everything else."""
    job = launch.job
    if job.model.vision is None:
        return {}
    found = {"model.position_embedding_type": "mrope"}
    if launch.plan.degrees.cp > 1:
        # The model demands per-token loss, which training/config.py allows only without averaging.
        found |= {"model.calculate_per_token_loss": "true", "ddp.average_in_collective": "false"}
    if job.tuning.has_adapters:
        return found
    return found | {
        field: str(job.tuning.freezes(part)).lower() for part, field in _FREEZING.items()
    }


def files(launch: Launch, precision: str) -> Files:
    """The start script, and the config.json of the model."""
    job = launch.job
    images = sample_images(job.model.vision, launch.request) if job.model.vision else WITHOUT
    number, *size = (0,) if images == WITHOUT else tuple(map(int, images.split("x")))
    names = names_of(launch) | {"code": Code, "number": number, "size": ""}
    if size:
        names["size"] = f"({size[0]}, {size[1]})"
    rows = said_settings("megatron", "images", names, {}).settings
    text = filled(
        f"megatron/{SCRIPT}.txt",
        precision=precision,
        step=Code(_step(job.model)),
        images=[*python_arguments(rows, 0)],
        **own_adapters(of_language(job)),
    )
    return {SCRIPT: text, CONFIG: json.dumps(hf_config(job.model) or {}, indent=2) + "\n"}


# --- back -----------------------------------------------------------------------------------------


def seen(found: Found, program: str, folder: Path, said: Mapping[str, str]) -> Found:
    """The launch with the vision-language model of the config.json beside its script, if the script
    builds one. `said`: the overrides."""
    text = text_beside(CONFIG, folder) if "AutoBridge" in program else ""
    held = held_in(program, "IMAGES")
    if not text or held is None:
        return found
    model = read_hf_model(json.loads(text), CONFIG).spec
    frozen = tuple(part for part, field in _FREEZING.items() if said.get(field) == "true")
    number = held.get("num_images", 1)
    width, height = held.get("image_size") or (256, 256)
    images = f"{number}x{width}x{height}" if number else WITHOUT
    return replace(found, model=None, shape=model, freeze=frozen, images=found.images or images)


def beside_both(train: str, model: ModelSpec | None) -> str:
    """The `--train` value. If its LoRA targets cover every linear layer of both the vision tower
    and the language model, which share layer names, it becomes adapters on all layers; otherwise
    unchanged."""
    if model is None or model.vision is None or not train.startswith("lora"):
        return train
    tuning = read_tuning(train)
    whole = replace(tuning, targets=(ALL_LINEAR,))
    return str(whole) if tuning.adapted(model) == whole.adapted(model) else train
