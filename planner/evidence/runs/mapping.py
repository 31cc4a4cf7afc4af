"""Map a measured row to a job and one configuration of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from constraints.axes import ContextKind
from constraints.rule import Layout
from hardware.curves import load_compute_curves
from hardware.schema import Cluster
from planner.evidence.runs.contradictions import demand_consistent, in_known_words
from planner.evidence.runs.lengths import longest_row, samples_of
from planner.evidence.runs.machine import cluster_of
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.objectives import objective_of
from planner.evidence.runs.recomputing import recompute_mode, recomputed_share
from planner.evidence.runs.rows import (
    PLAN_COLUMN,
    MeasuredRow,
    named,
    yes_or_no,
    zero_stage_named,
)
from planner.evidence.runs.software import UNFUSED_MEGATRON, profile_of
from planner.evidence.runs.stated import (
    block_layers,
    demand_counts,
    demand_possible,
    memory_gap,
    offloaded_modules,
    optimizer_name,
    optimizer_share,
    states_dropout,
    time_gap,
    unstated_chunks,
)
from planner.evidence.runs.tuned import tuning_of
from planner.evidence.runs.vision import whole_model
from planner.job.frameworks.adapters import tuned_profile
from planner.job.frameworks.losses import with_objective
from planner.job.frameworks.profile import FrameworkProfile, on_gpu
from planner.job.frameworks.switches import framework_sharp
from planner.job.job import BatchTarget, Job, offered_exchanges
from planner.job.optimizers import load_optimizer
from planner.job.reads import reads_of
from planner.job.specs import ModelSpec
from planner.predict.configuration import Configuration, decided_request, even_layout, in_mode
from planner.predict.evaluate import settled
from planner.predict.homes import weights_home
from planner.predict.plan import Degrees, Plan

# Data parallelism without ZeRO unless a row states it.
_UNSHARDED = (
    UNFUSED_MEGATRON, "megatron-deepspeed", "megatron-deepspeed-bf16", "nemo-2022",
    "hf-transformers",
)  # fmt: skip

# A `kernel` of plain torch operators (transformers' `attn_implementation` says eager).
_UNFUSED = ("torch", "eager")

# From this ZeRO stage on, data parallelism by itself is a usual way to train a large model.
_SHARDED = 2


@dataclass(frozen=True)
class MappedRow(Configuration):
    """The configuration of a measured row, as far as the row states it.

    `memory_gap` and `time_gap`: why its memory or step time cannot be predicted, otherwise None.
    `recomputed_share`: share of each stage's layers to which the recompute mode applies.
    """

    row: MeasuredRow
    assumed: tuple[str, ...] = ()
    memory_gap: str | None = None
    time_gap: str | None = None
    recomputed_share: float = 1.0

    @property
    def batch_share(self) -> float:
        """Sequences of the row's batch divided by those of the degrees: below 1 if the last
        micro-batch is smaller, above 1 if a step runs its pipeline several times."""
        stated = self.row.integer("gbs")
        return stated / self.degrees.gbs if stated else 1.0


def map_row(row: MeasuredRow) -> MappedRow:
    """Job and configuration of a row. UnpredictableRowError with the reason."""
    if row.text(PLAN_COLUMN):
        return _planned(row)
    demand_counts(row)
    demand_consistent(row)
    met, (row, unknown) = row, in_known_words(row)
    model = whole_model(row)
    cluster = cluster_of(row)
    precision = _precision(row, cluster)
    profile, assumed = profile_of(row, precision)
    cluster = framework_sharp(cluster, profile, asked=False)
    degrees = _degrees(row, profile)
    mode = recompute_mode(row, profile)
    eager = _is_eager(row, profile) or _lacks_wide_heads(row, model, cluster)
    dropout = states_dropout(row)
    tuning = tuning_of(row, model)
    objective = objective_of(row, tuning, profile)
    model = model.with_frozen(tuning.frozen_layers)
    job = Job(
        model=model.with_scores() if objective.rules.scores else model,
        cluster=cluster,
        framework=with_objective(
            tuned_profile(on_gpu(profile, cluster.gpu.architecture), tuning, model), objective
        ),
        optimizer=load_optimizer(optimizer_name(row)),
        batch=BatchTarget(float(degrees.gbs), exact=True),
        seq=longest_row(row) or 0,
        precision=precision,
        attention="eager" if eager else "flash",
        attention_kernel=_attention_kernel(row, profile, model, cluster, eager=eager),
        recompute=(mode,),
        dropout=profile.saved.dropout if dropout is None else dropout,
        schedule=_schedule(row, degrees),
        optimizer_offload=optimizer_share(row),
        activation_offload=offloaded_modules(row),
        context_kinds=_context_kinds(row, profile, model),
        tuning=tuning,
        samples=samples_of(row),
        objective=objective,
        reads=reads_of(objective, None),
    )
    demand_possible(row, job, degrees)
    mapped = MappedRow(
        job, degrees, mode, _layout(row, job, degrees), met, (*assumed, *unknown),
        memory_gap(row, fetches=weights_home(job.framework, job.optimizer_setting) != "gpu"),
        time_gap(row), recomputed_share(row, mode, job),
    )  # fmt: skip
    # The driver decides where the states of a paged optimizer are.
    return replace(mapped, job=settled(mapped).job) if job.optimizer.paged else mapped


def _layout(row: MeasuredRow, job: Job, degrees: Degrees) -> Layout:
    """The stated layers of each block, or the framework's usual layout, all in the job's recompute
    mode."""
    blocks = block_layers(row, degrees, job.model.layers)
    even = even_layout(job, degrees.pp, degrees.vpp)
    if blocks is not None:
        even = replace(even, block_layers=blocks)
    return in_mode(even, job.recompute[0])


def _planned(row: MeasuredRow) -> MappedRow:
    """A run of the first plan in a file."""
    from planner.search.plan_file import read_plan_file

    result = read_plan_file(Path(row.text(PLAN_COLUMN) or ""))
    plan = result.plans[0]
    return planned_row(row, decided_request(result.request, plan).resolve(), plan)


def planned_row(row: MeasuredRow, job: Job, plan: Plan) -> MappedRow:
    """A run of a job's plan, with the plan's degrees, recomputation and layout."""
    modes = tuple(map(job.framework.recompute_mode, plan.modes))
    used = replace(
        job,
        cluster=job.cluster.with_gpus(plan.degrees.gpus),
        batch=BatchTarget(float(plan.gbs), exact=True),
        recompute=modes,
    )
    return MappedRow(used, plan.degrees, modes[0], plan.layout, row)


def _degrees(row: MeasuredRow, profile: FrameworkProfile) -> Degrees:
    tp, pp, cp, ep = (row.integer(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    vpp = row.integer("vpp") or unstated_chunks(row, profile, pp)
    gpus = row.integer("num_gpus") or 1
    in_turn = row.says("schedule", "device_map")
    pp = gpus if in_turn and pp == 1 else pp
    zero = _zero(row, profile)
    if (
        zero < _SHARDED
        and gpus > 1
        and not (in_turn or row.text("tp") or row.text("pp") or row.text("dp"))
    ):
        raise UnpredictableRowError("tp and pp are not stated")
    dp = max(1, gpus // (tp * pp * cp))
    gbs = row.integer("gbs")
    mbs = row.integer("mbs")
    if gbs is None and mbs is None:
        raise UnpredictableRowError("neither mbs nor gbs is stated")
    if mbs is None:
        mbs = _usual_mbs(row, profile, tp)
    if gbs is None:
        gbs = mbs * dp
    if gbs < mbs * dp:
        mbs = max(1, gbs // dp)
    # If mbs·dp does not divide the batch, the last micro-batch is smaller.
    grad_acc = max(1, math.ceil(gbs / (mbs * dp)))
    if pp > 1:
        # NeMo AutoModel fills and drains the pipeline once for each local batch.
        grad_acc //= grad_acc if in_turn else row.integer("pipeline_runs") or 1
    etp = row.integer("etp") or (1 if ep > 1 else tp)
    return Degrees(
        tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp,
        zero=zero, mbs=mbs, grad_acc=grad_acc, shard=_shard(row, dp * cp),
    )  # fmt: skip


def _usual_mbs(row: MeasuredRow, profile: FrameworkProfile, tp: int) -> int:
    """The smallest micro-batch of a run that states none: one sequence, or the fewest for which
    Megatron's fused softmax runs (`planner.cost.piece_attention.softmax_is_fused`).
    `planner.evidence.runs.predict` chooses among larger ones."""
    if not _is_eager(row, profile) or row.text("kernel") in _UNFUSED:
        return 1
    return 4 // math.gcd(4, max(1, (row.integer("heads") or 4) // tp))


def _shard(row: MeasuredRow, ranks: int) -> int:
    """The number of ranks that share a parameter if a row has replicas of shards (HSDP); 0: all of
    them."""
    size = row.integer("zero_group") or 0
    if not size and row.says("zero", r"hsdp|hybrid_?shard"):
        size = cluster_of(row).gpus_per_node
    return size if 0 < size < ranks and ranks % size == 0 else 0


def _context_kinds(
    row: MeasuredRow, profile: FrameworkProfile, model: ModelSpec
) -> tuple[ContextKind, ...]:
    """The stated exchange of context parallelism, or the framework's usual one."""
    stated = named("cp_comm", row.fact("cp_comm"))
    usual = offered_exchanges(profile, model, row.integer("seq") or 0)
    return (cast(ContextKind, stated),) if stated else usual[:1]


