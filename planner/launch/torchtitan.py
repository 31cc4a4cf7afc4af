"""Writer for torchtitan 0.3: a Python module with a function that returns the configuration.

`python -m torchtitan.train --module planned_run --config planned` imports it from the folder that
it is started in.
"""

from __future__ import annotations

from collections.abc import Iterator

from hardware.files import shipped_toml
from planner.job.job import Job
from planner.launch.contract import Choice, Command, Files, Launch, Refusal, save_steps
from planner.launch.settings_text import (
    Section,
    Setting,
    comment,
    filled,
    python_arguments,
    python_value,
    section_choices,
)
from planner.launch.titan_model import (
    HIGH_PRECISION,
    model_refusals,
    model_text,
    registry_size,
)
from planner.launch.titan_plan import (
    BF16_STATES,
    DEMANDS,
    ENVIRONMENT,
    SAMPLES,
    VARIABLES,
    plan_refusals,
    recompute_kind,
    run_refusals,
    sample_files,
    sections,
)

VERSION = "0.3.0"
MODULE, FUNCTION = "planned_run", "planned"
_LOW = ("fp8", "mxfp8")


def refusals(launch: Launch) -> Iterator[Refusal]:
    """What torchtitan 0.3 cannot express of the plan."""
    yield from job_refusals(launch.job)
    yield from plan_refusals(launch)
    if recompute_kind(launch) == "every":
        yield Refusal(
            f"torchtitan 0.3 no longer checkpoints every k-th layer ({launch.plan.recompute})",
            "--recompute selective",
        )


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What torchtitan 0.3 cannot express of the job."""
    yield from model_refusals(job)
    yield from run_refusals(job)
    optimizer, kernel = job.optimizer, job.optimizer_setting.kernel
    half = dict(optimizer.states) == BF16_STATES
    plain = all(dtype == "fp32" for _, dtype in optimizer.states)
    if optimizer.family != "adamw" or not (half or plain):
        yield Refusal(
            f"torchtitan 0.3 trains with AdamW, its moments fp32 or both bf16; not "
            f"{optimizer.name}",
            "--optimizer adamw or adamw-bf16",
        )
    elif half and kernel != "fused":
        yield Refusal(
            f"torchtitan's bf16 moments need the fused kernel, not {kernel}",
            "--optimizer-kernel fused",
        )
    gpu = job.cluster.gpu
    if job.precision == "mxfp8" and gpu.vendor != "nvidia":
        yield Refusal(
            f"torchtitan 0.3 runs mxfp8 on NVIDIA Blackwell only, not on {gpu.name}",
            "--precision fp8",
        )


def files(launch: Launch) -> Files:
    """The module with the configuration."""
    return {f"{MODULE}.py": _module(launch), **sample_files()}


def command(launch: Launch) -> Command:  # noqa: ARG001 (the writers' contract)
    """torchtitan's trainer with the module."""
    return Command(
        argv=(
            *("-m", "torchtitan.train", "--module", MODULE, "--config", FUNCTION),
            *("--training.steps", "${TRAIN_STEPS}"),
        ),
        environment=ENVIRONMENT,
        variables=VARIABLES,
        demands=DEMANDS,
    )


