"""Writer for Megatron-LM's `pretrain_gpt.py` (megatron-core 0.19).

All settings are flags, so there is no configuration file: the launcher script holds them, in
groups with a comment each. What the parser would not notice is refused before
(`planner.launch.dialects.megatron.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.job.job import Job
from planner.launch.contract import (
    PRETRAINED,
    STOP,
    Branch,
    ExplainedSetting,
    Files,
    Launch,
    Refusal,
    RunCommand,
    needed,
    pretrained_variable,
)
from planner.launch.dialects.megatron.flags import Flag, FlagGroup, as_argv, flag, from_text
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_PRECISIONS
from planner.launch.dialects.megatron.rows import is_hybrid
from planner.launch.dialects.megatron.run import (
    LOW_PRECISIONS,
    TECHNIQUES,
    VARIABLES,
    batch_flags,
    degree_flags,
    is_fsdp,
    kernel_flags,
    model_groups,
    model_refusals,
    optimizer_flags,
    reduces_in_bf16,
    run_refusals,
    sharding_flags,
    sharp_group,
    with_techniques,
)
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
