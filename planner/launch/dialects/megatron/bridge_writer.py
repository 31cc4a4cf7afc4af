"""Writer for Megatron-Bridge 0.6: a start script around its bare GPT recipe, and overrides.

Plans that train adapters, or samples of different lengths, get another start script
(`bridge_finetune.py`).

The recipe `vanilla_gpt_pretrain_config` assumes nothing about the model, so every setting of the
plan is an override of the form `section.field=value`, as in Bridge's scripts. In two sections of
that recipe the value is a name or null, whose fields cannot be overridden: the start script first
puts objects there (otherwise a precision recipe would set gradients back to fp32).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import lcm
from typing import Any

from planner.job.job import Job
from planner.launch import contract, sentences
from planner.launch.contract import Branch, Files, Launch, Refusal, RunCommand
from planner.launch.dialects.megatron import bridge_finetune, bridge_vision
from planner.launch.dialects.megatron import writer as megatron
from planner.launch.dialects.megatron.bridge_adapters import adapter_refusals
from planner.launch.dialects.megatron.flags import Flag
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.quoting import Code
from planner.launch.read.names import meanings
from planner.launch.registry import dialect_toml
from planner.launch.settings_text import filled
from planner.launch.time_limit import save_steps, stop_variable

_KINDS = {
    "int": r"\d+|\$\{[A-Z_]+\}",
    "number": r"\d+(\.\d+)?(e-?\d+)?|\$\{[A-Z_]+\}",
    "bool": r"true|false",
    "list": r"\[[\w,]+\]",
    "layout": r'"[Etm*()|\dL]+"',
    "path": r"\S+",
    # May be empty: a variable that is not set yet.
    "name": r"\S*",
    "null": r"null",
}


@cache
def schema() -> Mapping[str, str]:
    """A regular expression for the valid values of each field that is written, by
    `section.field`."""
    return {
        f"{section}.{field}": "|".join(
            [_KINDS[name] for name in kind.split(" or ")]
            if isinstance(kind, str)
            else map(re.escape, kind)
        )
        for section, fields in dialect_toml("megatron", "bridge.toml").items()
        for field, kind in fields.items()
    }


# Sections whose field counts if several have one; the others have the same meaning.
_FIRST_SECTIONS = ("model", "ddp")


def fields_of(flag: str) -> list[str]:
    """The Bridge fields, as `section.field`, that have the name of a Megatron flag. There is one
    for each section that has such a field; empty if none has."""
    name = flag.removeprefix("--").replace("-", "_")
    return [key for key in schema() if key.partition(".")[2] == name]


def field_of(flag: str) -> str:
    """The field with the meaning of a flag; empty if there is none."""
    fields = fields_of(flag)
    return min(fields, key=lambda key: key.partition(".")[0] not in _FIRST_SECTIONS, default="")


def wrong_overrides(overrides: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each override whose name or value Megatron-Bridge does not have."""
    known = schema()
    for key, value in overrides.items():
        if key not in known:
            yield f"Megatron-Bridge has no setting {key}"
        elif not re.fullmatch(known[key], value):
            yield f"{key}={value}: not a value that Megatron-Bridge takes"


SCRIPT = "bridge_pretrain.py"
plan_refusals = megatron.plan_refusals


def job_refusals(job: Job) -> Iterator[Refusal]:
    """Parts of the job that Megatron-Bridge cannot express."""
    if unknown := [*bridge_vision.family_refusals(job.model)]:
        yield from unknown
        return
    yield from bridge_vision.vision_refusals(job)
    job = bridge_vision.of_language(job)
    yield from megatron.model_refusals(job.model, job.seq, bridge=True)
    for table in ("attention_refusals", "bridge_refusals"):
        yield from sentences.said_refusals("megatron", table, sentences.names_of_job(job))
    yield from adapter_refusals(job)


def files(launch: Launch) -> Files:
    """The start script."""
    job = launch.job
    if job.model.vision is not None:
        return bridge_vision.files(launch, RECIPES[job.precision])
    kind, precision = "mla" if job.model.mla else "gpt", RECIPES[job.precision]
    names = {
        "module": Code(f"{kind}_provider"), "provider": Code(f"{kind.upper()}ModelProvider"),
    }  # fmt: skip
    if bridge_finetune.finetunes(job):
        text = bridge_finetune.script(job, _multiple(launch), precision=precision, **names)
        return {bridge_finetune.SCRIPT: text}
    return {SCRIPT: filled(f"megatron/{SCRIPT}.txt", precision=precision, **names)}


def _multiple(launch: Launch) -> int:
    """The number of tokens that a sample's length must be a multiple of, for tensor and context
    ranks and for 8-bit and 4-bit products."""
    degrees = launch.plan.degrees
    least = 16 if launch.job.precision in ("fp8", "mxfp8", "nvfp4") else 1
    return lcm(least, degrees.tp, 2 * degrees.cp if degrees.cp > 1 else 1)


