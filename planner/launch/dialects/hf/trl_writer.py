"""Writer for TRL 1.16: trl.yaml, which TRL's own classes read, and a program around its trainers.

What shards is the plan's framework's: nothing, FSDP2 (accelerate.yaml) or DeepSpeed
(ds_config.json). Settings: trl 1.16.0, trl/trainer/*_config.py, model_config.py; ORPO's and CPO's
trainers: trl/experimental.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.objective import read_objective
from planner.job.request import Request
from planner.job.samples import PACKING_WORDS
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
from planner.launch.dialects.hf.files import (
    BITSANDBYTES,
    ENVIRONMENT,
    MODEL_FOLDER,
    hf_config,
    hf_job_refusals,
    without_scores,
)
from planner.launch.dialects.hf.files import plan_refusals as hf_plan_refusals
from planner.launch.dialects.hf.tuned_program import frozen_pieces, merging
from planner.launch.dialects.hf.tuning_words import (
    alpha,
    frozen_text,
    target_modules,
    tuning_refusals,
    whole_modules,
)
from planner.launch.dialects.hf.vision_program import of_language
from planner.launch.quoting import Code, Value
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
from planner.launch.settings_text import (
    SettingsSection,
    filled,
    section_choices,
    yaml_text,
)
from planner.launch.time_limit import save_steps, stop_variable

CONFIG = "trl.yaml"
FSDP, DEEPSPEED = "hf-fsdp2", "deepspeed"
_OPTIMIZERS = {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}
# Of torchao, which alone updates FSDP2's shards, and of bitsandbytes.
_NARROW: Mapping[str, Mapping[str, str]] = {
    FSDP: {"adamw-8bit": "adamw_torch_8bit", "adamw-4bit": "adamw_torch_4bit"},
    "": BITSANDBYTES,
}
# Formats that bitsandbytes packs, beside which TRL makes adapters bf16 (sft_trainer.py 902-911).
_PACKED = ("nf4", "nf4-double", "int8")
_ROWS = "rows cut from one text, each full"
# Of a language model that is frozen the words are those of its tower.
_ALL = ("all-linear",)
_LOADERS = ["load_dataset", "load_from_disk"]
_ATTENTION = {"flash": "sdpa", "eager": "eager"}


def trainer_of(job: Job) -> Mapping[str, Any]:
    """TRL's trainer for what a job minimises; a row of `launch.toml`."""
    found: Mapping[str, Any] = dialect_toml("hf", "launch.toml")["trl_trainers"][job.objective.kind]
    return found


def _chunks(kind: str) -> bool:
    """Whether the trainer of an objective makes a chunk of logits at a time (TRL's fused head,
    trl/trainer/utils.py, add_fused_lm_head)."""
    found = dialect_toml("hf", "launch.toml")["trl_trainers"].get(kind, {})
    return bool(found.get("chunks"))


def as_run(request: Request) -> Request:
    """A request as TRL runs it: a chunk of logits at a time where its trainer does so, and adapters
    in bf16 beside packed weights. FSDP2 and DeepSpeed hold what trains as they always do
    (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model; deepspeed/runtime/engine.py)."""
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
    """What TRL cannot express of the job."""
    yield from hf_job_refusals(job)
    # TRL decides the type of the adapters, as `as_run` has it.
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
    """What TRL cannot express of the plan."""
    yield from hf_plan_refusals(launch)
    yield from said_refusals("hf", "trl_plan_refusals", names_of(launch))


def _optimizer(job: Job) -> str | None:
    """The optimizer as the Trainer names it, `deepspeed` for one that DeepSpeed makes; None where
    there is none such."""
    family, kernel = job.optimizer.family, job.optimizer_setting.kernel
    if job.framework.name == DEEPSPEED and deepspeed_writer.optimizer_kind(job) == DEEPSPEED:
        return DEEPSPEED
    narrow = _NARROW.get(job.framework.name, _NARROW[""])
    if family in narrow:
        return narrow[family]
    plain = all(dtype == "fp32" for _, dtype in job.optimizer.states)
    return _OPTIMIZERS.get(kernel) if family == "adamw" and plain else None


