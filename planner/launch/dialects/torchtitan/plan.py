"""A plan in torchtitan's terms: mesh degrees, pipeline parts, batch; what it cannot say; sections
with the reason for each setting; data and checkpoints.

Read in torchtitan 0.3.0 (distributed/parallel_dims.py, pipeline_parallel.py, fsdp.py, trainer.py)
and torch 2.13 (distributed/pipelining/schedules.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from planner.job.job import Job
from planner.job.modules import Module
from planner.launch.contract import (
    OFFLOADED,
    RESHARDING,
    TRAIN_STEPS,
    TRIAL_STEPS,
    WARMUP_STEPS,
    Files,
    Launch,
    Refusal,
    Variable,
    folder_variable,
    needed,
    ramp_refusals,
    rate_variable,
)
from planner.launch.options import ASYNC_TP_0_3, TORCHTITAN, last
from planner.launch.settings_text import SettingsSection, WrittenSetting
from planner.predict.plan import Degrees

# Those that run a backward pass of compiled blocks in one piece.
_WHOLE = ("1f1b", "interleaved", "gpipe")


@dataclass(frozen=True, slots=True)
class TitanMesh:
    """Data-parallel degrees: replicate · shard = dp; parameters are sharded over shard · cp."""

    replicate: int
    shard: int
    # fsdp_reshard_after_forward
    reshard: str


def mesh_of(degrees: Degrees) -> TitanMesh:
    """HSDP degrees and when parameters are sharded again.

    ZeRO-0: all replicated; ZeRO-2: sharded once, gathered weights stay through backward;
    ZeRO-3: gathered anew for backward. torchtitan's own default is ZeRO-3 without a pipeline and
    ZeRO-2 with one.
    """
    if degrees.zero == 0:
        return TitanMesh(degrees.dp, 1, "default")
    one_shard = degrees.shard or degrees.dp * degrees.cp
    shard = max(1, one_shard // degrees.cp)
    if degrees.zero == 2:
        return TitanMesh(degrees.dp // shard, shard, "never")
    return TitanMesh(degrees.dp // shard, shard, "always" if degrees.pp > 1 else "default")


def parts_of(launch: Launch) -> list[list[str]]:
    """Module names of every model part in pipeline order."""
    parts: list[list[str]] = []
    first = 0
    for count in launch.plan.layout.block_layers:
        parts.append([f"layers.{index}" for index in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """What torchtitan cannot express of a plan, its model apart."""
    schedule, recompute = launch.plan.schedule, launch.plan.recompute
    if launch.plan.degrees.pp > 1 and schedule not in _WHOLE:
        yield Refusal(
            f"schedule {schedule} splits the backward pass, and that of the compiled blocks which "
            "this plan was costed with is one piece: torch.distributed.pipelining runs it twice",
            "--schedule interleaved",
        )
    if recompute_kind(launch) == "every":
        text = f"torchtitan 0.3 no longer checkpoints every k-th layer ({recompute})"
        yield Refusal(text, "--recompute selective")


def run_refusals(job: Job) -> Iterator[Refusal]:
    """What torchtitan has not, whatever the plan."""
    if job.attention == "eager":
        yield Refusal("torchtitan has no eager attention", "--attention flash")
    if job.dropout:
        yield Refusal("torchtitan's models have no dropout", "a job without --dropout")
    yield from ramp_refusals(job, "torchtitan")


def recompute_kind(launch: Launch) -> str:
    """`none`, `selective`, `full`, `every` or `budget`: which form of checkpointing a plan has."""
    mode = launch.job.framework.recompute_mode(launch.plan.recompute)
    if mode.mask == Module.NOTHING or not launch.plan.layout.recomputed:
        return "none"
    if mode.budget is not None:
        return "budget"
    if mode.every > 1:
        return "every"
    return "selective" if Module.SELECTIVE_OP in mode.mask else "full"


HALF_STATES = "fused_opt_states_bf16"
BF16_STATES = {"exp_avg": "bf16", "exp_avg_sq": "bf16"}


def sections(launch: Launch) -> tuple[SettingsSection, ...]:
    """Arguments of the configuration's parts, in the order of the file."""
    return parallelism(launch), training(launch), _optimizer(launch), _compiled(launch)


def parallelism(launch: Launch) -> SettingsSection:
    """ParallelismConfig."""
    more = [WrittenSetting("enable_sequence_parallel", launch.splits_sequence)]
    if launch.plan.degrees.cp > 1:
        why = "balances the causal mask over the ranks, for FlexAttention"
        more.append(WrittenSetting("context_parallel_load_balancer", "ptrr", why))
    degrees, mesh = launch.plan.degrees, mesh_of(launch.plan.degrees)
    shards = "FSDP2 shards parameters, gradients and optimizer state over this times cp"
    split = f"with{'' if launch.splits_sequence else 'out'} sequence parallelism"
    return SettingsSection(
        "parallelism",
        (
            WrittenSetting(
                last(TORCHTITAN["replicate"]), mesh.replicate, _replicate_reason(launch)
            ),
            WrittenSetting(last(TORCHTITAN["shard"]), mesh.shard, shards),
            WrittenSetting(last(TORCHTITAN["zero"]), mesh.reshard, RESHARDING[degrees.zero]),
            WrittenSetting(last(TORCHTITAN["tp"]), degrees.tp, split if degrees.tp > 1 else ""),
            WrittenSetting(last(TORCHTITAN["cp"]), degrees.cp),
            WrittenSetting(last(TORCHTITAN["ep"]), degrees.ep, _expert_reason(launch)),
            *more,
            WrittenSetting(last(TORCHTITAN["pp"]), degrees.pp),
            *_pipeline(launch),
        ),
    )


