"""Writer for MaxText 0.2.5: a YAML over its base.yml, and the command that trains with it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.launch.architecture import refusals as architecture_refusals
from planner.launch.architecture import settings
from planner.launch.contract import (
    FOLDER,
    PRETRAINED,
    RUN,
    TRAIN_STEPS,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
    folder_variable,
    length_refusals,
    pretrained_variable,
    rate_variable,
)
from planner.launch.dialects.maxtext.batch import batch_of, micro_batch, tiles
from planner.launch.dialects.maxtext.mesh import AXES, key, sizes_of, spread
from planner.launch.dialects.maxtext.schema import RELEASE
from planner.launch.dialects.maxtext.table import MAXTEXT, block_of, model_name
from planner.launch.launchers import start_script
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.options import run_options
from planner.launch.settings_text import (
    SettingsSection,
    WrittenSetting,
    filled,
    section_choices,
    yaml_text,
)
from planner.launch.time_limit import save_steps

CONFIG = "maxtext.yml"
MODULE = "maxtext.trainers.pre_train.train"
OPTIONS = run_options("maxtext")["run"]
# Bounds of the share of a GPU's memory that JAX takes before the first step; its default is 0.75.
_LEAST_FRACTION, _MOST_FRACTION = 0.75, 0.95
_OTHERS = "--framework megatron-core or torchtitan"
VARIABLES = (
    pretrained_variable("parameters of a MaxText checkpoint (README.md says how to make one)"),
    Variable(
        "DATASET",
        "",
        "tokens or texts as Grain reads them (ArrayRecord files, a pattern); empty: made up",
    ),
    Variable("TOKENIZER", "", "folder or name of their Hugging Face tokenizer; empty: MaxText's"),
    folder_variable("DATASET"),
    TRAIN_STEPS,
    rate_variable("3e-4"),
)


# --- what it cannot express -----------------------------------------------------------------------


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What MaxText, or this writer for it, cannot express of the job."""
    blocks = f"the writer for MaxText ({block_of(job.model)} blocks)"
    yield from architecture_refusals(MAXTEXT, job.model, blocks, _OTHERS)
    optimizer = job.optimizer
    if optimizer.family != "adamw" or any(dtype != "fp32" for _, dtype in optimizer.states):
        yield Refusal(
            f"MaxText trains here with AdamW and fp32 moments, not with {optimizer.name}",
            "--optimizer adamw",
        )
    if job.dropout:
        yield Refusal("the writer for MaxText writes no dropout", "no --dropout")
    yield from length_refusals(job)
    if job.ramp:
        yield Refusal(
            "MaxText ramps its batch by samples a GPU, not as asked",
            "--framework megatron-core, or no --batch-ramp",
        )


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """What MaxText cannot express of the plan, its job apart."""
    yield from _mesh_refusals(launch)
    yield from _pipeline_refusals(launch)
    yield from _width_refusals(launch)
    degrees = launch.plan.degrees
    if launch.plan.recompute == "none":
        yield Refusal(
            "nobody has measured what XLA keeps of a layer without a remat_policy, and MaxText's "
            "own configurations for GPUs all have one",
            "--recompute minimal_with_context",
        )
    if launch.job.model.moe is not None and degrees.etp != degrees.tp:
        yield Refusal(
            f"MaxText splits experts over the tensor axis as all layers: etp is tp {degrees.tp}, "
            f"not {degrees.etp}",
            f"etp {degrees.tp}",
        )
    batch = batch_of(degrees)
    if micro_batch(batch.per_gpu, degrees.gpus, degrees.dp, batch.microbatches) != degrees.mbs:
        yield Refusal(
            f"per_device_batch_size {batch.per_gpu} is no number whose product with "
            f"{degrees.gpus} GPUs MaxText rounds to {degrees.mbs * degrees.dp} sequences",
            "degrees that are powers of two",
        )


