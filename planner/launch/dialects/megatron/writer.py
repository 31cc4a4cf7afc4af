"""Writer for Megatron-LM's `pretrain_gpt.py` (megatron-core 0.19).

All settings are flags, so there is no configuration file: the launcher script contains them in
groups, each with a comment. Faults that Megatron-LM would notice only at run time, or never, are
refused beforehand, with the place in megatron-core 0.19 where a run would fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch import contract, sentences
from planner.launch.architecture import refusals, settings
from planner.launch.contract import Branch, ExplainedSetting, Files, Launch, Refusal, RunCommand
from planner.launch.dialects.megatron.flags import (
    Flag,
    FlagGroup,
    as_argv,
    flag,
    from_text,
    layout_flags,
    layout_text,
    schedule_text,
)
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_PRECISIONS
from planner.launch.dialects.megatron.table import (
    GROUPS,
    activation_of,
    hybrid_flags,
    is_hybrid,
    linear_bias,
    rotates_plainly,
)
from planner.launch.dialects.megatron.table import MEGATRON as ROWS
from planner.launch.quoting import Value, yaml_value
from planner.launch.registry import dialect_toml
from planner.launch.time_limit import save_steps, stop_variable
from planner.predict.plan_text import fraction_text
from planner.predict.sharp import sharp_use

_OTHERS = "--framework accelerate, which trains Hugging Face's own model"


def model_refusals(model: ModelSpec, seq: int, *, bridge: bool = False) -> Iterator[Refusal]:
    """Refusals of models that Megatron's GPT model cannot express. `bridge`: whether overrides, not
    flags, describe the model."""
    names = {"model": model, "seq": seq, "hybrid": is_hybrid(model)}
    yield from refusals(ROWS, model, "Megatron's GPT model", _OTHERS)
    yield from sentences.said_refusals("megatron", "length_refusals", names)
    if bridge:
        yield from sentences.said_refusals("megatron", "bridge_model_refusals", names)
    # Features that only Megatron-Bridge's fields can express.
    for row in ROWS if not bridge else ():
        if row.when(model) and (phrase := row.no_flag(model)):
            text = f"Megatron-LM's flags cannot express {model.name}: {phrase}"
            yield Refusal(text, "--framework megatron-bridge")


def model_groups(model: ModelSpec, seq: int, *, dropout: bool, low: bool) -> tuple[FlagGroup, ...]:
    """The model's flags in titled groups. Only for models without refusals.

    `low`: whether products are in 8 or 4 bits.
    """
    bias = linear_bias(model)
    names = {"model": model, "seq": seq, "dropout": dropout, "low": low, "linear_bias": bias}
    return tuple(_group(name, names) for name, group in _GROUPS.items() if "table" in group)


_GROUPS: Mapping[str, Any] = dialect_toml("megatron", "groups.toml")["flags"]


def _group(name: str, names: Mapping[str, Any]) -> FlagGroup:
    """A group of `groups.toml`, filled in."""
    group = _GROUPS[name]
    of_model = settings(dict(GROUPS)[group["table"]], names["model"]) if "table" in group else {}
    flags = (Flag(key) if value is True else flag(key, value) for key, value in of_model.items())
    return FlagGroup(
        sentences.filled_in(group["title"], names), (*flags, *flags_of_rows(name, names))
    )


def flags_of_rows(name: str, names: Mapping[str, Any], *, bridge: bool = False) -> Iterator[Flag]:
    """The flags of the rows of a group whose condition holds. `bridge`: leave out those that
    Megatron-Bridge has no field for (`core_only`)."""
    for row in _GROUPS[name].get("rows", ()):
        if sentences.holds(row.get("when"), names) and not (bridge and "core_only" in row):
            yield from _flags_of(row, names)


def _flags_of(row: Mapping[str, str], names: Mapping[str, Any]) -> Sequence[Flag]:
    if "flags" in row:
        given = sentences.evaluated(row["flags"], names)
        return from_text(given) if isinstance(given, str) else given
    option = MEGATRON.get(row["flag"])
    key = option.key if option else row["flag"]
    value = sentences.evaluated(row["value"], names) if "value" in row else ()
    values = value if isinstance(value, tuple) else (option.text(value) if option else value,)
    return (flag(key, *values),)


def model_overrides(model: ModelSpec, title: str) -> dict[str, str]:
    """All Megatron-Bridge fields in a group of the table, with their values."""
    rows = dict(GROUPS)[title]
    return {
        f"model.{row.field}": _override(row.override(model))
        for row in rows
        if row.field and row.when(model)
    }


def _override(value: Value) -> str:
    """A value in Hydra's syntax: lists without blanks."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(str(item) for item in value) + "]"
    return yaml_value(value)


