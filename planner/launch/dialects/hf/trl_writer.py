"""Writer for TRL 1.16: trl.yaml, which TRL's own classes read, and a program around its trainers.

The plan's framework decides what shards: nothing, FSDP2 (accelerate.yaml) or DeepSpeed
(ds_config.json). Settings: trl 1.16.0, trl/trainer/*_config.py, model_config.py; trainers of ORPO
and CPO: trl/experimental.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.objective import read_objective
from planner.job.request import Request
from planner.job.tuning import read_tuning
from planner.launch.contract import (
    PRETRAINED,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
    rate_variable,
)
from planner.launch.dialects.hf import accelerate_writer, deepspeed_writer
from planner.launch.dialects.hf.files import BITSANDBYTES, ENVIRONMENT, hf_job_refusals
from planner.launch.dialects.hf.files import plan_refusals as hf_plan_refusals
from planner.launch.dialects.hf.program_pieces import merging, of_language, part_pieces
from planner.launch.dialects.hf.settings_file import (
    settings_files,
    settings_names,
    trainer_optimizer,
)
from planner.launch.dialects.hf.tuning_words import frozen_text, loaded_dtype, tuning_refusals
from planner.launch.quoting import Code
from planner.launch.registry import dialect_toml
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_choices,
    said_needs,
    said_refusals,
    said_settings,
    said_variables,
)
from planner.launch.settings_text import SettingsSection, filled, section_choices
from planner.launch.time_limit import stop_variable

CONFIG = "trl.yaml"
FSDP, DEEPSPEED = "hf-fsdp2", "deepspeed"
# Formats that bitsandbytes packs; beside them TRL casts adapters to bf16 (sft_trainer.py 902-911).
_PACKED = ("nf4", "nf4-double", "int8")


def trainer_of(job: Job) -> Mapping[str, Any]:
    """TRL's trainer for a job's objective; a row of `launch.toml`."""
    found: Mapping[str, Any] = dialect_toml("hf", "launch.toml")["trl_trainers"][job.objective.kind]
    return found


def _chunks(kind: str) -> bool:
    """Whether the trainer of an objective computes logits in chunks (TRL's fused head,
    trl/trainer/utils.py, add_fused_lm_head)."""
    found = dialect_toml("hf", "launch.toml")["trl_trainers"].get(kind, {})
    return bool(found.get("chunks"))


def as_run(request: Request) -> Request:
    """The request changed to the way TRL runs it: logits in chunks if TRL's trainer makes them so,
    and bf16 adapters beside packed weights. The latter not under FSDP2 or DeepSpeed, which store
    trained weights as usual (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model;
    deepspeed/runtime/engine.py)."""
    tuning = read_tuning(request.train, request.freeze)
    objective = read_objective(request.objective, adapters=tuning.has_adapters)
    changes: dict[str, object] = {}
    if objective.logits == "full" and _chunks(objective.kind):
        changes["objective"] = str(replace(objective, logits="chunked"))
    alone = request.framework not in (FSDP, DEEPSPEED)
    if alone and tuning.base in _PACKED and tuning.adapter is None:
        changes["train"] = str(replace(tuning, adapter="bf16"))
    return request.model_copy(update=changes)


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that TRL cannot express."""
    yield from hf_job_refusals(job)
    # TRL decides the format of adapters; see `as_run`.
    adapters = replace(job.tuning, adapter=None)
    given = job.tuning.adapter not in (None, "bf16" if job.tuning.base in _PACKED else None)
    yield from tuning_refusals(job if given else replace(job, tuning=adapters), freezes=True)
    names = names_of_job(job) | {
        "mode": job.framework.mode,
        "optim": _optimizer(job),
        "samples": job.samples,
        "objective": job.objective,
        "chunks": _chunks(job.objective.kind),
    }
    yield from said_refusals("hf", "trl_refusals", names)
    if job.model.vision is not None:
        seen = {"frozen": " ".join(of_language(job.tuning).frozen), "profile": job.framework.name}
        yield from said_refusals("hf", "trl_vision_refusals", names | seen)
    if job.framework.name == DEEPSPEED:
        yield from deepspeed_writer.optimizer_refusals(job)
    elif job.framework.name == FSDP:
        yield from accelerate_writer.optimizer_refusals(job)


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """Refusals of plans that TRL cannot express."""
    yield from hf_plan_refusals(launch)
    yield from said_refusals("hf", "trl_plan_refusals", names_of(launch))


def _optimizer(job: Job) -> str | None:
    """The Trainer's name of the optimizer, `deepspeed` if DeepSpeed creates it; None if it has
    none."""
    profile = job.framework.name
    if profile == DEEPSPEED and deepspeed_writer.optimizer_kind(job) == DEEPSPEED:
        return DEEPSPEED
    others = accelerate_writer.TORCHAO if profile == FSDP else BITSANDBYTES
    plain = all(dtype == "fp32" for _, dtype in job.optimizer.states)
    return trainer_optimizer(job, others) if plain or job.optimizer.family in others else None


