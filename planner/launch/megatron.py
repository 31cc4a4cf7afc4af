"""Writer for Megatron-LM's `pretrain_gpt.py` (megatron-core 0.19).

All settings are flags, so there is no configuration file: the launcher script holds them, in
groups with a comment each. What the parser would not notice is refused before
(`planner.launch.megatron_rules`).
"""

from __future__ import annotations

from planner.job.job import Job
from planner.launch.checkpoints import save_steps
from planner.launch.contract import Branch, Choice, Command, Files, Launch, Refusal, Variable
from planner.launch.megatron_choices import (
    SHARP_NEEDS,
    environment,
    megatron_choices,
)
from planner.launch.megatron_flags import Flag, Group, as_argv, flag
from planner.launch.megatron_model import model_groups, model_refusals
from planner.launch.megatron_rules import attention_refusals, run_refusals
from planner.launch.megatron_run import (
    LOW_PRECISIONS,
    TECHNIQUES,
    VARIABLES,
    batch_flags,
    degree_flags,
    is_fsdp,
    kernel_flags,
    offload_flags,
    optimizer_flags,
    precision_flags,
    recompute_flags,
    sharding_flags,
    sharp_group,
    technique_flags,
    with_techniques,
)
from planner.launch.megatron_states import is_hybrid
from planner.launch.options import MEGATRON

PROGRAM = "${MEGATRON_LM}/pretrain_gpt.py"
HYBRID_PROGRAM = "${MEGATRON_LM}/pretrain_hybrid.py"


def job_refusals(job: Job) -> tuple[Refusal, ...]:
    """What Megatron-LM cannot express of the job."""
    return (*model_refusals(job.model, job.seq), *attention_refusals(job))


def refusals(launch: Launch) -> tuple[Refusal, ...]:
    """What Megatron-LM cannot express of the plan."""
    return (*job_refusals(launch.job), *run_refusals(launch))


def files(launch: Launch) -> Files:  # noqa: ARG001 (the writers' contract)
    """None: the launcher script holds every flag."""
    return {}


def command(launch: Launch) -> Command:
    """`pretrain_gpt.py`, or a hybrid's `pretrain_hybrid.py`, with the plan's flags."""
    words, comments = as_argv(groups(launch))
    return Command(
        argv=(HYBRID_PROGRAM if is_hybrid(launch.job.model) else PROGRAM, *words),
        variables=(
            *VARIABLES,
            Variable("LEARNING_RATE", "1e-4", "PLACEHOLDER: yours"),
            Variable("MIN_LEARNING_RATE", "1e-5", "PLACEHOLDER: yours"),
        ),
        branches=_branches(launch),
        environment=environment(launch),
        comments={index + 1: title for index, title in comments.items()},
        demands={"MEGATRON_LM": "folder of a Megatron-LM checkout of core 0.19"},
    )


def groups(launch: Launch) -> tuple[Group, ...]:
    """All flags, in titled groups."""
    model, job = launch.job.model, launch.job
    low = job.precision in LOW_PRECISIONS
    return with_techniques(
        launch,
        *model_groups(model, launch.plan.seq, dropout=job.dropout, low=low),
        Group("parallel degrees", degree_flags(launch)),
        Group("batch", batch_flags(launch)),
        Group("data parallelism", sharding_flags(launch)),
        Group("recomputation", recompute_flags(launch)),
        Group("activations on the host", offload_flags(launch)),
        Group("precision", precision_flags(launch)),
        Group("optimizer", optimizer_flags(launch)),
        Group("kernels", kernel_flags(launch)),
        Group(TECHNIQUES, technique_flags(launch)),
        Group(
            "what to see of the first steps",
            (flag("--log-interval", 1), flag("--log-throughput"), flag("--eval-iters", 0)),
        ),
        Group("PLACEHOLDERS, not part of the plan: replace them for a real run", _placeholders()),
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
        Branch("TENSORBOARD", ("--tensorboard-dir", "${TENSORBOARD}")),
    )


def _placeholders() -> tuple[Flag, ...]:
    """Hyperparameters: values that run, none that was chosen."""
    return (
        flag("--train-iters", "${TRAIN_STEPS}"),
        flag("--lr", "${LEARNING_RATE}"),
        flag("--min-lr", "${MIN_LEARNING_RATE}"),
        flag("--lr-decay-style", "cosine"),
        flag("--weight-decay", 0.1),
        flag("--adam-beta2", 0.95),
        flag("--clip-grad", 1.0),
    )


def choices(launch: Launch) -> tuple[Choice, ...]:
    """The settings worth a sentence."""
    return megatron_choices(launch)


def requirements(launch: Launch) -> tuple[str, ...]:
    """What the flags are written for."""
    needs = ["Megatron-LM of core 0.19 (megatron-core 0.19.x; Python 3.12)", "torch >= 2.6, CUDA"]
    if launch.job.framework.name != "megatron-local":
        needs.append("Transformer Engine >= 2.8, for norms, attention, fp8 and fp4")
    if launch.job.optimizer.family not in ("adamw", "sgd"):
        needs.append("emerging-optimizers, for Muon and Lion")
    if sharp_group(launch):
        needs.append(SHARP_NEEDS)
    needs += launch.technique_needs
    return tuple(needs)
