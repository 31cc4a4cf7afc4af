"""Vision-language models with Megatron-Bridge 0.6: the start script that holds their data.

The model is built by Megatron-Bridge's own class of its family, out of the config of the weights
that a run starts from; the overrides say the plan, and the language model's shape again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.job.images import WITHOUT
from planner.job.job import Job
from planner.job.models.hf_config import read_hf_model
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import ALL_LINEAR
from planner.job.tuning import LANGUAGE_MODEL, PARTS, PROJECTOR, VISION_TOWER, read_tuning
from planner.launch import contract
from planner.launch.contract import Files, Launch, Refusal, Variable
from planner.launch.dialects.hf.files import hf_config
from planner.launch.dialects.hf.vision_program import sample_images
from planner.launch.dialects.megatron.bridge_finetune import held_in, own_adapters
from planner.launch.quoting import Code, Value
from planner.launch.read.beside import text_beside
from planner.launch.read.found import Found
from planner.launch.settings_text import WrittenSetting, filled, python_arguments

SCRIPT = "bridge_images.py"
CONFIG = "model/config.json"
# Families of the language model -> the module of the step that hands it images
# (examples/models/qwen: --step_func), for the kind of tower that Megatron-Bridge builds beside it.
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
    """Families whose class and step its files do not name."""
    if model.vision is not None and not _step(model):
        text = f"its files are written for Qwen2.5-VL and Qwen3-VL, not for {model.name}"
        yield Refusal(text, "--model qwen2.5-vl-72b, qwen3-vl-32b or another of their families")


def vision_refusals(job: Job) -> Iterator[Refusal]:
    """What Megatron-Bridge cannot be told of a vision-language model of such a family."""
    model, tuning = job.model, job.tuning
    if model.vision is None:
        return
    others = tuple(name for name in tuning.frozen if name not in PARTS)
    if others:
        text = f"beside a vision tower Megatron-Bridge freezes parts, not {' '.join(others)}"
        yield Refusal(text, f"--freeze {VISION_TOWER},{PROJECTOR}")
    chosen = set(tuning.frozen) & set(PARTS) or ALL_LINEAR not in tuning.targets
    if tuning.has_adapters and model.vision.place == "split" and chosen:
        text = f"Megatron-Bridge names layers of {model.name}'s tower as the language model's"
        yield Refusal(f"{text}: adapters stand beside both", "targets=all-linear, no --freeze")
    if job.samples.lengths is not None:
        text = "beside a vision tower its files are written for rows of one length"
        yield Refusal(text, "no --lengths, for files of such rows")


def of_language(job: Job) -> Job:
    """The job of the language model alone, without what is said of parts (`vision_refusals`)."""
    if job.model.vision is None:
        return job
    tuning = replace(job.tuning, frozen=())
    return replace(job, model=job.model.language, tuning=tuning)


def overrides(launch: Launch) -> dict[str, str]:
    """What is frozen, and how images' tokens have positions; adapters freeze all beside them."""
    job = launch.job
    if job.model.vision is None:
        return {}
    found = {"model.position_embedding_type": "mrope"}
    if launch.plan.degrees.cp > 1:
        # Its model asks for the first, which training/config.py allows without the second alone.
        found |= {"model.calculate_per_token_loss": "true", "ddp.average_in_collective": "false"}
    if job.tuning.has_adapters:
        return found
    return found | {
        field: str(job.tuning.freezes(part)).lower() for part, field in _FREEZING.items()
    }


def files(launch: Launch, precision: str) -> Files:
    """The start script, and the config.json of the model that it is for."""
    job = launch.job
    rows: list[tuple[str, Value, str]] = [
        ("seq_length", launch.plan.seq, ""),
        ("hf_processor_path", Code('os.environ["PRETRAINED"]'), ""),
        *((name, value, "") for name, value in _made_up(job, launch.request)),
        ("pad_to_max_length", True, "rows as long as the plan counts"),
    ]
    text = filled(
        f"megatron/{SCRIPT}.txt",
        precision=precision,
        step=Code(_step(job.model)),
        images=[*python_arguments([WrittenSetting(*row) for row in rows], 0)],
        **own_adapters(of_language(job)),
    )
    return {SCRIPT: text, CONFIG: json.dumps(hf_config(job.model) or {}, indent=2) + "\n"}


def _made_up(job: Job, request: Request) -> Iterator[tuple[str, Value]]:
    images = sample_images(job.model.vision, request) if job.model.vision else WITHOUT
    if images == WITHOUT:
        yield "num_images", 0
        return
    number, width, height = (int(part) for part in images.split("x"))
    yield "image_size", Code(f"({width}, {height})")
    yield "num_images", number


def variables() -> tuple[Variable, ...]:
    """What is the user's, in place of the variables of pretraining."""
    what = "published weights to start from, with their processor: a Hugging Face model's folder"
    data = "a Hugging Face data set of conversations with images; empty: made-up samples"
    return (
        Variable(contract.PRETRAINED, "", what, needed=True, holds="${PRETRAINED}/config.json"),
        Variable("DATASET", "", data, names_path=True),
        contract.rate_variable("5e-6", what="5e-6 is usual from published weights; peak"),
        contract.rate_variable("0", "MIN_LEARNING_RATE", "last"),
    )


# --- back -----------------------------------------------------------------------------------------


def seen(found: Found, program: str, folder: Path, said: Mapping[str, str]) -> Found:
    """A launch whose script builds a vision-language model, of the config.json beside it. `said`:
    the overrides."""
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
    """`--train` of a model whose tower has layers of the language model's names: adapters on all of
    these stand beside the tower's as well."""
    if model is None or model.vision is None or not train.startswith("lora"):
        return train
    tuning = read_tuning(train)
    whole = replace(tuning, targets=(ALL_LINEAR,))
    return str(whole) if tuning.adapted(model) == whole.adapted(model) else train
