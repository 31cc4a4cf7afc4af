"""Writer for Megatron-Bridge 0.6: a start script around its bare GPT recipe, and overrides.

The recipe `vanilla_gpt_pretrain_config` assumes nothing of a model, so every setting of the plan
is an override of the form `section.field=value`, as Bridge's own scripts take them. Two sections
of that recipe are a name or nothing, and their fields could not be overridden: the start script
puts objects there first (a precision recipe would otherwise set gradients back to fp32).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from planner.job.job import Job
from planner.launch.contract import (
    PRETRAINED,
    STOP,
    Branch,
    Files,
    Launch,
    Refusal,
    RunCommand,
    pretrained_variable,
)
from planner.launch.dialects.megatron import writer as megatron
from planner.launch.dialects.megatron.flags import Flag, from_text, layout_text
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_LAYOUT, MEGATRON_RECOMPUTE
from planner.launch.dialects.megatron.table import linear_bias, rotates_plainly
from planner.launch.dialects.megatron.writer import (
    LOW_PRECISIONS,
    NO_MASK,
    VARIABLES,
    batch_flags,
    degree_flags,
    dispatch_flags,
    is_fsdp,
    model_overrides,
    model_refusals,
    optimizer_flags,
    reduces_in_bf16,
    run_refusals,
    sharding_flags,
    sharp_group,
)
from planner.launch.quoting import Code
from planner.launch.registry import dialect_toml
from planner.launch.sentences import names_of_job, said_needs, said_refusals
from planner.launch.settings_text import filled
from planner.launch.time_limit import save_steps, stop_variable

_KINDS = {
    "int": r"\d+|\$\{[A-Z_]+\}",
    "number": r"\d+(\.\d+)?(e-?\d+)?|\$\{[A-Z_]+\}",
    "bool": r"true|false",
    "list": r"\[[\w,]+\]",
    "layout": r'"[Etm*()|\dL]+"',
    "path": r"\S+",
    "null": r"null",
}


@cache
def schema() -> Mapping[str, str]:
    """`section.field` -> pattern of its values, of all that is ever written."""
    return {
        f"{section}.{field}": _pattern(kind)
        for section, fields in dialect_toml("megatron", "bridge.toml").items()
        for field, kind in fields.items()
    }


# Where a field stands that several sections have; the others say the same.
_FIRST_SECTIONS = ("model", "ddp")


def fields_of(flag: str) -> list[str]:
    """The fields of the name of one of Megatron's flags, in every section that has one."""
    name = flag.removeprefix("--").replace("-", "_")
    return [key for key in schema() if key.partition(".")[2] == name]


def field_of(flag: str) -> str:
    """The field that says what a flag says; empty if there is none."""
    fields = fields_of(flag)
    return min(fields, key=lambda key: key.partition(".")[0] not in _FIRST_SECTIONS, default="")


def _pattern(kind: str | Sequence[str]) -> str:
    if isinstance(kind, str):
        return "|".join(_KINDS[name] for name in kind.split(" or "))
    return "|".join(re.escape(word) for word in kind)