def _zero(row: MeasuredRow, profile: FrameworkProfile) -> int:
    text = row.text("zero")
    if text is None:
        stage = profile.parallelism.zero_stages[0] if profile.name not in _UNSHARDED else 0
    elif (stated := zero_stage_named(text)) is not None:
        stage = stated
    else:
        raise UnpredictableRowError(f"zero {text!r} names no ZeRO stage")
    if stage > 1 and (row.integer("pp") or 1) > 1 and profile.name.startswith("torchtitan"):
        # Pipelines of torch keep weights gathered from the first micro-batch to the last, and
        # reduce gradients after the last: shards of the optimizer alone (torchtitan's
        # `reshard_after_forward` and torch/distributed/pipelining/stage.py, last_backward).
        return 1
    if profile.name.startswith("megatron-deepspeed") and row.says("precision", "^bf16"):
        return max(1, stage)  # BF16_Optimizer shares its states out under stage 0 too.
    return stage


def _precision(row: MeasuredRow, cluster: Cluster) -> str:
    gpu = cluster.gpu
    text = row.text("precision") or ("bf16" if "bf16" in gpu.peak_flop_per_s else "fp16")
    precision = named("precision", text.lower())
    if precision is None:
        raise UnpredictableRowError(f"precision {text!r} is not known")
    if precision not in gpu.peak_flop_per_s:
        raise UnpredictableRowError(f"{gpu.name} has no {precision} matrix arithmetic")
    return precision