_SIXTEEN_BITS = 2.0
# The tokenizer's conversation template (core/tokenizers/text/libraries/sft_tokenizer.py).
_CHAT_TEMPLATE = ("--sft-tokenizer-prompt-format", "default")


def is_fsdp(launch: Launch) -> bool:
    """Whether parameters or gradients are sharded, so that Megatron-FSDP replaces DDP."""
    return launch.plan.degrees.zero in (2, 3)


def names_in(launch: Launch) -> dict[str, Any]:
    """Names that rows of `groups.toml` and `launch.toml` may use."""
    plan, job = launch.plan, launch.job
    model, layout = job.model, plan.layout
    blocks = layout_text(layout.block_layers, model.mtp_layers, layout.mtp_standalone)
    layers = layout_flags(layout, model.mtp_layers)
    return sentences.names_of(launch) | {
        "activation": activation_of(model),
        "bf16_gradients": reduces_in_bf16(launch),
        "chunks": f" in {plan.degrees.vpp} chunks each" if plan.degrees.vpp > 1 else "",
        "dropout": job.dropout,
        "exchange": plan.cp_comm_type or "p2p",
        "first": next(iter(plan.ramp), None),
        "fsdp": is_fsdp(launch),
        "layout": hybrid_flags(model, layout) if is_hybrid(model) else layers,
        "linear_bias": linear_bias(model),
        "local": job.framework.name == "megatron-local",
        "low": job.precision in ("fp8", "mxfp8", "nvfp4"),
        "momentum": dict(job.optimizer.states).get("momentum"),
        "offloaded": fraction_text(plan.activation_offload, plan.activation_offload_fraction),
        "precision_flags": MEGATRON_PRECISIONS[job.precision],
        "packs": trains_packs(job),
        "quoted_layout": f'"{blocks}"',
        "rotates_plainly": rotates_plainly(model),
        "schedule": schedule_text(plan),
        "seq": plan.seq,
        "sharp_group": sharp_group(launch),
    }


def trains_packs(job: Job) -> bool:
    """Whether rows are packs of samples that each attend only to themselves (--sft)."""
    return job.samples.lengths is not None and job.samples.packing == "pack-varlen"


def sharp_group(launch: Launch) -> str:
    """The communicator that switches reduce for, by Megatron's name; empty if switches reduce
    nothing."""
    use = sharp_use(launch.job, launch.plan.degrees)
    return use.group if use and not use.reason else ""


