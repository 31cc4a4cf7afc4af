"""Writer for Megatron-LM's `pretrain_gpt.py` (megatron-core 0.19).

All settings are flags, so there is no configuration file: the launcher script holds them, in
groups with a comment each. What the parser would not notice is refused before
(`planner.launch.dialects.megatron.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.job.job import Job
from planner.job.quantities import seconds, share
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
from planner.launch.dialects.megatron.run import (
    LOW_PRECISIONS,
    TECHNIQUES,
    VARIABLES,
    attention_refusals,
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
from planner.launch.dialects.megatron.states import is_hybrid
from planner.launch.options import MEGATRON, MEGATRON_PRECISIONS
from planner.launch.time_limit import save_steps, stop_variable
from planner.predict.plan_text import fraction_text

plan_refusals = run_refusals
PROGRAM = "${MEGATRON_LM}/pretrain_gpt.py"
HYBRID_PROGRAM = "${MEGATRON_LM}/pretrain_hybrid.py"


def job_refusals(job: Job) -> Iterator[Refusal]:
    """What Megatron-LM cannot express of the job."""
    yield from model_refusals(job.model, job.seq)
    yield from attention_refusals(job)


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
    needs = ["Megatron-LM of core 0.19 (megatron-core 0.19.x; Python 3.12)", "torch >= 2.6, CUDA"]
    if launch.job.framework.name != "megatron-local":
        needs.append("Transformer Engine >= 2.8, for norms, attention, fp8 and fp4")
    if launch.job.optimizer.family not in ("adamw", "sgd"):
        needs.append("emerging-optimizers, for Muon and Lion")
    if sharp_group(launch):
        needs.append(SHARP_NEEDS)
    needs += launch.technique_needs
    return tuple(needs)


# What context parallelism sends, by --cp-comm-type.
_EXCHANGES: Mapping[str, str] = {
    "p2p": "keys and values travel in a ring beside attention",
    "all_gather": "keys and values are gathered before attention",
    "a2a": "an all-to-all gives each rank some heads of the whole sequence (Ulysses)",
    "a2a+p2p": "an all-to-all among neighbours splits the heads, a ring between these groups "
    "passes keys and values",
}


SHARP_NEEDS = (
    "NCCL's SHARP plugin (nccl-rdma-sharp-plugins, part of HPC-X) and an aggregation manager "
    "(sharp_am) on the fabric; NVIDIA's Slurm plugin also wants SBATCH_NETWORK=sharp"
)


def environment(launch: Launch) -> Mapping[str, tuple[str, str]]:
    """Variables that Megatron-LM demands or the plan's overlap rests on."""
    degrees, queues = launch.plan.degrees, "CUDA_DEVICE_MAX_CONNECTIONS"
    ruled = not launch.job.cluster.gpu.traits.launches_in_order
    found: dict[str, tuple[str, str]] = {}
    if is_fsdp(launch):
        found[queues] = "8", "FSDP's gathers must not queue behind products; 1 is refused"
    elif "ep-overlap" in launch.plan.techniques and ruled:
        why = "the experts' exchange must not queue behind the products of another micro-batch"
        found[queues] = "32", why
    elif max(degrees.tp, degrees.cp) > 1 and ruled:
        why = "one queue: collectives start before the products that hide them"
        found[queues] = "1", f"{why} (Megatron demands it)"
    if launch.plan.activation_offload:
        why = "Transformer Engine from 2.10 on must not offload weights too (Megatron demands it)"
        found["NVTE_CPU_OFFLOAD_V1"] = "1", why
    return found


def choices(launch: Launch) -> Iterator[ExplainedSetting]:
    """A sentence for each setting that the plan decides."""
    yield from _degrees(launch)
    yield from _sharding(launch)
    yield from (ExplainedSetting(one.name, one.words) for one in launch.techniques)
    yield from _rest(launch)


