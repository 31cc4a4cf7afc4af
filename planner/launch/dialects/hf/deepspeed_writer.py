"""Writer for DeepSpeed 0.19 under the Trainer of transformers 5.23: ds_config.json and train.py."""

from __future__ import annotations

import json
from collections.abc import Iterator

from planner.job.frameworks.profile import load_framework
from planner.job.job import Job
from planner.launch.contract import (
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
)
from planner.launch.dialects.hf import DEEPSPEED
from planner.launch.dialects.hf.files import (
    BITSANDBYTES,
    LIGER,
    MODEL_FOLDER,
    attention,
    hf_command,
    hf_job_refusals,
    hf_program,
    plan_refusals,  # noqa: F401 (the writers' contract)
)
from planner.launch.dialects.hf.tuned_program import (
    merging,
    trainer_pieces,
    tuning_arguments,
)
from planner.launch.dialects.hf.tuning_words import tuning_refusals
from planner.launch.dialects.hf.vision_program import image_arguments, parts_refusals
from planner.launch.options import last
from planner.launch.quoting import Code
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_choices,
    said_needs,
    said_refusals,
)
from planner.launch.settings_text import filled
from planner.launch.time_limit import save_steps
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import pieces

CONFIG = "ds_config.json"
# Elements in a bucket of gradients that are reduced together, DeepSpeed's default.
BUCKET_ELEMENTS = 500_000_000
# Optimizers of DeepSpeed's own, with what they need beside lr and weight decay.
_CONFIG_OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "sgd": "SGD"}
# What train.py calls the folder of a local drive.
NVME = "NVME"
_WEIGHT_DECAY = 0.1
_BETAS = {"adamw": (0.9, 0.95), "lion": (0.9, 0.99)}


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What DeepSpeed under the Trainer cannot express of the job."""
    yield from hf_job_refusals(job)
    yield from tuning_refusals(job, freezes=True)
    yield from parts_refusals(job)
    yield from optimizer_refusals(job)


def optimizer_refusals(job: Job) -> Iterator[Refusal]:
    """Optimizers that neither DeepSpeed nor the Trainer makes."""
    names = names_of_job(job) | {"made_by": optimizer_kind(job)}
    yield from said_refusals("hf", "deepspeed_refusals", names)


def optimizer_kind(job: Job) -> str | None:
    """`trainer`: made by the Trainer (--optim); `deepspeed`: in ds_config.json; None: neither."""
    optimizer = job.optimizer
    plain = all(dtype == "fp32" for _, dtype in optimizer.states)
    if optimizer.family in BITSANDBYTES:
        return "trainer"
    if optimizer.family == "adamw" and plain:
        return "deepspeed" if job.optimizer_on_cpu else "trainer"
    if optimizer.family in ("lion", "sgd") and all(
        t in ("fp32", "none") for _, t in optimizer.states
    ):
        return "deepspeed"
    return None


def files(launch: Launch) -> Files:
    """ds_config.json, train.py and the model's config.json."""
    model = launch.job.model
    title = f"{model.name} with DeepSpeed ZeRO-{launch.plan.degrees.zero} under the Trainer."
    dtype = {"fp16": "float16"}.get(launch.job.precision, "bfloat16")
    text = json.dumps(ds_config(launch), indent=2) + "\n"
    pieces = trainer_pieces(launch.job, dtype)
    drive = _uses_drive(launch.job)
    program = hf_program(
        model, "hf/trainer.py.txt", title, dtype=Code(dtype),
        drive=filled("hf/drive.py.txt") if drive else "",
        words=Code("on_drive(sys.argv[1:])" if drive else ""), **pieces,
    )  # fmt: skip
    return {CONFIG: text, **program, **merging(launch.job)}


def ds_config(launch: Launch) -> dict[str, object]:
    """The configuration as an object."""
    degrees, precision = launch.plan.degrees, launch.job.precision
    batch: dict[str, object] = {
        DEEPSPEED["mbs"].key: degrees.mbs,
        DEEPSPEED["grad_acc"].key: degrees.grad_acc,
    }
    if degrees.tp == 1:
        batch = {DEEPSPEED["gbs"].key: degrees.gbs} | batch
    config: dict[str, object] = batch | {
        "gradient_clipping": 1.0,
        precision: {"enabled": True},
        "data_types": {"grad_accum_dtype": precision},
        "communication_data_type": precision,
        "zero_optimization": _zero(launch),
        "steps_per_print": 1,
    }
    if degrees.tp > 1:
        config["tensor_parallel"] = {last(DEEPSPEED["tp"]): degrees.tp}
    if optimizer_kind(launch.job) == "deepspeed":
        config["optimizer"] = _config_optimizer(launch)
    if launch.job.optimizer.family in ("sgd", *BITSANDBYTES):
        config["zero_allow_untested_optimizer"] = True
    return config


def _reduce_bucket(stage: int) -> int:
    """Elements of a bucket: in stages 1 and 2 `overlap_comm` makes two, each whole."""
    return BUCKET_ELEMENTS // 2 if stage < 3 else BUCKET_ELEMENTS