def _mesh_refusals(launch: Launch) -> Iterator[Refusal]:
    degrees = launch.plan.degrees
    sizes = sizes_of(degrees)
    if sizes is None:
        yield Refusal(
            f"MaxText takes expert and context ranks out of one group that shards the weights: "
            f"not ep {degrees.ep} and cp {degrees.cp} with zero {degrees.zero}, dp {degrees.dp} "
            f"and shard {degrees.shard or degrees.dp * degrees.cp}",
            "zero 3, ep a divisor of dp, shard a multiple of ep·cp",
        )
    elif spread(sizes, launch.gpus_per_node) is None:
        words = ", ".join(f"{axis} {sizes[axis]}" for axis in AXES if sizes[axis] > 1)
        yield Refusal(
            f"the axes of MaxText's mesh ({words}) do not fill nodes of {launch.gpus_per_node} "
            "GPUs one after the other",
            "degrees that divide a node",
        )


def _pipeline_refusals(launch: Launch) -> Iterator[Refusal]:
    degrees = launch.plan.degrees
    if degrees.pp == 1:
        return
    if launch.job.model.mla is not None:
        yield Refusal(
            "MaxText pipelines the layers with experts alone, and the dense ones before them stand "
            "outside: not modelled",
            "pp 1",
        )
    if degrees.grad_acc % degrees.pp:
        yield Refusal(
            f"num_pipeline_microbatches must be a multiple of the stages: {degrees.grad_acc} is "
            f"none of {degrees.pp}",
            f"grad_acc {-(-degrees.grad_acc // degrees.pp) * degrees.pp}",
        )


def _width_refusals(launch: Launch) -> Iterator[Refusal]:
    """XLA shards widths that divide alone."""
    degrees, hidden = launch.plan.degrees, launch.job.model.hidden
    sizes = sizes_of(degrees)
    if sizes is None:
        return
    shards = sizes["fsdp"] * sizes["context"] * sizes["expert"]
    for what, ranks in (("fsdp·context·expert", shards), ("tensor", degrees.tp)):
        if hidden % ranks:
            yield Refusal(
                f"the hidden width {hidden} does not divide over {what} = {ranks}, and XLA shards "
                "no other",
                "a smaller shard group (HSDP), or powers of two",
            )


# --- the files ------------------------------------------------------------------------------------


def files(launch: Launch) -> Files:
    """The YAML file, and the check of the machine."""
    text = filled(
        "maxtext/maxtext.yaml.txt",
        release=RELEASE,
        model=launch.job.model.name,
        gpus=launch.plan.degrees.gpus,
        sections=yaml_text(sections(launch)).rstrip("\n"),
    )
    return {CONFIG: text, PREFLIGHT: _preflight(launch)}


def _preflight(launch: Launch) -> str:
    """The check of the machine by JAX, which is what MaxText runs on."""
    gpu = launch.job.cluster.gpu.name
    return filled(
        "maxtext/preflight.py.txt",
        script=start_script(launch),
        nodes=launch.nodes,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", gpu)[0],
        memory=round(launch.plan.peak_bytes / 2**30, 1),
    )


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """All that the plan decides, in one table."""
    return (
        SettingsSection("", tuple(_mesh(launch))),
        SettingsSection("", tuple(_batch(launch))),
        SettingsSection("", tuple(_memory(launch))),
        SettingsSection("", tuple(_model(launch))),
    )


# What each axis does, in words.
_MEANINGS = {
    "tensor": "weights of every layer in {size} parts (tensor parallelism)",
    "context": "sequences in {size} parts (context parallelism), which also shard the weights",
    "expert": "experts over {size} groups of GPUs, which also shard the other weights",
    "fsdp": "weights, gradients and optimizer state in {size} parts (FSDP, ZeRO-3)",
    "data": "{size} replicas",
    "pipeline": "layers in {size} stages",
}