def reduces_in_bf16(launch: Launch) -> bool:
    """Whether gradients are kept and reduced in 16 bits."""
    gradient_bytes = launch.job.optimizer.gradient_bytes
    size = launch.job.framework.state.gradient_bytes if gradient_bytes is None else gradient_bytes
    return size == _SIXTEEN_BITS


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """Refusals of degrees, schedules and sharding that would not run."""
    layout, pp = launch.plan.layout, launch.plan.degrees.pp
    chunks = max(1, len(layout.block_layers) // pp)
    least = max(1, min(layout.stage_recomputed, default=0) // chunks)
    names = sentences.names_of(launch) | {"least": least}
    yield from sentences.said_refusals("megatron", "run_refusals", names)


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Parts of the job that Megatron-LM cannot express."""
    yield from model_refusals(job.model, job.seq)
    names = sentences.names_of_job(job)
    yield from sentences.said_refusals("megatron", "attention_refusals", names)
    yield from sentences.said_refusals("megatron", "sample_refusals", names)


def files(launch: Launch) -> Files:  # noqa: ARG001 (the writers' contract)
    """No files: the launcher script holds every flag."""
    return {}


def command(launch: Launch) -> RunCommand:
    """`pretrain_gpt.py`, or `pretrain_hybrid.py` for a hybrid, with the plan's flags."""
    words, comments = as_argv(groups(launch))
    kind = "hybrid" if is_hybrid(launch.job.model) else "gpt"
    program = f"${{MEGATRON_LM}}/pretrain_{kind}.py"
    variables = sentences.said_variables(
        "megatron", launch, packs=trains_packs(launch.job), hybrid=kind == "hybrid"
    )
    return RunCommand(
        argv=(program, *words),
        variables=(*variables, stop_variable(launch)),
        branches=_branches(launch),
        environment=environment(launch),
        comments={index + 1: title for index, title in comments.items()},
    )


def groups(launch: Launch) -> tuple[FlagGroup, ...]:
    """All flags in titled groups. A technique's flag replaces one of the same name."""
    names = names_in(launch)
    found = {name: _group(name, names) for name in _GROUPS}
    replaced = {one.name for one in found["techniques"].flags}
    return tuple(
        group
        if name == "techniques"
        else replace(group, flags=tuple(one for one in group.flags if one.name not in replaced))
        for name, group in found.items()
    )


def _branches(launch: Launch) -> tuple[Branch, ...]:
    checkpoints = ("--save", "${CHECKPOINTS}", "--load", "${CHECKPOINTS}",
                   "--save-interval", str(save_steps(launch)))  # fmt: skip
    # Megatron-FSDP has a checkpoint format of its own, which is stated with its flags.
    form = () if is_fsdp(launch) else (MEGATRON["checkpoints"].key, "torch_dist")
    kind, model = MEGATRON["tokenizer-kind"].key, MEGATRON["tokenizer"].key
    name, packs = (model, "${TOKENIZER}"), trains_packs(launch.job)
    data = ("--data-path", "${DATA_PATH}", "--split", "99,1,0")
    read = (
        (
            Branch("DATA_PATH", data),
            Branch("TOKENIZER", (kind, "SFTTokenizer", *name, *_CHAT_TEMPLATE)),
        )
        if packs
        else (
            Branch("DATA_PATH", data, ("--mock-data",)),
            Branch("TOKENIZER", (kind, "HuggingFaceTokenizer", *name), (kind, "NullTokenizer")),
        )
    )
    return (
        *read,
        Branch("CHECKPOINTS", (*checkpoints, *form)),
        Branch(contract.PRETRAINED, ("--pretrained-checkpoint", "${PRETRAINED}")),
        Branch(contract.STOP, ("--exit-duration-in-mins", "${STOP_AFTER_MINUTES}")),
        Branch("TENSORBOARD", ("--tensorboard-dir", "${TENSORBOARD}")),
    )


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages and versions that the flags are written for."""
    return sentences.said_needs("megatron", "needs", launch, sharp_group=sharp_group(launch))


def environment(launch: Launch) -> Mapping[str, tuple[str, str]]:
    """Variables that Megatron-LM demands or that the plan's overlap needs."""
    return sentences.said_environment("megatron", "environment", launch)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """The settings to explain in the folder's README: those that the plan decides, and its
    techniques."""
    names = names_in(launch)
    yield from sentences.said_choices("megatron", "choices", names)
    yield from (ExplainedSetting(one.name, one.words) for one in launch.techniques)
    yield from sentences.said_choices("megatron", "other_choices", names)