def wrong_overrides(overrides: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each override whose name or value Megatron-Bridge does not have."""
    known = schema()
    for key, value in overrides.items():
        if key not in known:
            yield f"Megatron-Bridge has no setting {key}"
        elif not re.fullmatch(known[key], value):
            yield f"{key}={value}: not a value that Megatron-Bridge takes"


SCRIPT = "bridge_pretrain.py"


plan_refusals = run_refusals


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What Megatron-Bridge cannot express of the job."""
    yield from model_refusals(job.model, job.seq, bridge=True)
    for table in ("attention_refusals", "bridge_refusals"):
        yield from said_refusals("megatron", table, names_of_job(job))


def files(launch: Launch) -> Files:
    """The start script."""
    provider = "MLAModelProvider" if launch.job.model.mla else "GPTModelProvider"
    module = "mla_provider" if launch.job.model.mla else "gpt_provider"
    names = {"module": Code(module), "provider": Code(provider)}
    return {
        SCRIPT: filled(f"megatron/{SCRIPT}.txt", precision=RECIPES[launch.job.precision], **names)
    }


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
    return RunCommand(
        argv=(SCRIPT, *words),
        variables=(
            pretrained_variable(
                "a Hugging Face model's folder, or a checkpoint of Megatron-Bridge's"
            ),
            *VARIABLES,
            stop_variable(launch),
        ),
        branches=_branches(launch),
        environment=megatron.environment(launch),
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
        Branch(PRETRAINED, ("checkpoint.pretrained_checkpoint=${PRETRAINED}",)),
        Branch(STOP, ("train.exit_duration_in_mins=${STOP_AFTER_MINUTES}",)),
    )


# The settings worth a sentence.
choices = megatron.choices


def requirements(launch: Launch) -> tuple[str, ...]:
    """What the overrides are written for."""
    return said_needs("megatron", "bridge_needs", launch, sharp_group=sharp_group(launch))


Overrides = Mapping[str, str]
Groups = Sequence[tuple[str, Overrides]]

# Precision of the plan -> Bridge's recipe of it; fields that the plan decides are set after.
RECIPES = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_FUSED = ("silu", "gelu", "quick_gelu")
# Switches that the bare recipe has on.
_MAYBE_ON = tuple(
    MEGATRON[name].key
    for name in ("zero", "gradient-reduction-exposed", "parameter-gather-exposed")
)
# Megatron's flags whose fields have another name, or that it has not.
_OTHERWISE = {
    MEGATRON["bf16-gradients"].key,
    *(option.key for option in MEGATRON_LAYOUT.values()),
    NO_MASK,
}


def all_overrides(launch: Launch) -> Groups:
    """Titled groups of `section.field` and value."""
    model = launch.job.model
    return (
        (f"model: {model.name}", _model(launch)),
        ("attention", model_overrides(model, "attention")),
        ("experts", _experts(launch)),
        ("parallel degrees", _degrees(launch)),
        ("batch", _fields(batch_flags(launch))),
        ("data parallelism and overlap", _sharding(launch)),
        ("recomputation", _recompute(launch)),
        ("activations on the host", _fields(from_text(launch.plan.activation_offload_flags))),
        ("precision", _precision(launch)),
        ("optimizer", _optimizer(launch)),
        ("what to see of the first steps", {"logger.log_interval": "1"}),
        ("PLACEHOLDERS, not part of the plan: replace them for a real run", _placeholders(launch)),
    )


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _model(launch: Launch) -> Overrides:
    model = launch.job.model
    dropout = "0.1" if launch.job.dropout else "0.0"
    found = model_overrides(model, "model")
    fused = found["model.activation_func"] in _FUSED and (model.gated or bool(linear_bias(model)))
    return found | {
        "model.bias_activation_fusion": _yes(fused),
        "model.bias_dropout_fusion": _yes(not (model.moe and linear_bias(model))),
        "model.should_pad_vocab": "true",
        **({"model.apply_rope_fusion": "false"} if rotates_plainly(model) else {}),
        "model.hidden_dropout": dropout,
        "model.attention_dropout": dropout,
        # As the plan is costed: the fused loss makes its fp32 tensors anew.
        "model.cross_entropy_loss_fusion": "false",
    }


def _experts(launch: Launch) -> Overrides:
    job = launch.job
    found = model_overrides(job.model, "experts")
    found |= _fields(dispatch_flags(job.model, low=job.precision in LOW_PRECISIONS))
    return {key: value for key, value in found.items() if key not in _techniques(launch)}


def _degrees(launch: Launch) -> Overrides:
    degrees, layout = launch.plan.degrees, launch.plan.layout
    found = _fields(degree_flags(launch), off=(MEGATRON["no-sequence-parallel"].key,))
    blocks = str(degrees.vpp) if degrees.vpp > 1 else "null"
    found["model.virtual_pipeline_model_parallel_size"] = blocks
    if degrees.pp > 1 and not layout.is_even:
        # Quotes within: brackets, stars and bars mean something to Hydra.
        text = layout_text(layout.block_layers, launch.job.model.mtp_layers, layout.mtp_standalone)
        found["model.pipeline_model_parallel_layout"] = f'"{text}"'
    return found


def _sharding(launch: Launch) -> Overrides:
    exchanged = launch.plan.degrees.tp > 1 and launch.job.framework.overlap.tensor > 0
    return {
        **_fields(sharding_flags(launch), off=_MAYBE_ON),
        "comm_overlap.tp_comm_overlap": _yes(exchanged),
        "ddp.grad_reduce_in_fp32": _yes(not reduces_in_bf16(launch)),
        **_techniques(launch),
    }


def _techniques(launch: Launch) -> Overrides:
    """What switches the plan's techniques on: overrides already."""
    pairs = (word.partition("=") for word in launch.plan.technique_flags.split())
    return {key: value for key, _, value in pairs}


def _recompute(launch: Launch) -> Overrides:
    """Flags of the plan, as fields; null where nothing runs again."""
    words = ("recompute", "recompute-method", "recompute-layers")
    names = (MEGATRON_RECOMPUTE[word].name.replace("-", "_") for word in words)
    found = {f"model.{name}": "null" for name in names}
    return found | _fields(from_text(launch.plan.recompute_flags))


def _fields(flags: Iterable[Flag], off: Iterable[str] = ()) -> dict[str, str]:
    """Megatron's flags as the fields of that name, in every section that has one.

    `off`: switches that are off where they are not among the flags.
    """
    found = {field: "false" for name in off for field in fields_of(name)}
    for flag in flags:
        if flag.name in _OTHERWISE:
            continue
        listed = f"[{','.join(flag.values)}]"
        name = flag.name.replace("--no-", "--")
        # A name that no section has is refused as it is.
        for field in fields_of(name) or [name]:
            is_list = re.fullmatch(schema().get(field, ""), "[a,b]") is not None
            switch = _yes(not flag.name.startswith("--no-"))
            found[field] = listed if is_list else (*flag.values, switch)[0]
    return found


def _precision(launch: Launch) -> Overrides:
    found = {"mixed_precision.grad_reduce_in_fp32": _yes(not reduces_in_bf16(launch))}
    if launch.job.precision in ("fp8", "mxfp8"):
        # Weights travel and stay in bf16, in all layers the same.
        found |= {
            "mixed_precision.fp8_param_gather": "false",
            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": "false",
            "mixed_precision.first_last_layers_bf16": "false",
        }
    return found


def _optimizer(launch: Launch) -> Overrides:
    found = _fields(optimizer_flags(launch))
    if "optimizer.use_precision_aware_optimizer" in found and reduces_in_bf16(launch):
        found["optimizer.main_grads_dtype"] = "bf16"
    return found


def _placeholders(launch: Launch) -> Overrides:
    """Data, tokenizer and hyperparameters: values that run, none that was chosen."""
    return {
        "tokenizer.vocab_size": str(launch.job.model.vocab),
        "train.train_iters": "${TRAIN_STEPS}",
        "validation.eval_iters": "0",
        "scheduler.lr_warmup_iters": "${WARMUP_STEPS}",
        "optimizer.lr": "${LEARNING_RATE}",
        "optimizer.min_lr": "${MIN_LEARNING_RATE}",
    }