# --- trl.yaml -------------------------------------------------------------------------------------


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason."""
    return (said_settings("hf", "trl", _names(launch), {}, ""),)


def _names(launch: Launch) -> dict[str, object]:
    """Names that the rows of `launch.toml` may use."""
    job, tuning, profile = launch.job, launch.job.tuning, launch.job.framework.name
    within = job.samples.lengths is not None and job.samples.packing == "pack-varlen"
    attention = "flash_attention_2" if within else {"flash": "sdpa"}.get(job.attention, "eager")
    reentrant = profile == DEEPSPEED and launch.plan.degrees.zero == 3 and tuning.has_adapters
    return settings_names(launch, by_peft=True) | {
        "trainer": trainer_of(job),
        "profile": profile,
        "dtype": loaded_dtype(job),
        "attention": attention,
        "optim": _optimizer(job) or "",
        "betas": [str(beta) for beta in deepspeed_writer.optimizer_betas(job)],
        "checkpoints": launch.recomputes_layers and profile != FSDP,
        "reentrant": reentrant,
        "frozen": frozen_text(tuning),
    }


# --- the folder -----------------------------------------------------------------------------------


def program(job: Job) -> str:
    """The name of the file with the program, such as `train_dpo.py`, from TRL's trainer."""
    return f"train_{trainer_of(job)['program']}.py"


def files(launch: Launch) -> Files:
    """trl.yaml, the program, the model's config.json, and the file that configures sharding."""
    job, profile = launch.job, launch.job.framework.name
    settings = settings_files(launch, "hf", CONFIG, sections(launch))
    found = {CONFIG: settings[CONFIG], program(job): _program(launch), **settings}
    if profile == DEEPSPEED:
        text = json.dumps(deepspeed_writer.ds_config(launch), indent=2) + "\n"
        found[deepspeed_writer.CONFIG] = text
    elif profile == FSDP:
        configuration = accelerate_writer.configuration(launch, program(job))
        found[accelerate_writer.CONFIG] = configuration
    return {**found, **merging(job)}


def _program(launch: Launch) -> str:
    """The program's text, in which `pieces.toml` says what varies."""
    job, trainer = launch.job, trainer_of(launch.job)
    name = trainer["name"]
    pieces = part_pieces(
        job, "trl", adds=False, experimental=trainer["experimental"], makes_rows=_makes_rows(job),
        trainer=Code(f"{name}Trainer"), sharded=job.framework.name == FSDP,
        zero3=job.framework.name == DEEPSPEED and launch.plan.degrees.zero == 3,
    )  # fmt: skip
    return filled(
        "hf/trl.py.txt",
        title=f"{job.model.name} with TRL's {name}Trainer.",
        config=Code(f"{name}Config"),
        trainer=Code(f"{name}Trainer"),
        imports=_imports(trainer),
        stop=filled("hf/stop.py.txt"),
        **pieces,
    )


def _imports(trainer: Mapping[str, Any]) -> list[str]:
    """Imports from TRL."""
    name, module = trainer["name"], trainer["module"]
    classes, shared = (f"{name}Config", f"{name}Trainer"), ("ModelConfig", "TrlParser")
    functions = ("get_peft_config", "get_quantization_config")
    if module != "trl":
        first = f"from trl import {', '.join((*shared, *functions))}"
        return [first, f"from {module} import {', '.join(classes)}"]
    names = (*sorted((*classes, *shared)), *functions)
    return ["from trl import (", *(f"    {one}," for one in names), ")"]


def _makes_rows(job: Job) -> bool:
    """Whether the program can make up data for a trial run. It can for text in full rows, not for
    images, preferences or samples with lengths."""
    plain = job.objective.kind == "lm" and job.model.vision is None
    return plain and job.samples.lengths is None


def command(launch: Launch) -> RunCommand:
    """The program with trl.yaml, and the user's values in place of those in it."""
    job = launch.job
    words = {
        "max_steps": "TRAIN_STEPS", "learning_rate": "LEARNING_RATE",
        "warmup_steps": "WARMUP_STEPS", "lr_scheduler_type": "LR_SCHEDULE",
    }  # fmt: skip
    yours = [word for name, at in words.items() for word in (f"--{name}", f"${{{at}}}")]
    saving = ("--output_dir", "${CHECKPOINTS}", "--save_strategy", "steps")
    none = ("--output_dir", "outputs", "--save_strategy", "no")
    more = accelerate_writer.STARTED if job.framework.name == FSDP else {}
    variables = said_variables("hf", launch, "trl_variables", random=_makes_rows(job))
    return RunCommand(
        argv=(program(job), "--config", CONFIG, *yours),
        variables=(*variables, _rate(job), stop_variable(launch)),
        branches=(
            Branch(PRETRAINED, ("--model_name_or_path", f"${{{PRETRAINED}}}")),
            Branch("DATASET", ("--dataset", "${DATASET}")),
            Branch("CHECKPOINTS", saving, none),
            Branch("STOP_AFTER_MINUTES", ("--stop_after_minutes", "${STOP_AFTER_MINUTES}")),
        ),
        environment=ENVIRONMENT,
        **more,
    )


def _rate(job: Job) -> Variable:
    """The variable for the learning rate. Its default is usual for TRL's trainer, with or without
    adapters."""
    trainer, adapters = trainer_of(job), job.tuning.has_adapters
    rate = trainer["adapter_rate"] if adapters else trainer["rate"]
    beside = " with adapters" if adapters else ""
    what = f"{rate} is usual for TRL's {trainer['name']}Trainer{beside}; peak"
    return rate_variable(rate, what=what)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains."""
    yield from section_choices(sections(launch))
    if launch.job.framework.name == FSDP:
        yield from section_choices(accelerate_writer.sections(launch))
    yield from said_choices("hf", "trl_choices", names_of(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files need."""
    return said_needs("hf", "trl_needs", launch, profile=launch.job.framework.name)
