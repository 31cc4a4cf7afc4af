"""Writer for nanotron (repository of 2026-04): a YAML file for its run_train.py."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch import contract, sentences
from planner.launch.architecture import ArchitectureRow, lacking, model_rows, settings
from planner.launch.architecture import refusals as architecture_refusals
from planner.launch.options import run_options
from planner.launch.quoting import Value
from planner.launch.registry import dialect_toml
from planner.launch.settings_text import (
    SettingsSection,
    filled,
    section_choices,
    yaml_text,
)
from planner.launch.time_limit import save_steps
from planner.predict.configuration import job_split

PROGRAM, CONFIG = "train.py", "nanotron.yaml"
OPTIONS = run_options("nanotron")["run"]


def plan_refusals(launch: contract.Launch) -> Iterator[contract.Refusal]:
    """A refusal if the plan's stages differ from nanotron's, which places the layers itself."""
    pp, planned = launch.plan.degrees.pp, launch.plan.layout.block_layers
    built = job_split(launch.job, pp)
    if pp == 1 or built == planned:
        return
    same = (count for count in range(pp, 0, -1) if len({*job_split(launch.job, count)}) == 1)
    yield contract.Refusal(
        f"nanotron places the layers itself, by cost with the output projection counted: "
        f"{_listed(built)} on {pp} stages, not the plan's {_listed(planned)}",
        f"pp {next(same)}",
    )


def _listed(counts: tuple[int, ...]) -> str:
    return "+".join(str(count) for count in counts)


def job_refusals(job: Job) -> Iterator[contract.Refusal]:
    """Parts of the job that nanotron cannot express."""
    yield from architecture_refusals(NANOTRON, job.model, "nanotron", "--framework megatron-core")
    yield from sentences.said_refusals("nanotron", "job_refusals", sentences.names_of_job(job))


def files(launch: contract.Launch) -> contract.Files:
    """The YAML file, and the program that inserts the user's variables into it."""
    gpus = launch.plan.degrees.gpus
    written: dict[str, Value] = {"model": launch.job.model.name, "gpus": gpus}
    config = filled(
        f"nanotron/{CONFIG}.txt", **written, sections=yaml_text(sections(launch)).rstrip("\n")
    )
    program = filled(
        f"nanotron/{PROGRAM}.txt", save_steps=save_steps(launch), folder=contract.FOLDER
    )
    return {CONFIG: config, PROGRAM: program}


def sections(launch: contract.Launch) -> tuple[SettingsSection, ...]:
    """The sections of the file that the plan decides."""
    model = launch.job.model
    names = sentences.names_of(launch) | {
        "split": _listed(launch.plan.layout.block_layers),
        "trial_steps": contract.TRIAL_STEPS,
        "init_method": {"std": settings(NANOTRON, model)[_STD]},
        "model_config": model_config(model),
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "torch_adam_is_fused": launch.job.optimizer_setting.kernel == "fused",
        },
    }
    titles = ("parallelism", "model", "tokens", "optimizer")
    return tuple(sentences.said_settings("nanotron", title, names, OPTIONS) for title in titles)


# Settings of a model: the keys of model_config, except the initialiser.
_STD = "init_method.std"
NANOTRON: tuple[ArchitectureRow, ...] = (
    *model_rows(dialect_toml("nanotron", "model.toml")["rows"], lambda _: {}),
    *lacking({"qkv-bias", "tied"}),
)


def model_config(model: ModelSpec) -> dict[str, Value]:
    """The model_config of Llama, or of Qwen2 if query, key and value have biases."""
    kind = "is_qwen2_config" if model.qkv_bias else "is_llama_config"
    values = settings(NANOTRON, model)
    del values[_STD]
    return {
        kind: True,
        **values,
        "rope_interleaved": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "_attn_implementation": "flash_attention_2",
    }


def command(launch: contract.Launch) -> contract.RunCommand:
    """The command that runs nanotron's run_train.py with the file."""
    return contract.RunCommand(
        argv=(PROGRAM, "${NANOTRON}/run_train.py", "--config-file", CONFIG),
        environment=sentences.said_environment("nanotron", "environment", launch),
        variables=sentences.said_variables("nanotron", launch),
    )


def choices(launch: contract.Launch) -> Iterator[contract.ExplainedSetting]:
    """The settings that deserve an explanation."""
    return section_choices(sections(launch))


def requirements(launch: contract.Launch) -> tuple[str, ...]:
    """Packages and versions that the file is written for."""
    return sentences.said_needs("nanotron", "needs", launch)