def command(launch: Launch) -> RunCommand:
    """The start script with every override."""
    words: list[str] = []
    comments: dict[int, str] = {}
    for title, overrides in all_overrides(launch):
        if overrides:
            comments[len(words) + 1] = title
        wrong = "; ".join(wrong_overrides(overrides))
        if wrong:
            raise ValueError(wrong)
        words += [f"{key}={value}" for key, value in overrides.items()]
    seen, tuned = launch.job.model.vision is not None, bridge_finetune.finetunes(launch.job)
    variables = sentences.said_variables(
        "megatron",
        launch,
        "bridge_variables",
        seen=seen,
        tuned=tuned and not seen,
        samples=bridge_finetune.has_samples(launch.job),
    )
    return RunCommand(
        argv=(_script(launch.job), *words),
        variables=(*variables, stop_variable(launch)),
        branches=_branches(launch),
        environment=megatron.environment(launch),
        comments=comments,
    )


def _script(job: Job) -> str:
    if job.model.vision is not None:
        return bridge_vision.SCRIPT
    return bridge_finetune.SCRIPT if bridge_finetune.finetunes(job) else SCRIPT


def _branches(launch: Launch) -> tuple[Branch, ...]:
    tokenizer = {"type": "HuggingFaceTokenizer", "model": "${TOKENIZER}"}
    saved = {
        "save": "${CHECKPOINTS}", "load": "${CHECKPOINTS}",
        "save_interval": str(save_steps(launch)),
    }  # fmt: skip
    # Megatron-FSDP has a checkpoint format of its own.
    saved |= {} if megatron.is_fsdp(launch) else {"ckpt_format": "torch_dist"}
    words = tuple(f"tokenizer.tokenizer_{key}={value}" for key, value in tokenizer.items())
    # Samples are texts: if no tokenizer is given, the one of the weights reads them.
    own = tuple(word.replace("TOKENIZER}", "PRETRAINED}") for word in words)
    otherwise = own if bridge_finetune.has_samples(launch.job) else ()
    saves = tuple(f"checkpoint.{key}={value}" for key, value in saved.items())
    seen = launch.job.model.vision is not None
    return (
        *(() if seen else (Branch("TOKENIZER", words, otherwise),)),
        Branch("CHECKPOINTS", saves, ("checkpoint.save=null",)),
        Branch("TENSORBOARD", ("logger.tensorboard_dir=${TENSORBOARD}",)),
        Branch(contract.PRETRAINED, ("checkpoint.pretrained_checkpoint=${PRETRAINED}",)),
        Branch(contract.STOP, ("train.exit_duration_in_mins=${STOP_AFTER_MINUTES}",)),
    )


# The settings that deserve an explanation.
choices = megatron.choices


def requirements(launch: Launch) -> tuple[str, ...]:
    """Packages and versions that the overrides are written for."""
    group = megatron.sharp_group(launch)
    return sentences.said_needs("megatron", "bridge_needs", launch, sharp_group=group)


Overrides = Mapping[str, str]

RECIPES = meanings("megatron", "recipes")


def all_overrides(launch: Launch) -> Sequence[tuple[str, Overrides]]:
    """Groups of overrides: (title, value by `section.field`)."""
    names = megatron.names_in(launch) | {"has_samples": bridge_finetune.has_samples(launch.job)}
    groups = dialect_toml("megatron", "groups.toml")["overrides"].values()
    own = bridge_vision.overrides(launch)
    others = []
    for group in groups:
        said = {key: value for key, value in _group(group, names).items() if key not in own}
        others.append((sentences.filled_in(group["title"], names), said))
    return (*others, ("parts of a vision-language model", own))


def _group(group: Mapping[str, Any], names: Mapping[str, Any]) -> Overrides:
    """The overrides of a group of `groups.toml`."""
    found = megatron.model_overrides(names["model"], group["table"]) if "table" in group else {}
    for row in group.get("rows", ()):
        if sentences.holds(row.get("when"), names):
            found |= _of_row(row, names)
    techniques = _of_text(names["plan"].technique_flags) if "unless_technique" in group else {}
    return {key: value for key, value in found.items() if key not in techniques}


def _of_row(row: Mapping[str, Any], names: Mapping[str, Any]) -> Overrides:
    if "of" in row:
        off = (MEGATRON[name].key for name in row.get("off", ()))
        return _fields(megatron.flags_of_rows(row["of"], names, bridge=True), off)
    if "overrides" in row:
        return _of_text(sentences.evaluated(row["overrides"], names))
    value = sentences.evaluated(row["value"], names)
    return {row["field"]: str(value).lower() if isinstance(value, bool) else str(value)}


def _of_text(text: str) -> Overrides:
    """Parse a text of overrides, such as the one that switches on the plan's techniques."""
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, _, value in pairs}


def _fields(flags: Iterable[Flag], off: Iterable[str] = ()) -> dict[str, str]:
    """Megatron's flags as fields of the same name, in every section that has one.

    `off`: switches to set to false unless they are among the flags.
    """
    found = {field: "false" for name in off for field in fields_of(name)}
    for flag in flags:
        listed = f"[{','.join(flag.values)}]"
        name = flag.name.replace("--no-", "--")
        # Keep a name that no section has, so that it is refused.
        for field in fields_of(name) or [name]:
            is_list = re.fullmatch(schema().get(field, ""), "[a,b]") is not None
            switch = "false" if flag.name.startswith("--no-") else "true"
            found[field] = listed if is_list else (*flag.values, switch)[0]
    return found