def _mesh(launch: Launch) -> Iterator[WrittenSetting]:
    sizes = sizes_of(launch.plan.degrees)
    placed = spread(sizes, launch.gpus_per_node) if sizes else None
    if sizes is None or placed is None:
        raise ValueError("a plan that plan_refusals refuses")
    for axis in AXES:
        size, (inside, between) = sizes[axis], placed[axis]
        why = _MEANINGS[axis].format(size=size) if size > 1 else ""
        yield WrittenSetting(key("ici", axis), inside, why)
        yield WrittenSetting(key("dcn", axis), between)
    if launch.plan.degrees.zero == 1:
        why = "optimizer state divided over the replicas (ZeRO-1)"
        yield WrittenSetting(OPTIONS["optimizer-over-data"].key, True, why)
    if launch.plan.degrees.cp > 1:
        yield WrittenSetting(
            OPTIONS["cp_comm_type"].key, OPTIONS["cp_comm_type"].text(launch.plan.cp_comm_type)
        )


def _batch(launch: Launch) -> Iterator[WrittenSetting]:
    degrees = launch.plan.degrees
    batch = batch_of(degrees)
    per_gpu: Any = int(batch.per_gpu) if batch.per_gpu.is_integer() else batch.per_gpu
    yield WrittenSetting(OPTIONS["seq"].key, launch.plan.seq)
    yield WrittenSetting(
        OPTIONS["per-gpu"].key,
        per_gpu,
        f"global batch {degrees.gbs} = {degrees.mbs} · {degrees.grad_acc} · dp {degrees.dp}, of "
        f"which each of {degrees.gpus} GPUs counts for one part a pass",
    )
    yield WrittenSetting(OPTIONS["grad_acc"].key, batch.accumulated)
    if degrees.pp > 1:
        yield from _pipeline(launch)


