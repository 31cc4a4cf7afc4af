"""Writer for accelerate 1.15 with FSDP2: accelerate.yaml and a training script on transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.job.job import Job
from planner.launch.contract import (
    OFFLOADED,
    RESHARDING,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
)
from planner.launch.dialects.hf import ACCELERATE
from planner.launch.dialects.hf.files import (
    MODEL_FOLDER,
    SCRIPT,
    attention,
    hf_command,
    hf_config,
    hf_job_refusals,
    hf_program,
    layer_class,
    plan_refusals,  # noqa: F401 (the writers' contract)
    without_scores,
)
from planner.launch.dialects.hf.program_pieces import (
    image_arguments,
    merging,
    part_pieces,
    parts_refusals,
    tuning_arguments,
)
from planner.launch.dialects.hf.tuning_words import tuning_refusals
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_choices,
    said_needs,
    said_refusals,
    said_settings,
    said_values,
)
from planner.launch.settings_text import SettingsSection, filled, section_choices, yaml_text
from planner.launch.time_limit import save_steps

CONFIG = "accelerate.yaml"
# torchao's optimizers; no other low-bit optimizers can update FSDP2's shards.
TORCHAO = {"adamw-8bit": "adamw_torch_8bit", "adamw-4bit": "adamw_torch_4bit"}
# How the process launcher is told to use accelerate.yaml.
STARTED: Mapping[str, Any] = {
    "launcher": "accelerate", "launcher_arguments": ("--config_file", CONFIG),
}  # fmt: skip


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that accelerate with FSDP2 cannot express."""
    yield from hf_job_refusals(job)
    yield from tuning_refusals(job, freezes=True)
    yield from parts_refusals(job)
    yield from optimizer_refusals(job)


def optimizer_refusals(job: Job) -> Iterator[Refusal]:
    """Optimizers that cannot update FSDP2's shards."""
    names = names_of_job(job) | {
        "torchao": job.optimizer.family in TORCHAO,
        "masters": all(dtype in ("fp32", "none") for _, dtype in job.optimizer.states),
    }
    yield from said_refusals("hf", "accelerate_refusals", names)


def files(launch: Launch) -> Files:
    """accelerate.yaml, train.py and the model's config.json."""
    model, text = launch.job.model, configuration(launch, SCRIPT)
    title = f"{model.name} with accelerate and FSDP2."
    pieces = part_pieces(launch.job, "accelerate", dtype="bfloat16")
    program = hf_program(model, "hf/accelerate.py.txt", title, **pieces)
    return {CONFIG: text, **program, **merging(launch.job)}


def configuration(launch: Launch, program: str) -> str:
    """accelerate.yaml. `program` is the file that accelerate starts, which sets the precision
    policy."""
    degrees = launch.plan.degrees
    return filled(
        f"hf/{CONFIG}.txt",
        program=program,
        model=launch.job.model.name,
        gpus=degrees.gpus,
        nodes=launch.nodes,
        dp=degrees.dp,
        sections=yaml_text(sections(launch)).rstrip("\n"),
    )


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The parts of accelerate.yaml that the plan decides."""
    degrees = launch.plan.degrees
    names = names_of(launch) | {
        "layer": layer_class(hf_config(without_scores(launch.job.model)) or {}),
        "offloaded": OFFLOADED,
        "resharding": RESHARDING[3 if degrees.zero == 3 else 2],
        "shard": degrees.shard or degrees.dp,
    }
    titles = ("fsdp_config", "parallelism_config")
    return tuple(said_settings("hf", title, names, ACCELERATE) for title in titles)


def command(launch: Launch) -> RunCommand:
    """train.py under `accelerate launch`, with arguments for what accelerate.yaml has no keys
    for."""
    names = names_of(launch) | {
        "folder": MODEL_FOLDER, "attention": attention(launch), "torchao": TORCHAO,
    }  # fmt: skip
    arguments = {
        **said_values("hf", "accelerate_arguments", names),
        **image_arguments(launch.job, launch.request, "-"),
        **tuning_arguments(launch.job, "-"),
    }
    saving = ("--checkpoints", "${CHECKPOINTS}", "--save-steps", str(save_steps(launch)))
    return hf_command(launch, arguments, saving, **STARTED)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains."""
    names = names_of(launch)
    yield from section_choices(sections(launch))
    yield from said_choices("hf", "accelerate_choices", names)
    for technique in launch.techniques:
        yield ExplainedSetting("train.py --use-liger-kernel true", technique.words)
    yield from said_choices("hf", "files", names)


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files need."""
    return said_needs("hf", "accelerate_needs", launch)