def _degrees(launch: Launch) -> Iterator[ExplainedSetting]:
    degrees, domain = launch.plan.degrees, launch.job.cluster.scale_up_domain_gpus
    if degrees.tp > 1:
        where, split = "inside" if degrees.tp <= domain else "beyond", launch.splits_sequence
        yield ExplainedSetting(
            f"tensor parallel {degrees.tp}" + (", sequence parallel" if split else ""),
            f"splits every product{' and the activations around it' if split else ''}, {where} "
            f"the scale-up domain of {domain} GPUs",
        )
    if degrees.pp > 1:
        chunks = f" in {degrees.vpp} chunks each" if degrees.vpp > 1 else ""
        bubble = (degrees.pp - 1) / (degrees.vpp * degrees.grad_acc)
        yield ExplainedSetting(
            f"pipeline {degrees.pp}{chunks}",
            f"splits the layers over nodes with little traffic; {degrees.grad_acc} micro-batches "
            f"leave an ideal bubble of {share(bubble)} of the compute",
        )
    if degrees.pp > 1 and not launch.plan.layout.is_even:
        stages = ", ".join(str(count) for count in launch.plan.layout.stage_layers)
        yield ExplainedSetting(
            f"layers by stage {stages}",
            "stages with the embedding or the head hold fewer layers, so that none waits",
        )
    if launch.plan.layout.mtp_standalone:
        yield ExplainedSetting(
            f"multi-token prediction on stage {degrees.pp - 2}",
            "with head and loss it would take longer than any stage of layers",
        )
    if degrees.cp > 1:
        kind = launch.plan.cp_comm_type or "p2p"
        yield ExplainedSetting(
            f"context parallel {degrees.cp}", f"splits the sequence; {_EXCHANGES[kind]}"
        )
    if launch.job.model.moe is not None:
        yield ExplainedSetting(
            f"expert parallel {degrees.ep}, expert tensor parallel {degrees.etp}",
            f"each rank holds {launch.job.model.moe.experts // degrees.ep} of "
            f"{launch.job.model.moe.experts} experts; tokens travel by all-to-all",
        )


def _sharding(launch: Launch) -> Iterator[ExplainedSetting]:
    degrees = launch.plan.degrees
    replicas = degrees.dp * degrees.cp
    if degrees.zero == 1:
        over = degrees.shard or replicas
        yield ExplainedSetting(
            "distributed optimizer",
            f"shards optimizer state and master weights over {over} ranks (ZeRO-1)",
        )
    elif is_fsdp(launch):
        what = "gradients" if degrees.zero == 2 else "gradients and weights"
        yield ExplainedSetting(
            "Megatron-FSDP", f"shards optimizer state, {what} over {replicas} ranks"
        )
    if reduces_in_bf16(launch) and "bf16-gradients" not in launch.plan.techniques:
        yield ExplainedSetting("gradients in bf16", "half the memory and traffic of fp32 gradients")
    group = sharp_group(launch)
    if group:
        yield ExplainedSetting(
            f"SHARP for the group {group}",
            "InfiniBand switches add up the gradients; without plugin, aggregation manager or a "
            "free tree NCCL takes the hosts unasked (NCCL_DEBUG=INFO shows COLLNET or NVLS)",
        )
    if launch.job.framework.overlap.gradient_reduction > 0 and replicas > 1:
        yield ExplainedSetting(
            "overlap of gradient reduction and parameter gather",
            "the predicted step time counts on it: without it the exchange is exposed",
        )


def _rest(launch: Launch) -> Iterator[ExplainedSetting]:
    plan = launch.plan
    if plan.recompute != "none":
        yield ExplainedSetting(
            f"recompute {plan.recompute}", "runs again in backward what would not fit"
        )
    if plan.activation_offload:
        yield ExplainedSetting(
            f"{fraction_text(plan.activation_offload, plan.activation_offload_fraction)} on the "
            "host",
            "copied beside the compute of the next layer; one copy of a module in flight, so that "
            "copies that lag hold up the next and do not pile up on the GPU",
        )
    yield ExplainedSetting(
        f"micro-batch {plan.degrees.mbs}, {plan.degrees.grad_acc} a step",
        f"make {plan.gbs:,} sequences, {plan.gbs_tokens:,} tokens, with {plan.degrees.dp} replicas",
    )
    if plan.ramp:
        first = plan.ramp[0]
        yield ExplainedSetting(
            f"batch ramp from {first.gbs:,} sequences",
            f"the first steps take {seconds(first.step_time_s)}, not what the last batch takes",
        )
    if launch.job.precision not in ("bf16", "fp16"):
        yield ExplainedSetting(
            f"products in {launch.job.precision}", "weights and norms stay in bf16"
        )
    if plan.optimizer != "adamw" or plan.optimizer_offload:
        offload = (
            f", {share(plan.optimizer_offload, 0)} on the CPU" if plan.optimizer_offload else ""
        )
        yield ExplainedSetting(
            f"optimizer {plan.optimizer}{offload}", "less optimizer state on the GPU"
        )