# --- trl.yaml -------------------------------------------------------------------------------------


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The settings that the plan decides, each with its reason."""
    found = said_settings("hf", "trl", _names(launch), {})
    return (replace(found, title=""),)


def _names(launch: Launch) -> dict[str, object]:
    """What rows may name."""
    job, model = launch.job, launch.job.model
    tuning, samples, profile = job.tuning, job.samples, job.framework.name
    within = samples.lengths is not None and samples.packing == "pack-varlen"
    whole = job.framework.mode == "amp" or (profile == FSDP and tuning.trains_all)
    checkpoints = launch.recomputes_layers and profile != FSDP
    reentrant = profile == DEEPSPEED and launch.plan.degrees.zero == 3 and tuning.has_adapters
    return names_of(launch) | {
        "trainer": trainer_of(job),
        "folder": MODEL_FOLDER,
        "profile": profile,
        "tuning": tuning,
        "samples": samples,
        "sees": model.vision is not None,
        "packing": _rows(job),
        "objective": job.objective,
        "techniques": launch.plan.techniques,
        "dtype": "float32" if whole else "bfloat16",
        "attention": "flash_attention_2" if within else _ATTENTION[job.attention],
        "optim": _optimizer(job) or "",
        "optimizer_arguments": deepspeed_writer.optimizer_arguments(launch),
        "checkpoints": checkpoints,
        "reentrant": reentrant,
        "alpha": round(alpha(tuning)) if tuning.has_adapters else 0,
        "targets": list(target_modules(tuning, model) or _ALL) if tuning.has_adapters else [],
        "whole": list(whole_modules(tuning, model)),
        "frozen": frozen_text(tuning),
        "save_steps": save_steps(launch),
    }


def _rows(job: Job) -> str:
    """How samples become rows, in words."""
    if job.model.vision is not None:
        return PACKING_WORDS["longest"]
    return _ROWS if job.samples.lengths is None else PACKING_WORDS[job.samples.packing]


# --- the folder -----------------------------------------------------------------------------------


def program(job: Job) -> str:
    """The program's file, which names the trainer."""
    return f"train_{trainer_of(job)['program']}.py"


def files(launch: Launch) -> Files:
    """trl.yaml, the program, the model's config.json, and the file of what shards."""
    model, job = launch.job.model, launch.job
    text = filled(
        f"hf/{CONFIG}.txt",
        model=model.name,
        gpus=launch.plan.degrees.gpus,
        settings=yaml_text(sections(launch)).rstrip("\n"),
    )
    config = json.dumps(hf_config(without_scores(model)) or {}, indent=2) + "\n"
    return {
        CONFIG: text,
        program(job): _program(launch),
        f"{MODEL_FOLDER}/config.json": config,
        **_sharding(launch),
        **merging(job),
    }


def _sharding(launch: Launch) -> Files:
    """The file of what shards; none where nothing does."""
    profile = launch.job.framework.name
    if profile == DEEPSPEED:
        text = json.dumps(deepspeed_writer.ds_config(launch), indent=2) + "\n"
        return {deepspeed_writer.CONFIG: text}
    if profile == FSDP:
        return {
            accelerate_writer.CONFIG: accelerate_writer.configuration(launch, program(launch.job))
        }
    return {}


def _program(launch: Launch) -> str:
    """The program's text."""
    job, trainer = launch.job, trainer_of(launch.job)
    name = trainer["name"]
    sharded = job.framework.name == FSDP
    return filled(
        "hf/trl.py.txt",
        title=f"{job.model.name} with TRL's {name}Trainer.",
        config=Code(f"{name}Config"),
        trainer=Code(f"{name}Trainer"),
        imports=_imports(trainer),
        made=_made(launch).rstrip("\n"),
        stop=filled("hf/stop.py.txt"),
        data=_reading(job),
        **_sharded_pieces(sharded=sharded),
        **frozen_pieces(job),
    )


def _made(launch: Launch) -> str:
    """The function that makes the trainer, which loads the model by itself or is handed it."""
    job, trainer = launch.job, trainer_of(launch.job)
    name = Code(f"{trainer['name']}Trainer")
    if not trainer["experimental"]:
        return filled("hf/trl_trainer.py.txt", trainer=name, layers=_frozen_layers(job))
    packed, has_adapters = job.tuning.base is not None, job.tuning.has_adapters
    packing = 'kinds["quantization_config"] = get_quantization_config(model)'
    return filled(
        "hf/trl_model.py.txt",
        trainer=name,
        packing=packing if packed else "",
        peft="from peft import get_peft_model" if has_adapters else "",
        adapted=_adapted(launch) if has_adapters else [],
    )