def choices(launch: Launch) -> Iterator[Choice]:
    """The settings worth a sentence."""
    size = registry_size(launch)
    yield Choice(
        "model_spec()",
        f"torchtitan's own {size.module} {size.name}"
        if size
        else "written out: no size of torchtitan's registry is this model in every setting",
    )
    if launch.job.precision in _LOW:
        yield Choice(f"converters = {launch.job.precision}", _converter_reason(launch))
    yield from section_choices(sections(launch))


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages that the module is written for."""
    # fully_shard reads spmd_types, torchtitan's default backend, from torch 2.14 on.
    needs = [f"torchtitan=={VERSION}", "torch>=2.14"]
    return (*needs, "torchao>=0.14") if launch.job.precision in _LOW else tuple(needs)


def _recompute(launch: Launch) -> tuple[str, str]:
    """Expression and reason of activation_checkpoint."""
    kind = recompute_kind(launch)
    budget = launch.job.framework.recompute_mode(launch.plan.recompute).budget
    return {
        "none": ("None", "every activation is kept"),
        "selective": (
            "SelectiveAC.Config()",
            "keeps attention and every second product of a layer, recomputes the rest",
        ),
        "full": ("FullAC.Config()", "keeps each layer's input, recomputes the layer"),
        "budget": (
            f"MemoryBudgetAC.Config(memory_budget={budget})",
            "the compiler picks what to keep",
        ),
    }[kind]


# --- the file -------------------------------------------------------------------------------


def _module(launch: Launch) -> str:
    parts = {section.title: section for section in sections(launch)}
    recompute, recompute_why = _recompute(launch)
    loss = "MTPLoss" if launch.job.model.mtp_layers else "CrossEntropyLoss"
    tables = {
        name: python_arguments(parts[name].settings, 12)
        for name in ("parallelism", "training", "compile")
    }
    return filled(
        "titan_module.py.txt",
        version=VERSION,
        model=launch.job.model.name,
        gpus=launch.plan.degrees.gpus,
        gpu=launch.job.cluster.gpu.name,
        module=MODULE,
        function=FUNCTION,
        imports=_imports(launch),
        converters=_converters(launch),
        model_lines=model_text(launch),
        optimizer=python_assignments(parts["optimizer"]),
        recompute=[*comment(recompute_why, 8), f"        activation_checkpoint={recompute},"],
        loss=f"{loss}.Config(global_vocab_size={launch.job.model.vocab})",
        samples=SAMPLES,
        save_steps=save_steps(launch),
        **tables,
    )


def python_assignments(section: Section) -> list[str]:
    """Settings as attributes of an object that exists."""
    lines: list[str] = []
    for setting in section.settings:
        lines += comment(setting.why, 4) if setting.why else []
        lines.append(f"    {section.title}.{setting.key} = {python_value(setting.value)}")
    return lines


def _imports(launch: Launch) -> list[str]:
    """Import statements by module."""
    model, size = launch.job.model, registry_size(launch)
    statements = shipped_toml("planner.launch", "templates/titan_imports.toml")
    wanted = ["always", "predicting" if model.mtp_layers else "plain", recompute_kind(launch)]
    wanted += [] if size else ["latent" if model.mla else "grouped"]
    wanted += ["tied"] if size is None and model.tied_embeddings else []
    lines = [line for name in wanted for line in statements.get(name, ())]
    if size:
        lines.append(f"from torchtitan.models.{size.module} import model_registry")
    if quantisers := _quantisers(launch):
        names = ", ".join(name for name, _ in quantisers)
        lines.append(f"from torchtitan.components.quantization import {names}")
    first = ["import os", *([] if size else ["from functools import partial"]), ""]
    return [
        *first,
        *([] if size else ["import torch.nn as nn"]),
        *"\n".join(sorted(lines)).split("\n"),
    ]


def _quantisers(launch: Launch) -> list[tuple[str, tuple[Setting, ...]]]:
    """Converters of the precision with their arguments, the one for experts last."""
    compiled = Setting("model_compile_enabled", True)
    names: list[tuple[str, tuple[Setting, ...]]] = []
    if launch.job.precision == "fp8":
        recipe = Setting("recipe_name", "rowwise"), Setting("filter_fqns", HIGH_PRECISION)
        names = [
            ("Float8LinearConverter", (*recipe, compiled)),
            ("Float8GroupedExpertsConverter", (compiled,)),
        ]
    if launch.job.precision == "mxfp8":
        which = Setting("fqns", ["attention", "feed_forward", "shared_experts"])
        names = [
            ("MXFP8LinearConverter", (which, compiled)),
            ("MXFP8GroupedExpertsConverter", (Setting("pad_multiple", 128), compiled)),
        ]
    return names if launch.job.model.moe else names[:1]


def _converter_reason(launch: Launch) -> str:
    what = "products and those of the experts" if launch.job.model.moe else "products"
    return f"{what} in {launch.job.precision}; output projection and router stay in bf16"


def _converters(launch: Launch) -> list[str]:
    quantisers = _quantisers(launch)
    if not quantisers:
        return ["", "# Products in bf16.", "CONVERTERS = []"]
    lines = ["", *comment(_converter_reason(launch)), "CONVERTERS = ["]
    for name, arguments in quantisers:
        lines += [f"    {name}.Config(", *python_arguments(arguments, 8), "    ),"]
    return [*lines, "]"]
