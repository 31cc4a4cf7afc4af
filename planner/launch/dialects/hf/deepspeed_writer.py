"""Writer for DeepSpeed 0.19 under the Trainer of transformers 5.23: ds_config.json and train.py."""

from __future__ import annotations

import json
from collections.abc import Iterator

from planner.job.frameworks.profile import load_framework
from planner.job.job import Job
from planner.launch.contract import ExplainedSetting, Files, Launch, Refusal, RunCommand
from planner.launch.dialects.hf import DEEPSPEED
from planner.launch.dialects.hf.files import (
    BITSANDBYTES,
    MODEL_FOLDER,
    attention,
    hf_command,
    hf_job_refusals,
    hf_program,
    plan_refusals,  # noqa: F401 (the writers' contract)
)
from planner.launch.dialects.hf.program_pieces import (
    image_arguments,
    merging,
    part_pieces,
    parts_refusals,
    tuning_arguments,
)
from planner.launch.dialects.hf.tuning_words import tuning_refusals
from planner.launch.quoting import Code
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_choices,
    said_needs,
    said_refusals,
    said_values,
)
from planner.launch.settings_text import filled
from planner.launch.time_limit import save_steps
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import pieces

CONFIG = "ds_config.json"
# Elements in a bucket of gradients that are reduced together; DeepSpeed's default.
BUCKET_ELEMENTS = 500_000_000
# Optimizers that DeepSpeed creates itself.
_CONFIG_OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "sgd": "SGD"}
# train.py's name for the folder on a local drive.
NVME = "NVME"
_BETAS = {"lion": (0.9, 0.99)}
_USUAL_BETAS = (0.9, 0.95)


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of jobs that DeepSpeed under the Trainer cannot express."""
    yield from hf_job_refusals(job)
    yield from tuning_refusals(job, freezes=True)
    yield from parts_refusals(job)
    yield from optimizer_refusals(job)


def optimizer_refusals(job: Job) -> Iterator[Refusal]:
    """Refusals of optimizers that neither DeepSpeed nor the Trainer can create."""
    names = names_of_job(job) | {"made_by": optimizer_kind(job)}
    yield from said_refusals("hf", "deepspeed_refusals", names)


def optimizer_kind(job: Job) -> str | None:
    """The creator of the optimizer: `trainer` (by --optim), `deepspeed` (by ds_config.json), or
    None."""
    family, types = job.optimizer.family, {dtype for _, dtype in job.optimizer.states}
    if family in BITSANDBYTES:
        return "trainer"
    if family == "adamw" and types <= {"fp32"}:
        return "deepspeed" if job.optimizer_on_cpu else "trainer"
    return "deepspeed" if family in ("lion", "sgd") and types <= {"fp32", "none"} else None


def files(launch: Launch) -> Files:
    """ds_config.json, train.py and the model's config.json."""
    model = launch.job.model
    title = f"{model.name} with DeepSpeed ZeRO-{launch.plan.degrees.zero} under the Trainer."
    dtype = {"fp16": "float16"}.get(launch.job.precision, "bfloat16")
    text = json.dumps(ds_config(launch), indent=2) + "\n"
    drive = _uses_drive(launch.job)
    program = hf_program(
        model, "hf/trainer.py.txt", title, dtype=Code(dtype),
        drive=filled("hf/drive.py.txt") if drive else "",
        words=Code("on_drive(sys.argv[1:])" if drive else ""),
        **part_pieces(launch.job, "trainer", dtype=dtype),
    )  # fmt: skip
    return {CONFIG: text, **program, **merging(launch.job)}


def ds_config(launch: Launch) -> dict[str, object]:
    """The configuration as nested tables."""
    config: dict[str, object] = {}
    for key, value in said_values("hf", "ds_config", _names(launch), DEEPSPEED).items():
        *tables, name = key.split(".")
        place = config
        for table in tables:
            inner = place.setdefault(table, {})
            place = inner if isinstance(inner, dict) else place
        place[name] = value
    return config


def _names(launch: Launch) -> dict[str, object]:
    """Names that the rows for ds_config.json and for train.py's arguments may use."""
    job, zero = launch.job, launch.plan.degrees.zero
    return names_of(launch) | {
        "attention": attention(launch),
        "folder": MODEL_FOLDER,
        "bucket": _reduce_bucket(zero),
        "bucket_elements": BUCKET_ELEMENTS,
        "layer": largest_layer(launch) if zero == 3 else 0,
        "made_by": optimizer_kind(job),
        "by_bitsandbytes": job.optimizer.family in BITSANDBYTES,
        "kinds": _CONFIG_OPTIMIZERS,
        "optim": optimizer_argument(job),
        "betas": list(optimizer_betas(job)),
        "weight_decay": 0.1,
        "nvme": NVME,
        "uses_drive": _uses_drive(job),
    }


def _reduce_bucket(stage: int) -> int:
    """The size of a gradient bucket, in elements. Half as large in stages 0 to 2, since
    `overlap_comm` keeps two full buckets in stages 1 and 2."""
    return BUCKET_ELEMENTS // 2 if stage < 3 else BUCKET_ELEMENTS


def largest_layer(launch: Launch) -> int:
    """Number of parameters in the model's largest layer."""
    model = launch.job.model
    context = OpContext(model, load_framework("megatron-core"), launch.plan.seq)
    return max(round(piece.parameters) for piece in pieces(context)[: len(model.piece_kinds)])


def _uses_drive(job: Job) -> bool:
    return "nvme" in (job.framework.state.states_home, job.framework.state.weights_home)


def command(launch: Launch) -> RunCommand:
    """train.py with the Trainer's arguments."""
    every = f"--save_strategy steps --save_steps {save_steps(launch)} --output_dir ${{CHECKPOINTS}}"
    none = "--save_strategy no --output_dir outputs"
    arguments = {
        **said_values("hf", "deepspeed_arguments", _names(launch)),
        **image_arguments(launch.job, launch.request),
        **tuning_arguments(launch.job),
    }
    return hf_command(launch, arguments, every.split(), none.split(), stop="stop_after_minutes")


def optimizer_argument(job: Job) -> str:
    """The optimizer as the Trainer's `--optim` names it; empty if DeepSpeed creates it."""
    if job.optimizer.family in BITSANDBYTES:
        return BITSANDBYTES[job.optimizer.family]
    fused = job.optimizer_setting.kernel == "fused"
    usual = "adamw_torch_fused" if fused else "adamw_torch"
    return "" if optimizer_kind(job) == "deepspeed" else usual


def optimizer_betas(job: Job) -> tuple[float, float]:
    """The decay rates of the optimizer's moments."""
    return _BETAS.get(job.optimizer.family, _USUAL_BETAS)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """Settings that the README explains, since JSON has no comments."""
    names = names_of(launch) | {"bucket": _reduce_bucket(launch.plan.degrees.zero)}
    yield from said_choices("hf", "deepspeed_choices", names)
    for one in launch.techniques:
        where = "" if one.flags.startswith("zero_optimization") else "train.py "
        yield ExplainedSetting(f"{where}{one.flags}", one.words)
    yield from said_choices("hf", "files", names)


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files need."""
    return said_needs("hf", "deepspeed_needs", launch)