def _is_eager(row: MeasuredRow, profile: FrameworkProfile) -> bool:
    kernel, flash = row.text("kernel") or "", row.text("flash")
    if kernel in ("fused", *_UNFUSED):
        return True
    if flash is not None:
        return yes_or_no(flash) is False
    if "pax" in (row.text("framework") or "").lower():
        # XLA fuses no attention; Transformer Engine brings a fused one (JAX-Toolbox, Pax README).
        return "te" not in re.split(r"\W+", (row.text("precision") or "").lower())
    # FlashAttention's kernels only take 16 bits. So a script in fp32 or TF32 that names no library
    # is assumed to have unfused attention (four peaks of one source: predicted 23 to 31 % too low
    # with fused attention, 1 to 6 % too high with unfused).
    wide = row.says("precision", "fp32|tf32") and row.says("framework", "^plain pytorch")
    return wide or profile.attention == "eager"


# Widest heads that cuDNN trained on Blackwell before 9.11, of June 2025 (transformer_engine/common/
# fused_attn/fused_attn.cpp: "9.11: d_qk = 192, d_v = 128 + Blackwell + bprop"; NVIDIA/
# cudnn-frontend, pull request 145). FlashAttention-3 runs on Hopper alone.
_NARROW_HEADS = 128
_BEFORE_WIDE_HEADS = r"\b(v|nemo )25\.0[1-6]"


