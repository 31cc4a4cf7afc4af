"""Writer for Megatron-LM's `pretrain_gpt.py` (megatron-core 0.19).

All settings are flags, so there is no configuration file: the launcher script holds them, in
groups with a comment each. What Megatron-LM finds out only at run time, or not at all, is refused
before, with the place in megatron-core 0.19 where a run would fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch.architecture import refusals, settings
from planner.launch.contract import (
    PRETRAINED,
    STOP,
    TRAIN_STEPS,
    WARMUP_STEPS,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    Variable,
    folder_variable,
    needed,
    path_variable,
    pretrained_variable,
    rate_variable,
)
from planner.launch.dialects.megatron.flags import (
    Flag,
    FlagGroup,
    as_argv,
    flag,
    from_text,
    layout_flags,
    schedule_flag,
    switches,
)
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_PRECISIONS
from planner.launch.dialects.megatron.table import (
    GROUPS,
    hybrid_flags,
    is_hybrid,
    linear_bias,
    option,
    rotates_plainly,
)
from planner.launch.dialects.megatron.table import MEGATRON as ROWS
from planner.launch.quoting import Value, yaml_value
from planner.launch.sentences import (
    names_of,
    names_of_job,
    said_choices,
    said_environment,
    said_needs,
    said_refusals,
)
from planner.launch.time_limit import save_steps, stop_variable
from planner.predict.plan_text import fraction_text
from planner.predict.sharp import sharp_use

_OTHERS = "--framework accelerate, which trains Hugging Face's own model"


def model_refusals(model: ModelSpec, seq: int, *, bridge: bool = False) -> Iterator[Refusal]:
    """What Megatron's GPT model cannot be made into; `bridge`: by overrides, not by flags."""
    names = {"model": model, "seq": seq, "hybrid": is_hybrid(model)}
    yield from refusals(ROWS, model, "Megatron's GPT model", _OTHERS)
    yield from said_refusals("megatron", "length_refusals", names)
    if bridge:
        yield from said_refusals("megatron", "bridge_model_refusals", names)
    # What only Megatron-Bridge's fields reach.
    for row in ROWS if not bridge else ():
        if row.when(model) and (phrase := row.no_flag(model)):
            text = f"Megatron-LM's flags cannot express {model.name}: {phrase}"
            yield Refusal(text, "--framework megatron-bridge")


def model_groups(model: ModelSpec, seq: int, *, dropout: bool, low: bool) -> tuple[FlagGroup, ...]:
    """The model's flags in titled groups. Only for models without refusals.

    `low`: products in 8 or 4 bits.
    """
    run = {"model": _lengths(model, seq, dropout), "experts": dispatch_flags(model, low=low)}
    groups = []
    for title, rows in GROUPS:
        flags = [
            Flag(name) if value is True else flag(name, value)
            for name, value in settings(rows, model).items()
        ]
        shown = f"model: {model.name}" if title == "model" else title
        groups.append(FlagGroup(shown, (*flags, *run.get(title, ()))))
    return tuple(groups)


def _lengths(model: ModelSpec, seq: int, dropout: bool) -> tuple[Flag, ...]:
    longest = () if model.position == "learned" else (flag(f"--{option('max_positions')}", seq),)
    if dropout:
        return longest
    return (*longest, flag(MEGATRON["dropout"].key, 0), flag(MEGATRON["attention-dropout"].key, 0))


def dispatch_flags(model: ModelSpec, *, low: bool) -> tuple[Flag, ...]:
    """How tokens go to the experts and through them."""
    if model.moe is None:
        return ()
    return (
        flag(MEGATRON["dispatcher"].key, "alltoall"),
        flag(MEGATRON["grouped-gemm"].key),
        flag(MEGATRON["permute-fusion"].key),
        # Quantised products want multiples of 16 or 32 tokens an expert.
        *switches(
            ("--moe-router-padding-for-quantization", low),
            # experts.py, TEGroupedMLP: not with biases.
            ("--no-bias-dropout-fusion", bool(linear_bias(model))),
        ),
    )


def model_overrides(model: ModelSpec, title: str) -> dict[str, str]:
    """The fields of Megatron-Bridge in a group of the table, all of them."""
    rows = dict(GROUPS)[title]
    return {
        f"model.{row.field}": override_text(row.override(model))
        for row in rows
        if row.field and row.when(model)
    }