def _pipeline(launch: Launch) -> Iterator[WrittenSetting]:
    degrees, layers = launch.plan.degrees, launch.job.model.layers
    yield WrittenSetting(
        OPTIONS["microbatches"].key, degrees.grad_acc, "all forward passes, then all backward ones"
    )
    yield WrittenSetting(OPTIONS["stage-layers"].key, layers // degrees.pp)
    if (pieces := tiles(degrees.grad_acc, degrees.pp)) > 1:
        why = "logits of one micro-batch at a time: a pipeline makes those of all at once"
        yield WrittenSetting(OPTIONS["vocab-tiles"].key, pieces, why)


def _memory(launch: Launch) -> Iterator[WrittenSetting]:
    job = launch.job
    yield WrittenSetting(OPTIONS["recompute"].key, launch.plan.recompute, launch.recompute_reason)
    # MaxText advises so for pipelines, whose scan is over iterations.
    yield WrittenSetting("scan_layers", launch.plan.degrees.pp == 1)
    yield WrittenSetting("dtype", "bfloat16")
    yield WrittenSetting("weight_dtype", "float32", "fp32 weights, cast for each product")
    yield WrittenSetting("grad_dtype", "float32")
    yield WrittenSetting("opt_type", "adamw")
    if job.precision != "bf16":
        said = OPTIONS["precision"].text(job.precision)
        yield WrittenSetting(OPTIONS["precision"].key, said, f"products in {job.precision}")
    yield WrittenSetting(OPTIONS["attention"].key, OPTIONS["attention"].text(job.attention))
    if job.model.moe is not None:
        why = "products of experts grouped by XLA (ragged_dot): megablox is a TPU's kernel"
        yield WrittenSetting("sparse_matmul", True)
        yield WrittenSetting("megablox", False, why)


def _model(launch: Launch) -> Iterator[WrittenSetting]:
    yield WrittenSetting("model_name", model_name(launch.job.model))
    for name, value in settings(MAXTEXT, launch.job.model).items():
        yield WrittenSetting(name, value)
    yield WrittenSetting("dropout_rate", 0.0)
    yield WrittenSetting("enable_dropout", False)


def command(launch: Launch) -> RunCommand:
    """MaxText's trainer with the file, one process a node."""
    return RunCommand(
        argv=(
            "-m", MODULE, CONFIG,
            f"steps=${{{TRAIN_STEPS.name}}}",
            "learning_rate=${LEARNING_RATE}",
        ),
        launcher="python",
        node_variables={
            "nodes": "NNODES", "rank": "NODE_RANK", "address": "JAX_COORDINATOR_IP",
            "port": "JAX_COORDINATOR_PORT",
        },
        environment={
            "XLA_PYTHON_CLIENT_MEM_FRACTION": (
                memory_fraction(launch),
                "of a GPU's memory: JAX takes 75 % unless told; CUDA and NCCL have the rest",
            ),
            "XLA_FLAGS": (
                " ".join(_XLA_FLAGS), "collectives beside compute; rematerialization is ours"
            ),
            **(_CUDNN if launch.job.cluster.gpu.vendor == "nvidia" else {}),
        },
        variables=VARIABLES,
        branches=(
            Branch(RUN, (f"run_name=${{{RUN}}}",)),
            Branch("DATASET", ("dataset_type=grain", "grain_train_files=${DATASET}"),
                   ("dataset_type=synthetic",)),
            Branch("TOKENIZER", ("tokenizer_type=huggingface", "tokenizer_path=${TOKENIZER}")),
            Branch(FOLDER,
                   ("enable_checkpointing=true", f"base_output_directory=${{{FOLDER}}}",
                    f"checkpoint_period={save_steps(launch)}"),
                   ("enable_checkpointing=false", "base_output_directory=output")),
            Branch(PRETRAINED, (f"load_parameters_path=${{{PRETRAINED}}}",)),
        ),
    )  # fmt: skip


# On AMD's GPUs the same attention is Composable Kernel's, and on unless switched off.
_CUDNN = {"NVTE_FUSED_ATTN": ("1", "attention by cuDNN, through Transformer Engine")}


def memory_fraction(launch: Launch) -> str:
    """All but one and a half times what the plan expects outside of JAX's arrays."""
    plan = launch.plan
    outside = max(one.peak - one.allocated - one.fragmentation for one in plan.stages)
    share = 1.0 - 1.5 * outside / plan.usable_bytes
    return f"{min(_MOST_FRACTION, max(_LEAST_FRACTION, math.floor(100 * share) / 100)):.2f}"


# As MaxText's and JAX-Toolbox's launch scripts for GPUs have them (maxtext/configs/gpu/a3, 0.2.5;
# NVIDIA/JAX-Toolbox docs/frameworks/maxtext, 2025-12).
_XLA_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_all_reduce_combine_threshold_bytes=1073741824",
    "--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=134217728",
    "--xla_gpu_enable_pipelined_all_gather=true",
    "--xla_gpu_enable_pipelined_reduce_scatter=true",
    "--xla_gpu_enable_pipelined_all_reduce=true",
    "--xla_gpu_enable_while_loop_double_buffering=true",
    "--xla_gpu_enable_all_gather_combine_by_dim=false",
    "--xla_gpu_enable_reduce_scatter_combine_by_dim=false",
    "--xla_disable_hlo_passes=rematerialization",
)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings worth a sentence."""
    for choice in section_choices(sections(launch)):
        yield replace(choice, setting=choice.setting.removeprefix("."))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the file is written for."""
    nvidia = launch.job.cluster.gpu.vendor == "nvidia"
    engine = " and transformer-engine[jax] 2.19" if launch.job.attention == "flash" else ""
    if nvidia:
        return (f"maxtext[cuda12]==0.2.5 (Python 3.12), which brings jax 0.11{engine}",)
    return ("maxtext==0.2.5 (Python 3.12)", "jax[rocm]>=0.11 and ROCm/TransformerEngine")