# FlashAttention-2 is of July 2023 (arXiv 2307.08691).
_BEFORE_FLASH2 = r"\b(20(1\d|2[0-2])|2023-0[1-6])\b"


def _lacks_wide_heads(row: MeasuredRow, model: ModelSpec, cluster: Cluster) -> bool:
    """Whether Transformer Engine lacked a fused kernel for the model's heads on the row's GPU."""
    if model.mla is None or cluster.gpu.architecture != "blackwell":
        return False
    width = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
    return width > _NARROW_HEADS and row.says("software", _BEFORE_WIDE_HEADS)


def _attention_kernel(
    row: MeasuredRow, profile: FrameworkProfile, model: ModelSpec, cluster: Cluster, *, eager: bool
) -> str:
    """The attention kernel family: as stated, or usual for the GPU's generation and the row's
    software."""
    if eager:
        return "torch" if row.text("kernel") in _UNFUSED else "eager"
    kernel = _fused_kernel(row, profile, cluster, special=model.special_attention)
    curves = load_compute_curves(cluster.gpu).curves
    if kernel == "auto" or kernel in curves.attention:
        return kernel
    # Triton's kernels of FlashAttention 1 were only measured on Ampere; FlashAttention-2 runs on no
    # earlier GPU.
    return "flash2" if "flash2" in curves.attention else curves.default_attention


def _fused_kernel(
    row: MeasuredRow, profile: FrameworkProfile, cluster: Cluster, *, special: bool
) -> str:
    """The name of a fused kernel, whether or not the GPU has it."""
    stated = f"{row.text('kernel') or ''} {row.text('flash') or ''}".lower()
    old = row.says("software", _BEFORE_FLASH2)
    if "v1" in stated or "fa1" in stated or old:
        return "flash1"
    if re.search(r"fa-?[34]|flash_?attention-?_?[34]|cudnn", stated):
        return "flash3_or_cudnn" if cluster.gpu.traits.prefers_cudnn else "flash2"
    # Megatron's blocks without Transformer Engine call the flash-attn package; torch's
    # flex_attention generates Triton kernels of FlashAttention-2's design.
    local = row.says("transformer_impl", "^local")
    if local or re.search(r"fa-?2|flash_?attention-?_?2|flex_?att", stated):
        return "flash2"
    framework = (row.text("framework") or "").lower()
    if re.search(r"composer|llm-foundry", framework):
        # Its models bias the scores (ALiBi), which among fused kernels only Triton's first could.
        return "flash1"
    architecture, cudnn = cluster.gpu.architecture, cluster.gpu.traits.prefers_cudnn
    on = profile.fused_attention.on(architecture, special=special)
    if re.search(r"megatron|nemo|bridge|primus|pax|maxtext|jax", framework):
        on = "flash3_or_cudnn" if cudnn else on
    if on == "auto" and cluster.gpu.vendor == "nvidia" and not cudnn:
        return "flash2"
    return on


def _schedule(row: MeasuredRow, degrees: Degrees) -> str | None:
    """The row's pipeline schedule. UnpredictableRowError if it is not modelled."""
    if degrees.pp == 1:
        return None
    usual = "dualpipe" if "dualpipe" in (row.text("framework") or "").lower() else "1f1b"
    text = (row.text("schedule") or usual).lower()
    name = named("schedule", text)
    if name is None:
        raise UnpredictableRowError(f"schedule {text!r} is not modelled")
    return name or None