def override_text(value: Value) -> str:
    """A value as Hydra reads it: lists without blanks."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(str(item) for item in value) + "]"
    return yaml_value(value)


LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
# ZeRO stage -> what Megatron-FSDP shards.
FSDP_SHARDING = {stage: MEGATRON["sharding"].text(stage) for stage in (2, 3)}
_WEIGHTS_SHARDED = 3
_SIXTEEN_BITS = 2.0
TECHNIQUES = "techniques"
VARIABLES = (
    Variable(
        "DATA_PATH",
        "",
        "prefix of your tokenized data (.bin and .idx); empty: mock data",
        holds="${DATA_PATH}.bin",
    ),
    path_variable("TOKENIZER", "folder or name of its Hugging Face tokenizer"),
    folder_variable("DATA_PATH"),
    path_variable("TENSORBOARD", "folder of TensorBoard's logs"),
    TRAIN_STEPS,
    WARMUP_STEPS,
    rate_variable("1e-4"),
    rate_variable("1e-5", "MIN_LEARNING_RATE", "last"),
)


def is_fsdp(launch: Launch) -> bool:
    """Whether parameters or gradients are sharded: Megatron-FSDP in place of DDP."""
    return launch.plan.degrees.zero in FSDP_SHARDING


def _option(name: str, value: object) -> Flag:
    """A setting as Megatron spells it."""
    return flag(MEGATRON[name].key, MEGATRON[name].text(value))


def degree_flags(launch: Launch) -> tuple[Flag, ...]:
    """Parallel degrees; data parallelism is what the number of GPUs leaves."""
    degrees = launch.plan.degrees
    flags = [_option(name, getattr(degrees, name)) for name in ("tp", "pp", "cp")]
    if degrees.tp > 1 and launch.splits_sequence:
        flags.append(flag(MEGATRON["no-sequence-parallel"].key))
    if degrees.cp > 1:
        flags.append(_option("cp_comm_type", launch.plan.cp_comm_type or "p2p"))
    if launch.plan.cp_sizes:
        flags.append(flag(MEGATRON["cp_sizes"].key, *launch.plan.cp_sizes))
    if launch.job.model.moe is not None:
        # Without it experts would be split like the rest of the layer.
        flags += [_option("ep", degrees.ep), _option("etp", degrees.etp)]
    model, layout = launch.job.model, launch.plan.layout
    if is_hybrid(model):
        return (*flags, *hybrid_flags(model, layout))
    flags += layout_flags(layout, model.mtp_layers)
    return tuple(flags)


def batch_flags(launch: Launch) -> tuple[Flag, ...]:
    """Micro-batch, global batch in sequences, sequence length."""
    plan = launch.plan
    return (
        _option("mbs", plan.degrees.mbs),
        schedule_flag(plan) if plan.ramp else _option("gbs", plan.gbs),
        _option("seq", plan.seq),
        *switches((NO_MASK, plan.seq >= _LONG and launch.job.attention != "eager")),
    )


# A mask of seq x seq bytes a sequence, which fused attention does not read.
NO_MASK = "--no-create-attention-mask-in-dataloader"
_LONG = 16384


def sharding_flags(launch: Launch) -> tuple[Flag, ...]:
    """Data parallelism: DDP, the distributed optimizer, or Megatron-FSDP, and what overlaps."""
    degrees, overlap = launch.plan.degrees, launch.job.framework.overlap
    reduces = overlap.gradient_reduction > 0
    gathers = overlap.parameter_gather > 0
    flags: list[Flag] = []
    if is_fsdp(launch):
        flags += [
            flag(MEGATRON["fsdp"].key),
            _option("sharding", degrees.zero),
            _option("checkpoints", "fsdp_dtensor"),
            flag("--init-model-with-meta-device"),
            flag(MEGATRON["unfused-accumulation"].key),
            # Bounds what is gathered and not yet reduced to two layers, as the plan counts.
            *switches((MEGATRON["double-buffer"].key, degrees.zero == _WEIGHTS_SHARDED)),
        ]
    # In some profiles kernels of their own add weight gradients to the fp32 buffer.
    adds_gradients = launch.job.framework.kernels.accumulation_traffic_bytes > 0
    flags += switches(
        (MEGATRON["zero"].key, degrees.zero >= 1),
        (MEGATRON["gradient-reduction-exposed"].key, reduces),
        (MEGATRON["parameter-gather-exposed"].key, gathers and degrees.zero >= 1),
        (MEGATRON["unfused-accumulation"].key, adds_gradients and not is_fsdp(launch)),
        (MEGATRON["bf16-gradients"].key, reduces_in_bf16(launch)),
    )
    if degrees.shard and degrees.zero:
        instances = degrees.dp * degrees.cp // degrees.shard
        if instances > 1:
            flags.append(_option("groups", instances))
    group = sharp_group(launch)
    if group:
        flags += [flag(MEGATRON["sharp"].key), _option("sharp-group", group)]
    return tuple(flags)


def sharp_group(launch: Launch) -> str:
    """The group that switches reduce for, in Megatron's words; empty where they reduce nothing."""
    use = sharp_use(launch.job, launch.plan.degrees)
    return use.group if use and not use.reason else ""


