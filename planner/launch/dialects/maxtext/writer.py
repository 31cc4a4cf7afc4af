"""Writer for MaxText 0.2.5: a YAML on top of its base.yml, and the command that trains with it.

`launch.toml` has its refusals, requirements and settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.launch import sentences, settings_text
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
    length_refusals,
)
from planner.launch.dialects.maxtext import mesh
from planner.launch.dialects.maxtext.settings import RELEASE
from planner.launch.dialects.maxtext.table import MAXTEXT, block_of, model_name
from planner.launch.launchers import start_script
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.options import run_options
from planner.launch.read.found import Found
from planner.launch.registry import dialect_toml
from planner.launch.time_limit import save_steps
from planner.predict.evaluate import Proposal
from planner.predict.plan import Plan

CONFIG = "maxtext.yml"
MODULE = "maxtext.trainers.pre_train.train"
OPTIONS = run_options("maxtext")["run"]
# Bounds of the share of GPU memory that JAX takes before the first step; its default is 0.75.
_LEAST_FRACTION, _MOST_FRACTION = 0.75, 0.95
_OTHERS = "--framework megatron-core or torchtitan"


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Parts of the job that MaxText, or this writer, cannot express."""
    blocks, names = (
        f"the writer for MaxText ({block_of(job.model)} blocks)",
        sentences.names_of_job(job),
    )
    yield from architecture_refusals(MAXTEXT, job.model, blocks, _OTHERS)
    yield from sentences.said_refusals("maxtext", "optimizer_refusals", names)
    yield from length_refusals(job)
    yield from sentences.said_refusals("maxtext", "ramp_refusals", names)


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """Parts of the plan, except its job, that MaxText cannot express."""
    yield from sentences.said_refusals("maxtext", "plan_refusals", _names(launch))


def _names(launch: Launch) -> Mapping[str, object]:
    """Names that rows of `launch.toml` may use."""
    degrees = launch.plan.degrees
    batch, sizes = mesh.batch_of(degrees), mesh.sizes_of(degrees)
    known = sizes or dict.fromkeys(mesh.AXES, 1)
    return sentences.names_of(launch) | {
        "sizes": sizes,
        "placed": mesh.spread(sizes, launch.gpus_per_node) if sizes else None,
        "axes": [f"{axis} {known[axis]}" for axis in mesh.AXES if known[axis] > 1],
        "shards": known["fsdp"] * known["context"] * known["expert"],
        "batch": batch,
        "rounded": mesh.micro_batch(batch.per_gpu, degrees.gpus, degrees.dp, batch.microbatches),
        "per_gpu": int(batch.per_gpu) if batch.per_gpu.is_integer() else batch.per_gpu,
        "pieces": mesh.tiles(degrees.grad_acc, degrees.pp),
    }


def files(launch: Launch) -> Files:
    """The YAML file, and a check of the machine that uses JAX, as MaxText does."""
    text = settings_text.filled(
        "maxtext/maxtext.yaml.txt",
        release=RELEASE,
        model=launch.job.model.name,
        gpus=launch.plan.degrees.gpus,
        sections=settings_text.yaml_text(sections(launch)).rstrip("\n"),
    )
    preflight = settings_text.filled(
        "maxtext/preflight.py.txt",
        script=start_script(launch),
        nodes=launch.nodes,
        local=launch.gpus_per_node,
        gpu=re.split(r"[-_ ]", launch.job.cluster.gpu.name)[0],
        memory=round(launch.plan.peak_bytes / 2**30, 1),
    )
    return {CONFIG: text, PREFLIGHT: preflight}


def sections(launch: Launch) -> tuple[settings_text.SettingsSection, ...]:
    """All settings that the plan decides, in one table."""
    names = _names(launch)
    run = sentences.said_settings("maxtext", "settings", names, OPTIONS).settings
    return (settings_text.SettingsSection("", (*_mesh(launch), *run, *_model(launch))),)


def _mesh(launch: Launch) -> Iterator[settings_text.WrittenSetting]:
    sizes = mesh.sizes_of(launch.plan.degrees)
    placed = mesh.spread(sizes, launch.gpus_per_node) if sizes else None
    if sizes is None or placed is None:
        raise ValueError("a plan that plan_refusals refuses")
    meanings = dialect_toml("maxtext", "launch.toml")["axes"]
    for axis, (inside, between) in placed.items():
        why = meanings[axis].format(size=sizes[axis]) if sizes[axis] > 1 else ""
        yield settings_text.WrittenSetting(mesh.key("ici", axis), inside, why)
        yield settings_text.WrittenSetting(mesh.key("dcn", axis), between)


def _model(launch: Launch) -> Iterator[settings_text.WrittenSetting]:
    yield settings_text.WrittenSetting("model_name", model_name(launch.job.model))
    for name, value in settings(MAXTEXT, launch.job.model).items():
        yield settings_text.WrittenSetting(name, value)
    yield settings_text.WrittenSetting("dropout_rate", 0.0)
    yield settings_text.WrittenSetting("enable_dropout", False)


def command(launch: Launch) -> RunCommand:
    """MaxText's trainer with the file, one process per node."""
    environment = sentences.said_environment(
        "maxtext", "environment", launch, fraction=memory_fraction(launch.plan)
    )
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
        environment=environment,
        variables=sentences.said_variables("maxtext", launch),
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


def memory_fraction(plan: Plan) -> float:
    """The share of GPU memory to give to JAX's arrays: 1 minus 1.5 times the share that the plan
    needs outside the allocator, rounded down to 0.01 and kept between 0.75 and 0.95."""
    outside = max(one.peak - one.allocated - one.fragmentation for one in plan.stages)
    share = 1.0 - 1.5 * outside / plan.usable_bytes
    return min(_MOST_FRACTION, max(_LEAST_FRACTION, math.floor(100 * share) / 100))


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings that deserve an explanation."""
    for choice in settings_text.section_choices(sections(launch)):
        yield replace(choice, setting=choice.setting.removeprefix("."))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages and versions that the file is written for."""
    return sentences.said_needs("maxtext", "needs", launch)


def says(found: Found, proposal: Proposal) -> dict[str, Any]:  # noqa: ARG001 (the registry's function)
    """The settings of a configuration as MaxText's file states them, for `--fix`: mesh axes, batch
    per GPU, and rematerialisation policy."""
    degrees, cluster = proposal.degrees, proposal.request.find_cluster()
    batch = mesh.batch_of(degrees)
    said: dict[str, Any] = {
        "recompute": proposal.recompute,
        "per-gpu": f"{batch.per_gpu:g}",
        "grad_acc": batch.accumulated,
        "optimizer-over-data": str(degrees.zero == 1).lower(),
    }
    sizes = mesh.sizes_of(degrees)
    placed = mesh.spread(sizes, min(cluster.gpus_per_node, degrees.gpus)) if sizes else None
    for axis, (inside, between) in (placed or {}).items():
        said |= {f"ici-{axis}": inside, f"dcn-{axis}": between}
    if degrees.pp > 1:
        layers = proposal.request.find_model().spec.layers
        said |= {"microbatches": batch.microbatches, "stage-layers": layers // degrees.pp}
        said["vocab-tiles"] = mesh.tiles(batch.microbatches, degrees.pp)
    return said
