"""Writer for NeMo AutoModel 0.7: automodel.yaml, which torchrun hands to its recipe.

Settings: NVIDIA-NeMo/Automodel 0.7.0, nemo_automodel/recipes/_typed_config.py and _dist_utils.py,
components/_peft/lora.py, components/distributed. The files train transformers' models (`force_hf`),
whose memory was measured; AutoModel's own, which expert parallelism needs, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.job.job import Job
from planner.job.samples import PACKING_WORDS
from planner.launch.contract import (
    PRETRAINED,
    TRIAL_STEPS,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
)
from planner.launch.dialects.automodel.stages import layers_a_stage, module_names, stage_layers
from planner.launch.dialects.hf.files import (
    ENVIRONMENT,
    HF,  # noqa: F401 (the target's table of models)
    MODEL_FOLDER,
    hf_job_refusals,
)
from planner.launch.dialects.hf.modules import ALL_LINEAR
from planner.launch.dialects.hf.settings_file import settings_files
from planner.launch.dialects.hf.tuning_words import alpha, target_modules, tuning_refusals
from planner.launch.options import last, run_options
from planner.launch.quoting import Value
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_needs,
    said_refusals,
    said_settings,
    said_variables,
)
from planner.launch.settings_text import SettingsSection, section_choices
from planner.launch.time_limit import save_steps

CONFIG = "automodel.yaml"
RUN = run_options("automodel")["run"]


def _names_of_job(job: Job) -> dict[str, Any]:
    """Names that the rows of launch.toml may use for a job."""
    packs = job.samples.lengths is not None and job.samples.packing == "pack-varlen"
    return names_of_job(job) | {"packs": packs, "frozen": job.tuning.frozen}


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that AutoModel cannot express."""
    yield from hf_job_refusals(job)
    yield from tuning_refusals(job, freezes=True)
    yield from said_refusals("automodel", "job_refusals", _names_of_job(job))


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """Refusals of plans that AutoModel cannot express."""
    yield from said_refusals("automodel", "plan_refusals", _names(launch))


def _names(launch: Launch) -> dict[str, Any]:
    job, plan = launch.job, launch.plan
    degrees, samples = plan.degrees, job.samples
    ranks = degrees.dp * degrees.cp
    has_adapters = job.tuning.has_adapters
    return names_of(launch) | _names_of_job(job) | {
        "ddp": degrees.zero == 0 and degrees.dp > 1,
        "replicas": ranks // degrees.shard if degrees.shard else 1,
        "pipeline": _pipeline(launch),
        "padded": samples.lengths is None or samples.packing == "limit",
        "packing": "" if samples.lengths is None else PACKING_WORDS[samples.packing],
        "attention": _attention(job),
        "targets": _targets(job) if has_adapters else None,
        "alpha": round(alpha(job.tuning)) if has_adapters else 0,
        "rate": 1e-4 if has_adapters else 1e-5,
        "folder": MODEL_FOLDER,
        "trial_steps": TRIAL_STEPS,
        "save_steps": save_steps(launch),
    }  # fmt: skip


def _pipeline(launch: Launch) -> dict[str, Value]:
    """The content of the table `pipeline:` for a plan's stages: `layers_per_stage` if AutoModel
    would split the layers like the plan, else the module names of every stage."""
    degrees = launch.plan.degrees
    schedule = "interleaved" if degrees.vpp > 1 else "1f1b"
    table: dict[str, Value] = {
        "pp_schedule": RUN["schedule"].text(schedule),
        "pp_microbatch_size": degrees.mbs,
        "pp_seq_len": launch.job.seq,
        "scale_grads_in_schedule": False,
    }
    blocks, layers = launch.plan.layout.block_layers, launch.job.model.layers
    per_stage = layers_a_stage(layers, len(blocks))
    if blocks == stage_layers(layers, len(blocks)) and -(-layers // per_stage) == len(blocks):
        return table | {last(RUN["layers"]): per_stage}
    return table | {last(RUN["parts"]): module_names(blocks)}


def _attention(job: Job) -> str:
    """The attention implementation; only flash-attention keeps packed samples apart."""
    if job.attention == "eager":
        return "eager"
    packs = job.samples.lengths is not None and job.samples.packing == "pack-varlen"
    return "flash_attention_2" if packs else "sdpa"


def _targets(job: Job) -> list[str] | None:
    """Patterns for the paths of the modules that get adapters, such as `*.q_proj`. None if every
    linear layer except the head gets them."""
    names = target_modules(job.tuning, job.model)
    return None if names == (ALL_LINEAR,) else [f"*.{name}" for name in names]


def files(launch: Launch) -> Files:
    """automodel.yaml and the model's config.json."""
    return settings_files(launch, "automodel", CONFIG, sections(launch))


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The sections of the file, in the order of AutoModel's recipes."""
    names, job = _names(launch), launch.job
    wanted = {
        "step_scheduler": True, "model": True, "peft": job.tuning.has_adapters,
        "quantization": job.tuning.base is not None, "distributed": True, "loss_fn": True,
        "dataset": True, "packed_sequence": names["packs"], "dataloader": True,
        "optimizer": True, "lr_scheduler": True, "checkpoint": True, "clip_grad_norm": True,
    }  # fmt: skip
    return tuple(
        said_settings("automodel", title, names, RUN) for title, stands in wanted.items() if stands
    )


def command(launch: Launch) -> RunCommand:
    """AutoModel's program, with the user's values in place of those in its file."""
    words = {
        "dataset.path_or_dataset_id": "DATASET",
        "step_scheduler.max_steps": "TRAIN_STEPS",
        "optimizer.lr": "LEARNING_RATE",
        "lr_scheduler.lr_warmup_steps": "WARMUP_STEPS",
    }
    overrides = (f"--{name}=${{{variable}}}" for name, variable in words.items())
    folder = ("--checkpoint.enabled=true", "--checkpoint.checkpoint_dir=${CHECKPOINTS}")
    weights = (f"--model.pretrained_model_name_or_path=${{{PRETRAINED}}}",)
    return RunCommand(
        argv=("-m", "nemo_automodel.cli.app", CONFIG, *overrides),
        variables=said_variables("automodel", launch),
        branches=(Branch(PRETRAINED, weights), Branch("CHECKPOINTS", folder)),
        environment=ENVIRONMENT,
    )


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains."""
    return section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the file needs."""
    packs = _names_of_job(launch.job)["packs"]
    return said_needs("automodel", "needs", launch, packs=packs)