def reduces_in_bf16(launch: Launch) -> bool:
    """Gradients kept and reduced in 16 bits, as the profile has them."""
    gradient_bytes = launch.job.optimizer.gradient_bytes
    size = launch.job.framework.state.gradient_bytes if gradient_bytes is None else gradient_bytes
    return size == _SIXTEEN_BITS


def optimizer_flags(launch: Launch) -> tuple[Flag, ...]:
    """Optimizer, types of its state, share on the CPU."""
    job = launch.job
    flags = [_option("optimizer", job.optimizer.family)]
    if job.optimizer.family == "sgd" and dict(job.optimizer.states).get("momentum") == "none":
        flags.append(_option("momentum", 0))
    return (*flags, *from_text(launch.plan.optimizer_flags))


def with_techniques(launch: Launch, *groups: FlagGroup) -> tuple[FlagGroup, ...]:
    """Groups of flags, in which a technique's flag replaces one of the same name before it."""
    of_techniques = {one.name for one in from_text(launch.plan.technique_flags)}
    return tuple(
        group
        if group.title == TECHNIQUES
        else FlagGroup(
            group.title, tuple(one for one in group.flags if one.name not in of_techniques)
        )
        for group in groups
    )


def kernel_flags(launch: Launch) -> tuple[Flag, ...]:
    """Kernels that the plan is costed with."""
    profile = launch.job.framework
    eager = launch.job.attention == "eager"
    local = profile.name == LOCAL_PROFILE
    flags = [_option("kernels", "local" if local else "transformer_engine")]
    if rotates_plainly(launch.job.model) and not local:
        flags.append(Flag("--no-rope-fusion"))
    if eager and not local:
        flags.append(_option("attention", "eager"))
    if local:
        flags += from_text(
            "--no-persist-layer-norm --no-bias-swiglu-fusion --no-bias-gelu-fusion "
            "--no-rope-fusion --no-masked-softmax-fusion"
        )
    return tuple(flags)


LOCAL_PROFILE = "megatron-local"


