"""Writer for accelerate 1.15 with FSDP2: accelerate.yaml and a training script on transformers."""

from __future__ import annotations

from collections.abc import Iterator
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
from planner.launch.dialects.hf.files import (
    FILES,
    LIGER,
    MODEL_FOLDER,
    attention,
    hf_command,
    hf_config,
    hf_job_refusals,
    hf_program,
    hf_refusals,
    layer_class,
)
from planner.launch.options import ACCELERATE, last
from planner.launch.settings_text import (
    SettingsSection,
    WrittenSetting,
    filled,
    section_choices,
    yaml_text,
)
from planner.launch.time_limit import save_steps

CONFIG = "accelerate.yaml"
_TORCHAO = {"adamw-8bit": "adamw_torch_8bit", "adamw-4bit": "adamw_torch_4bit"}
_MOMENTUM = 0.9


plan_refusals = hf_refusals


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What accelerate with FSDP2 cannot express of the job."""
    yield from hf_job_refusals(job)
    optimizer, kernel = job.optimizer, job.optimizer_setting.kernel
    plain = all(dtype in ("fp32", "none") for _, dtype in optimizer.states)
    if optimizer.family not in ("adamw", "sgd", *_TORCHAO) or not (
        plain or optimizer.family in _TORCHAO
    ):
        yield Refusal(
            f"neither torch.optim nor torchao has {optimizer.name} for FSDP2's sharded parameters",
            "--optimizer adamw, adamw-8bit, adamw-4bit or sgd",
        )
    elif optimizer.family in _TORCHAO and job.optimizer_offload:
        yield Refusal(
            f"torchao's {optimizer.name} has no CPU kernel for FSDP2's offload", "--optimizer adamw"
        )
    elif optimizer.family in _TORCHAO and kernel != "fused":
        yield Refusal(f"{optimizer.name} has one kernel", "--optimizer-kernel fused")


def files(launch: Launch) -> Files:
    """accelerate.yaml, train.py and the model's config.json."""
    model, degrees = launch.job.model, launch.plan.degrees
    text = filled(
        f"hf/{CONFIG}.txt",
        model=model.name,
        gpus=degrees.gpus,
        nodes=launch.nodes,
        dp=degrees.dp,
        sections=yaml_text(sections(launch)).rstrip("\n"),
    )
    title = f"{model.name} with accelerate and FSDP2."
    return {CONFIG: text, **hf_program(model, "hf/accelerate.py.txt", title)}


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """The file's parts that the plan decides."""
    return (
        SettingsSection("fsdp_config", tuple(_fsdp(launch))),
        SettingsSection("parallelism_config", tuple(_mesh(launch))),
    )


def _fsdp(launch: Launch) -> Iterator[WrittenSetting]:
    degrees = launch.plan.degrees
    yield WrittenSetting("fsdp_version", 2)
    frees = degrees.zero == 3
    yield WrittenSetting(last(ACCELERATE["zero"]), frees, RESHARDING[3 if frees else 2])
    yield WrittenSetting("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit a layer")
    layer = layer_class(hf_config(launch.job.model) or {})
    yield WrittenSetting("fsdp_transformer_layer_cls_to_wrap", layer)
    yield WrittenSetting("fsdp_state_dict_type", "SHARDED_STATE_DICT")
    offload = launch.job.optimizer_offload > 0
    yield WrittenSetting("fsdp_offload_params", offload, OFFLOADED if offload else "")
    yield WrittenSetting(
        "fsdp_cpu_ram_efficient_loading", True, "rank 0 makes the weights and hands out shards"
    )
    recompute = last(ACCELERATE["recompute"])
    yield WrittenSetting(recompute, launch.recomputes_layers, launch.recompute_reason)


def _mesh(launch: Launch) -> Iterator[WrittenSetting]:
    degrees = launch.plan.degrees
    shard = degrees.shard or degrees.dp
    replicas = degrees.dp // shard
    yield WrittenSetting(
        "parallelism_config_dp_replicate_size",
        replicas,
        f"HSDP: {replicas} replicas of a group that shards" if replicas > 1 else "",
    )
    yield WrittenSetting("parallelism_config_dp_shard_size", shard, "ranks that share a parameter")
    yield WrittenSetting("parallelism_config_tp_size", 1)
    yield WrittenSetting("parallelism_config_cp_size", 1)


def command(launch: Launch) -> RunCommand:
    """train.py under accelerate launch, with what accelerate.yaml has no keys for."""
    saving = ("--checkpoints", "${CHECKPOINTS}", "--save-steps", str(save_steps(launch)))
    starts: dict[str, Any] = {
        "launcher": "accelerate",
        "launcher_arguments": ("--config_file", CONFIG),
    }
    return hf_command(launch, _arguments(launch), saving, **starts)


def _arguments(launch: Launch) -> dict[str, object]:
    degrees, family = launch.plan.degrees, launch.job.optimizer.family
    values: dict[str, object] = {
        "model-folder": MODEL_FOLDER,
        "seq-length": launch.plan.seq,
        "micro-batch-size": degrees.mbs,
        "gradient-accumulation-steps": degrees.grad_acc,
        "attn-implementation": attention(launch),
        "optim": {"sgd": "sgd", **_TORCHAO}.get(family, "adamw_torch"),
        "steps": "${TRAIN_STEPS}",
        "learning-rate": "${LEARNING_RATE}",
        "warmup-steps": "${WARMUP_STEPS}",
    }
    # torchao's optimizers have one way to update the parameters.
    if family not in _TORCHAO:
        values["optimizer-kernel"] = launch.job.optimizer_setting.kernel
    if family == "sgd":
        plain = dict(launch.job.optimizer.states).get("momentum") == "none"
        values["sgd-momentum"] = 0.0 if plain else _MOMENTUM
    if LIGER in launch.plan.techniques:
        values["use-liger-kernel"] = "true"
    return values


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence."""
    degrees = launch.plan.degrees
    yield from section_choices(sections(launch))
    yield ExplainedSetting(
        f"train.py --micro-batch-size {degrees.mbs} --gradient-accumulation-steps "
        f"{degrees.grad_acc}",
        f"global batch {degrees.gbs} = {degrees.mbs} · {degrees.grad_acc} · dp {degrees.dp}; "
        "gradients are reduced after every micro-batch, or FSDP2 would keep them whole",
    )
    yield ExplainedSetting(
        "train.py: mixed_precision_policy",
        "bf16 compute with fp32 gradient reduction, as the prediction counts",
    )
    for technique in launch.techniques:
        yield ExplainedSetting("train.py --use-liger-kernel true", technique.words)
    yield from FILES


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the files are written for."""
    needs = ["accelerate==1.15.0", "transformers==5.23.0", "torch>=2.10", "datasets, for --dataset"]
    if launch.job.optimizer.family in _TORCHAO:
        needs.append("torchao>=0.14")
    return (*needs, *launch.technique_needs)