def _adapted(launch: Launch) -> list[str]:
    """Lines that put adapters on a model; ZeRO-3 wants one type of all (TRL's issue 6089)."""
    job = launch.job
    zero3 = job.framework.name == DEEPSPEED and launch.plan.degrees.zero == 3
    cast = filled("hf/trl_cast.py.txt").rstrip("\n") if job.tuning.base is not None else ""
    text = filled(
        "hf/trl_adapters.py.txt", layers=_frozen_layers(job), autocast=not zero3, cast=cast
    )
    return text.rstrip("\n").split("\n")


def _imports(trainer: Mapping[str, Any]) -> list[str]:
    """What comes from TRL."""
    name, module = trainer["name"], trainer["module"]
    classes, shared = (f"{name}Config", f"{name}Trainer"), ("ModelConfig", "TrlParser")
    functions = ("get_peft_config", "get_quantization_config")
    if module != "trl":
        first = f"from trl import {', '.join((*shared, *functions))}"
        return [first, f"from {module} import {', '.join(classes)}"]
    names = (*sorted((*classes, *shared)), *functions)
    return ["from trl import (", *(f"    {one}," for one in names), ")"]


def _reading(job: Job) -> str:
    """The function that reads the data, or makes rows where nothing is known of samples."""
    random = filled("hf/trl_random.py.txt").rstrip("\n").split("\n") if _makes_rows(job) else []
    names = ["Dataset", *_LOADERS] if random else _LOADERS
    imports = f"from datasets import {', '.join(names)}"
    return filled("hf/trl_data.py.txt", imports=imports, random=random)


def _makes_rows(job: Job) -> bool:
    """Whether a trial run makes up rows of its own: of full ones nothing else has to be known."""
    plain = job.objective.kind == "lm" and job.model.vision is None
    return plain and job.samples.lengths is None


def _frozen_layers(job: Job) -> list[str]:
    """Lines that keep adapters off the first layers, or off parts that are frozen whole."""
    if job.model.vision is not None and job.tuning.has_adapters and job.tuning.frozen:
        return ['adapters.exclude_modules = left_out(run.freeze_modules.split(","))']
    if not (job.tuning.has_adapters and job.tuning.frozen_layers):
        return []
    first = job.tuning.frozen_layers
    return [f"adapters.layers_to_transform = list(range({first}, {job.model.layers}))"]


def _sharded_pieces(*, sharded: bool) -> Mapping[str, Value]:
    """What FSDP2 is told besides: gradients reduced in fp32, as the prediction counts, and a whole
    model at the end."""
    if not sharded:
        return {"policy_import": "", "policy": "", "whole_model": ""}
    return {
        "policy_import": "from torch.distributed.fsdp import MixedPrecisionPolicy",
        "policy": [
            "# accelerate's own policy would reduce gradients in bf16",
            "trainer.accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(",
            "    param_dtype=torch.bfloat16, reduce_dtype=torch.float32",
            ")",
        ],
        "whole_model": [
            'trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")'
        ],
    }


def command(launch: Launch) -> RunCommand:
    """The program with trl.yaml, and what is yours in place of what stands in it."""
    job = launch.job
    words = {
        "max_steps": "TRAIN_STEPS", "learning_rate": "LEARNING_RATE",
        "warmup_steps": "WARMUP_STEPS", "lr_scheduler_type": "LR_SCHEDULE",
    }  # fmt: skip
    yours = [word for name, at in words.items() for word in (f"--{name}", f"${{{at}}}")]
    saving = ("--output_dir", "${CHECKPOINTS}", "--save_strategy", "steps")
    none = ("--output_dir", "outputs", "--save_strategy", "no")
    more: dict[str, Any] = {}
    if job.framework.name == FSDP:
        configured = ("--config_file", accelerate_writer.CONFIG)
        more = {"launcher": "accelerate", "launcher_arguments": configured}
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
    """The learning rate: what TRL takes for the method."""
    trainer, adapters = trainer_of(job), job.tuning.has_adapters
    rate = trainer["adapter_rate"] if adapters else trainer["rate"]
    beside = " with adapters" if adapters else ""
    what = f"{rate} is usual for TRL's {trainer['name']}Trainer{beside}; peak"
    return rate_variable(rate, what=what)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence."""
    for one in section_choices(sections(launch)):
        yield ExplainedSetting(one.setting.lstrip("."), one.purpose)
    if launch.job.framework.name == FSDP:
        yield from section_choices(accelerate_writer.sections(launch))
    yield from said_choices("hf", "trl_choices", names_of(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files are written for."""
    return said_needs("hf", "trl_needs", launch, profile=launch.job.framework.name)