def _zero(launch: Launch) -> dict[str, object]:
    stage = launch.plan.degrees.zero
    zero: dict[str, object] = {"stage": stage}
    if stage == 0:
        return zero
    zero |= {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": _reduce_bucket(stage),
    }
    if stage < 3:
        zero["allgather_bucket_size"] = BUCKET_ELEMENTS
    else:
        layer = largest_layer(launch)
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": 2 * layer,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if "hpz" in launch.plan.techniques:
        zero["zero_hpz_partition_size"] = launch.job.cluster.gpus_per_node
    return zero | _offload(launch)


def largest_layer(launch: Launch) -> int:
    """Parameters of the model's largest layer."""
    model = launch.job.model
    context = OpContext(model, load_framework("megatron-core"), launch.plan.seq)
    return max(round(piece.parameters) for piece in pieces(context)[: len(model.piece_kinds)])


def _offload(launch: Launch) -> dict[str, object]:
    """Tables that say where states and weights are."""
    share, state = launch.job.optimizer_on_cpu, launch.job.framework.state
    tables: dict[str, object] = {}
    if share:
        ratio = {"ratio": share} if share < 1.0 else {}
        tables["offload_optimizer"] = _device(state.states_home) | ratio
    if state.weights_home != "gpu":
        tables["offload_param"] = _device(state.weights_home)
    return tables


def _device(home: str) -> dict[str, object]:
    """Host memory, or the drive that the run's NVME names (train.py, `on_drive`)."""
    if home == "nvme":
        return {"device": "nvme", "nvme_path": NVME, "pin_memory": True}
    return {"device": "cpu", "pin_memory": True}


def _uses_drive(job: Job) -> bool:
    return "nvme" in (job.framework.state.states_home, job.framework.state.weights_home)


def _config_optimizer(launch: Launch) -> dict[str, object]:
    """An optimizer that DeepSpeed makes; its learning rate is the Trainer's argument."""
    optimizer = launch.job.optimizer
    values: dict[str, object] = {"lr": "auto", "weight_decay": _WEIGHT_DECAY}
    if optimizer.family == "sgd":
        values["momentum"] = 0.0 if dict(optimizer.states).get("momentum") == "none" else 0.9
    else:
        values["betas"] = list(_BETAS[optimizer.family])
    return {"type": _CONFIG_OPTIMIZERS[optimizer.family], "params": values}


def command(launch: Launch) -> RunCommand:
    """train.py with the Trainer's arguments."""
    every = f"--save_strategy steps --save_steps {save_steps(launch)} --output_dir ${{CHECKPOINTS}}"
    none = "--save_strategy no --output_dir outputs"
    return hf_command(
        launch, _arguments(launch), every.split(), none.split(), stop="stop_after_minutes"
    )


def _arguments(launch: Launch) -> dict[str, object]:
    degrees = launch.plan.degrees
    drive = {"nvme": f"${{{NVME}}}"} if _uses_drive(launch.job) else {}
    values: dict[str, object] = drive | {
        "deepspeed": CONFIG,
        "model_folder": MODEL_FOLDER,
        "seq_length": launch.plan.seq,
        "attn_implementation": attention(launch),
        "per_device_train_batch_size": degrees.mbs,
        "gradient_accumulation_steps": degrees.grad_acc,
        "max_steps": "${TRAIN_STEPS}",
        "logging_steps": "1",
        "report_to": "none",
        "max_grad_norm": "1.0",
        launch.job.precision: "true",
        "learning_rate": "${LEARNING_RATE}",
        "warmup_steps": "${WARMUP_STEPS}",
        "weight_decay": str(_WEIGHT_DECAY),
        **optimizer_arguments(launch),
    }
    if LIGER in launch.plan.techniques:
        values["use_liger_kernel"] = "true"
    if launch.recomputes_layers:
        values |= {
            "activation_checkpointing": "true",
            "activation_checkpointing_kwargs": json.dumps({"use_reentrant": False}),
        }
    values |= image_arguments(launch.job, launch.request)
    return values | tuning_arguments(launch.job)


def optimizer_arguments(launch: Launch) -> dict[str, str]:
    """The optimizer, as the Trainer's arguments say it."""
    optimizer, kernel = launch.job.optimizer, launch.job.optimizer_setting.kernel
    if optimizer.family in BITSANDBYTES:
        return {"optim": BITSANDBYTES[optimizer.family], "adam_beta2": "0.95"}
    betas = _BETAS.get(optimizer.family, _BETAS["adamw"])
    named = {"adam_beta1": str(betas[0]), "adam_beta2": str(betas[1])}
    if optimizer_kind(launch.job) == "deepspeed":
        return named
    return {"optim": "adamw_torch_fused" if kernel == "fused" else "adamw_torch"} | named


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence: JSON has no comments."""
    names = names_of(launch) | {"bucket": _reduce_bucket(launch.plan.degrees.zero)}
    yield from said_choices("hf", "deepspeed_choices", names)
    for one in launch.techniques:
        where = "" if one.flags.startswith("zero_optimization") else "train.py "
        yield ExplainedSetting(f"{where}{one.flags}", one.words)
    yield from said_choices("hf", "files", names)


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files are written for."""
    return said_needs("hf", "deepspeed_needs", launch)