def run_refusals(launch: Launch) -> Iterator[Refusal]:
    """Everything about degrees, schedule and sharding that would not run."""
    layout, pp = launch.plan.layout, launch.plan.degrees.pp
    chunks = max(1, len(layout.block_layers) // pp)
    least = max(1, min(layout.stage_recomputed, default=0) // chunks)
    yield from said_refusals("megatron", "run_refusals", names_of(launch) | {"least": least})


plan_refusals = run_refusals
PROGRAM = "${MEGATRON_LM}/pretrain_gpt.py"
HYBRID_PROGRAM = "${MEGATRON_LM}/pretrain_hybrid.py"


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What Megatron-LM cannot express of the job."""
    yield from model_refusals(job.model, job.seq)
    yield from said_refusals("megatron", "attention_refusals", names_of_job(job))


def files(launch: Launch) -> Files:  # noqa: ARG001 (the writers' contract)
    """None: the launcher script holds every flag."""
    return {}


def command(launch: Launch) -> RunCommand:
    """`pretrain_gpt.py`, or a hybrid's `pretrain_hybrid.py`, with the plan's flags."""
    words, comments = as_argv(groups(launch))
    return RunCommand(
        argv=(HYBRID_PROGRAM if is_hybrid(launch.job.model) else PROGRAM, *words),
        variables=(
            needed(
                "MEGATRON_LM",
                "folder of a Megatron-LM checkout of core 0.19",
                holds=HYBRID_PROGRAM if is_hybrid(launch.job.model) else PROGRAM,
            ),
            pretrained_variable(
                "a checkpoint of Megatron's in its distributed format (README.md says how to make "
                "one)"
            ),
            *VARIABLES,
            stop_variable(launch),
        ),
        branches=_branches(launch),
        environment=environment(launch),
        comments={index + 1: title for index, title in comments.items()},
    )


def groups(launch: Launch) -> tuple[FlagGroup, ...]:
    """All flags, in titled groups."""
    plan, job = launch.plan, launch.job
    low = job.precision in LOW_PRECISIONS
    return with_techniques(
        launch,
        *model_groups(job.model, plan.seq, dropout=job.dropout, low=low),
        FlagGroup("parallel degrees", degree_flags(launch)),
        FlagGroup("batch", batch_flags(launch)),
        FlagGroup("data parallelism", sharding_flags(launch)),
        FlagGroup("recomputation", from_text(plan.recompute_flags)),
        FlagGroup("activations on the host", from_text(plan.activation_offload_flags)),
        FlagGroup("precision", from_text(MEGATRON_PRECISIONS[job.precision])),
        FlagGroup("optimizer", optimizer_flags(launch)),
        FlagGroup("kernels", kernel_flags(launch)),
        FlagGroup(TECHNIQUES, from_text(plan.technique_flags)),
        FlagGroup(
            "what to see of the first steps",
            (flag("--log-interval", 1), flag("--log-throughput"), flag("--eval-iters", 0)),
        ),
        FlagGroup(
            "PLACEHOLDERS, not part of the plan: replace them for a real run", _placeholders()
        ),
    )


def _branches(launch: Launch) -> tuple[Branch, ...]:
    checkpoints = ("--save", "${CHECKPOINTS}", "--load", "${CHECKPOINTS}",
                   "--save-interval", str(save_steps(launch)))  # fmt: skip
    # Megatron-FSDP has a format of its own, which stands with its flags.
    form = () if is_fsdp(launch) else (MEGATRON["checkpoints"].key, "torch_dist")
    kind, model = MEGATRON["tokenizer-kind"].key, MEGATRON["tokenizer"].key
    tokenizer = (kind, "HuggingFaceTokenizer", model, "${TOKENIZER}")
    return (
        Branch("DATA_PATH", ("--data-path", "${DATA_PATH}", "--split", "99,1,0"), ("--mock-data",)),
        Branch("TOKENIZER", tokenizer, (kind, "NullTokenizer")),
        Branch("CHECKPOINTS", (*checkpoints, *form)),
        Branch(PRETRAINED, ("--pretrained-checkpoint", "${PRETRAINED}")),
        Branch(STOP, ("--exit-duration-in-mins", "${STOP_AFTER_MINUTES}")),
        Branch("TENSORBOARD", ("--tensorboard-dir", "${TENSORBOARD}")),
    )


def _placeholders() -> tuple[Flag, ...]:
    """Hyperparameters: values that run, none that was chosen."""
    return (
        flag("--train-iters", "${TRAIN_STEPS}"),
        flag("--lr", "${LEARNING_RATE}"),
        flag("--min-lr", "${MIN_LEARNING_RATE}"),
        flag("--lr-warmup-iters", "${WARMUP_STEPS}"),
        flag("--lr-decay-style", "cosine"),
        flag("--weight-decay", 0.1),
        flag("--adam-beta2", 0.95),
        flag("--clip-grad", 1.0),
    )


def requirements(launch: Launch) -> tuple[str, ...]:
    """What the flags are written for."""
    return said_needs("megatron", "needs", launch, sharp_group=sharp_group(launch))


def environment(launch: Launch) -> Mapping[str, tuple[str, str]]:
    """Variables that Megatron-LM demands or the plan's overlap rests on."""
    return said_environment("megatron", "environment", launch)


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """A sentence for each setting that the plan decides."""
    plan = launch.plan
    names = names_of(launch) | {
        "bf16_gradients": reduces_in_bf16(launch),
        "chunks": f" in {plan.degrees.vpp} chunks each" if plan.degrees.vpp > 1 else "",
        "exchange": plan.cp_comm_type or "p2p",
        "first": next(iter(plan.ramp), None),
        "offloaded": fraction_text(plan.activation_offload, plan.activation_offload_fraction),
        "sharp_group": sharp_group(launch),
    }
    yield from said_choices("megatron", "choices", names)
    yield from (ExplainedSetting(one.name, one.words) for one in launch.techniques)
    yield from said_choices("megatron", "other_choices", names)
