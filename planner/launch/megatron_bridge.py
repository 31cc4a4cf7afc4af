"""Writer for Megatron-Bridge 0.6: a start script around its bare GPT recipe, and overrides.

The recipe `vanilla_gpt_pretrain_config` assumes nothing of a model, so every setting of the plan
is an override of the form `section.field=value`, as Bridge's own scripts take them. Two sections
of that recipe are a name or nothing, and their fields could not be overridden: the start script
puts objects there first (a precision recipe would otherwise set gradients back to fp32).
"""

from __future__ import annotations

from planner.job.job import Job
from planner.launch import megatron_choices
from planner.launch.checkpoints import save_steps
from planner.launch.contract import Branch, Choice, Command, Files, Launch, Refusal
from planner.launch.megatron_bridge_overrides import all_overrides, base_precision
from planner.launch.megatron_bridge_schema import wrong_overrides
from planner.launch.megatron_model import model_refusals
from planner.launch.megatron_rules import attention_refusals, run_refusals
from planner.launch.megatron_run import VARIABLES, is_fsdp, sharp_group
from planner.launch.ramp import ramp_refusals
from planner.launch.template import filled

SCRIPT = "bridge_pretrain.py"


def refusals(launch: Launch) -> tuple[Refusal, ...]:
    """What Megatron-Bridge cannot express of the plan."""
    return (*job_refusals(launch.job), *run_refusals(launch))


def job_refusals(job: Job) -> tuple[Refusal, ...]:
    """What Megatron-Bridge cannot express of the job."""
    items = [
        *model_refusals(job.model, job.seq, bridge=True),
        *attention_refusals(job),
        *ramp_refusals(
            job, "Megatron-Bridge 0.6", "hands its ramp to a megatron-core that ignores it"
        ),
    ]
    if job.optimizer.family not in ("adamw", "sgd"):
        items.append(
            Refusal(
                f"the writer has no {job.optimizer.family} for Megatron-Bridge",
                "--optimizer adamw, or --framework megatron-core",
            )
        )
    if job.attention == "eager":
        items.append(
            Refusal(
                "the writer has no unfused attention for Megatron-Bridge",
                "--attention flash, or --framework megatron-core",
            )
        )
    if "fp8" in dict(job.optimizer.states).values():
        # Its overrides name torch's fp8 types; the optimizer wants plain bytes.
        items.append(
            Refusal("Megatron-Bridge cannot override optimizer states to fp8", "adamw-bf16")
        )
    return tuple(items)


def files(launch: Launch) -> Files:
    """The start script."""
    provider = "MLAModelProvider" if launch.job.model.mla else "GPTModelProvider"
    module = "mla_provider" if launch.job.model.mla else "gpt_provider"
    values = {"module": module, "provider": provider, "precision": base_precision(launch)}
    return {SCRIPT: filled(f"{SCRIPT}.txt", script=SCRIPT, **values)}


def command(launch: Launch) -> Command:
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
    return Command(
        argv=(SCRIPT, *words),
        variables=VARIABLES,
        branches=_branches(launch),
        environment=megatron_choices.environment(launch),
        comments=comments,
    )


def _branches(launch: Launch) -> tuple[Branch, ...]:
    saved = {
        "save": "${CHECKPOINTS}",
        "load": "${CHECKPOINTS}",
        "save_interval": str(save_steps(launch)),
        # Megatron-FSDP has a format of its own.
        **({} if is_fsdp(launch) else {"ckpt_format": "torch_dist"}),
    }
    return (
        Branch(
            "TOKENIZER",
            (
                "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                "tokenizer.tokenizer_model=${TOKENIZER}",
            ),
        ),
        Branch(
            "CHECKPOINTS",
            tuple(f"checkpoint.{key}={value}" for key, value in saved.items()),
            ("checkpoint.save=null",),
        ),
        Branch("TENSORBOARD", ("logger.tensorboard_dir=${TENSORBOARD}",)),
    )


def choices(launch: Launch) -> tuple[Choice, ...]:
    """The settings worth a sentence."""
    return megatron_choices.megatron_choices(launch)


def requirements(launch: Launch) -> tuple[str, ...]:
    """What the overrides are written for."""
    return (
        "megatron-bridge 0.6.x (Python 3.12) with the megatron-core that it brings (0.19)",
        "Transformer Engine >= 2.8",
        *((megatron_choices.SHARP_NEEDS,) if sharp_group(launch) else ()),
        *launch.technique_needs,
    )