def _compiled(launch: Launch) -> SettingsSection:
    """CompileConfig, and exchanges of tensor parallelism in pieces beside the products."""
    settings = [
        WrittenSetting(
            last(TORCHTITAN["eager-blocks"]), True, "the plan counts on compiled blocks"
        ),
        WrittenSetting("components", ["model", "loss"]),
    ]
    if "async-tp" in launch.plan.techniques:
        why = "exchanges in pieces beside the products, over NVLink; needs compiled blocks"
        settings.append(WrittenSetting(last(ASYNC_TP_0_3), True, why))
    return SettingsSection("compile", tuple(settings))


def _replicate_reason(launch: Launch) -> str:
    mesh = mesh_of(launch.plan.degrees)
    if mesh.replicate == 1:
        return ""
    if launch.plan.degrees.zero == 0:
        return "plain data parallelism: every rank holds all parameters of its stage"
    return f"HSDP: {mesh.replicate} replicas of a group that shards"


def _expert_reason(launch: Launch) -> str:
    degrees = launch.plan.degrees
    if degrees.ep == 1:
        return ""
    rest = mesh_of(degrees).shard * degrees.cp * degrees.tp // degrees.ep
    return f"experts over {degrees.ep} ranks out of dp_shard·cp·tp, sharded over the other {rest}"


def _pipeline(launch: Launch) -> list[WrittenSetting]:
    """Schedule, micro-batch and parts."""
    degrees = launch.plan.degrees
    if degrees.pp == 1:
        return []
    parts = ", ".join(str(count) for count in launch.plan.layout.block_layers)
    return [
        WrittenSetting(
            last(TORCHTITAN["schedule"]),
            TORCHTITAN["schedule"].text(launch.plan.schedule),
            f"{degrees.vpp} model parts a stage" if degrees.vpp > 1 else "",
        ),
        WrittenSetting(
            last(TORCHTITAN["microbatch"]),
            degrees.mbs,
            f"{degrees.grad_acc} micro-batches of this many sequences a step",
        ),
        WrittenSetting("module_fqns_per_model_part", parts_of(launch), f"layers: {parts}"),
    ]


def training(launch: Launch) -> SettingsSection:
    """TrainingConfig. A pipeline takes its micro-batches out of one local batch, anything else
    accumulates."""
    degrees = launch.plan.degrees
    local, accumulated, reason = degrees.mbs, degrees.grad_acc, "micro-batch of a rank"
    if degrees.pp > 1:
        local, accumulated = degrees.mbs * degrees.grad_acc, 1
        reason = (
            f"all {degrees.grad_acc} micro-batches of {degrees.mbs}: the pipeline takes them "
            "from here"
        )
    offload = launch.job.optimizer_offload > 0
    settings = (
        WrittenSetting(last(TORCHTITAN["seq"]), launch.plan.seq),
        WrittenSetting(last(TORCHTITAN["mbs"]), local, reason),
        WrittenSetting(
            last(TORCHTITAN["gbs"]),
            degrees.gbs,
            f"{local} · dp {degrees.dp} · {accumulated} of accumulation; "
            f"{launch.plan.gbs_tokens:,} tokens",
        ),
        WrittenSetting("dtype", "float32", "sharded parameters and optimizer state"),
        WrittenSetting("mixed_precision_param", "bfloat16", "gathered parameters and compute"),
        WrittenSetting("mixed_precision_reduce", "float32", "gradient reduction"),
        WrittenSetting("enable_cpu_offload", offload, OFFLOADED if offload else ""),
        WrittenSetting(
            "disable_cuda_graphs",
            True,
            "the prediction knows no CUDA graphs, and pipelines and all-to-all dispatch cannot be "
            "captured",
        ),
        WrittenSetting("steps", TRIAL_STEPS, "PLACEHOLDER: a first run", told=False),
    )
    return SettingsSection("training", settings)


def _optimizer(launch: Launch) -> SettingsSection:
    half = dict(launch.job.optimizer.states) == BF16_STATES
    kernel = TORCHTITAN["kernel"].text(launch.job.optimizer_setting.kernel)
    return SettingsSection(
        "optimizer",
        (
            WrittenSetting(
                last(TORCHTITAN["kernel"]),
                HALF_STATES if half else kernel,
                "AdamW with bf16 moments" if half else "AdamW, fp32 moments",
            ),
        ),
    )


SAMPLES = "sample_data"
VARIABLES = (
    needed(
        "HF_ASSETS",
        "folder with the model's tokenizer files",
        holds="${HF_ASSETS}/tokenizer.json",
    ),
    Variable(
        "DATASET",
        "",
        "folder of your texts, JSON lines with a field text; empty: samples",
        holds="${DATASET}",
    ),
    folder_variable("DATASET"),
    TRAIN_STEPS,
    WARMUP_STEPS,
    rate_variable("3e-4"),
)
ENVIRONMENT = {
    "PYTORCH_CUDA_ALLOC_CONF": (
        "expandable_segments:True",
        "less fragmentation, as torchtitan's own run_train.sh sets it",
    )
}
_LINES, _WORDS = 64, 512


def sample_files() -> Files:
    """Texts that torchtitan can read without the internet: numbers in words of their own."""
    lines = (
        json.dumps({"text": " ".join(f"{line * _WORDS + word:x}" for word in range(_WORDS))})
        for line in range(_LINES)
    )
    return {f"{SAMPLES}/samples.jsonl": "\n".join(lines) + "\n"}
