"""Writer for LLaMA-Factory 0.9: llamafactory.yaml, which torchrun hands to its launcher.

Settings: LLaMA-Factory 0.9.5, src/llamafactory/hparams; how it casts weights:
src/llamafactory/model/adapter.py (init_adapter). What it does with the parts of a vision-language
model, and its templates: `towers.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.tuning import PARTS, PROJECTOR, VISION_TOWER
from planner.launch.contract import (
    PRETRAINED,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
)
from planner.launch.dialects.hf.files import (
    BITSANDBYTES,
    ENVIRONMENT,
    hf_job_refusals,
    plan_refusals,  # noqa: F401 (the writers' contract)
)
from planner.launch.dialects.hf.program_pieces import merging, most_pixels, of_language
from planner.launch.dialects.hf.settings_file import (
    settings_files,
    settings_names,
    trainer_optimizer,
)
from planner.launch.dialects.hf.towers import adapters_reach_projector, tower_settings
from planner.launch.dialects.hf.tuning_words import tuning_refusals
from planner.launch.sentences import (
    names_of_job,
    said_needs,
    said_refusals,
    said_settings,
    said_variables,
)
from planner.launch.settings_text import SettingsSection, section_choices

CONFIG = "llamafactory.yaml"
_TOWER = tower_settings("llamafactory")


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that LLaMA-Factory cannot express."""
    yield from hf_job_refusals(job)
    if job.model.vision is not None:
        yield from said_refusals("hf", "llamafactory_vision_refusals", _vision_names(job))
    # What is frozen beside a vision tower has been refused above.
    freezes = job.model.vision is not None or _frozen_layers(job) is not None
    language = replace(job, tuning=of_language(job.tuning))
    yield from tuning_refusals(language, freezes=freezes, by_peft=False)
    names = names_of_job(job) | {
        "mode": job.framework.mode, "optim": trainer_optimizer(job, BITSANDBYTES),
    }  # fmt: skip
    yield from said_refusals("hf", "llamafactory_refusals", names)


def _frozen_layers(job: Job) -> int | None:
    """The number of leading layers to freeze by LLaMA-Factory's method `freeze`, which always
    freezes embeddings and head as well. None if the plan has adapters or freezes anything but
    these."""
    tuning, layers = job.tuning, job.tuning.frozen_layers
    as_it_does = {"embeddings", "head", f"layers:{layers}"} if layers else None
    return None if tuning.has_adapters or set(tuning.frozen) != as_it_does else layers


def _vision_names(job: Job) -> dict[str, Any]:
    """Names that the refusals of vision-language models may use."""
    vision, tuning = job.model.vision, job.tuning
    frozen, kept = tuning.freezes(VISION_TOWER), tuning.freezes(PROJECTOR)
    rule = "" if vision is None else vision.rule
    reached = kept or adapters_reach_projector("llamafactory", rule, frozen)
    parts = [part for part in PARTS if tuning.freezes(part) or part == PROJECTOR]
    return names_of_job(job) | {
        "template": template(job),
        "others": " ".join(of_language(tuning).frozen),
        "torn": vision is not None and vision.projector.taps and frozen != kept,
        "reached": not tuning.has_adapters or reached,
        "parts": ",".join(parts),
    }


def template(job: Job) -> str:
    """LLaMA-Factory's template for the model's family; empty if there is none."""
    vision, templates = job.model.vision, _TOWER["templates"]
    if vision is None:
        return ""
    own = templates.get(f"{vision.rule} {job.model.family}")
    return str(own or templates.get(vision.rule, ""))


def files(launch: Launch) -> Files:
    """llamafactory.yaml and the model's config.json."""
    return {**settings_files(launch, "hf", CONFIG, sections(launch)), **merging(launch.job)}


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason."""
    job, vision = launch.job, launch.job.model.vision
    names = settings_names(launch) | {
        "template": template(job),
        "frozen_layers": _frozen_layers(job),
        "optim": trainer_optimizer(job, BITSANDBYTES) or "",
        "tower": _TOWER,
        "pixels": most_pixels(vision, launch.request) if vision else 0,
    }
    return (said_settings("hf", "llamafactory", names, {}, ""),)


def command(launch: Launch) -> RunCommand:
    """LLaMA-Factory's launcher, with the user's values in place of those in its file."""
    words = {
        "dataset_dir": "DATASET_DIR", "dataset": "DATASET", "max_steps": "TRAIN_STEPS",
        "learning_rate": "LEARNING_RATE", "warmup_steps": "WARMUP_STEPS",
        "lr_scheduler_type": "LR_SCHEDULE",
    }  # fmt: skip
    overrides = (f"{name}=${{{variable}}}" for name, variable in words.items())
    none = ("output_dir=outputs", "save_strategy=no")
    return RunCommand(
        argv=("-m", "llamafactory.launcher", CONFIG, *overrides),
        variables=said_variables("hf", launch, "llamafactory_variables"),
        branches=(
            Branch(PRETRAINED, (f"model_name_or_path=${{{PRETRAINED}}}",)),
            Branch("CHECKPOINTS", ("output_dir=${CHECKPOINTS}",), none),
        ),
        environment=ENVIRONMENT,
    )


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains."""
    return section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files need."""
    return said_needs("hf", "llamafactory_needs", launch)
