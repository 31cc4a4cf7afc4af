"""Memory of every pipeline stage of a configuration over a step, and what lies outside tensors.

The bridge between a configuration (job, degrees, layout) and the timeline of one rank: which
layers a stage holds, what it keeps in flight, what its communicators and allocator take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from constraints.layout import LayoutContext, block_recomputed
from constraints.rule import Layout
from planner.cost_tables import op_context
from planner.frameworks import RecomputeMode
from planner.frameworks.profile import DtypeMode
from planner.frameworks.tensors import DataParallelBuckets
from planner.job import Job
from planner.memory.moments import Rank
from planner.memory.offload import staying_layers
from planner.memory.rank import RankShape
from planner.memory.timeline import PhaseMemory, StepSettings, make_rank, rank_timeline
from planner.memory.update import extra_state_bytes, largest_update_bytes
from planner.ops.rows import Piece
from planner.ops.table import pieces
from planner.optimizer_terms import gradients_on_gpu, moment_bytes, trained_profile
from planner.plan import Degrees
from planner.recomputation import recomputation
from planner.schedules import schedule_named

if TYPE_CHECKING:
    from planner.cost.schedule import Held


@dataclass(frozen=True, slots=True)
class StageAccount:
    """Bytes on one GPU of a pipeline stage.

    `first_step`, `later_steps`: phases in order, each with name, terms {name: bytes} and `at`
    (the piece at whose moment the phase is heaviest). `outside`: bytes outside live tensors by
    name: allocator rounding and fragmentation, CUDA context, one entry a
    communicator. `reserved_names`: those of them that torch's allocator reports as reserved.
    """

    stage: int
    layers: int
    in_flight: float
    first_step: tuple[PhaseMemory, ...]
    later_steps: tuple[PhaseMemory, ...]
    outside: Mapping[str, float]
    reserved_names: frozenset[str] = frozenset({"fragmentation"})

    @property
    def peak(self) -> PhaseMemory:
        """The heaviest phase of all steps."""
        return max((*self.first_step, *self.later_steps), key=lambda phase: phase.total_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Live tensors at the peak: `torch.cuda.max_memory_allocated`."""
        return self.peak.total_bytes

    @property
    def reserved_bytes(self) -> float:
        """What the allocator holds: `torch.cuda.max_memory_reserved`."""
        own = sum(self.outside[name] for name in self.reserved_names)
        return self.allocated_bytes + own

    @property
    def total_bytes(self) -> float:
        """What the driver reports for the process (nvidia-smi)."""
        return self.allocated_bytes + sum(self.outside.values())


def stage_accounts(
    job: Job, degrees: Degrees, layout: Layout, mode: RecomputeMode | None = None
) -> tuple[StageAccount, ...]:
    """Accounts of all pipeline stages, first to last.

    `layout` says which layers live and recompute where; `mode` what recomputing layers run again
    (default: the job's first mode). Degrees and layout are taken as legal: the rules of
    `constraints` check them.
    """
    return tuple(account(job, degrees, layout, stage, mode) for stage in range(degrees.pp))


def account(
    job: Job, degrees: Degrees, layout: Layout, stage: int, mode: RecomputeMode | None = None
) -> StageAccount:
    """Account of one pipeline stage; arguments as `stage_accounts`."""
    rank = stage_rank(job, degrees, layout, stage, mode)
    timeline = rank_timeline(rank)
    outside = outside_bytes(job, degrees, timeline.peak.total_bytes)
    return StageAccount(
        stage,
        len(rank.layers),
        rank.settings.in_flight,
        timeline.first_step,
        timeline.later_steps,
        outside,
    )


def stage_rank(
    job: Job, degrees: Degrees, layout: Layout, stage: int, mode: RecomputeMode | None = None
) -> Rank:
    """What one GPU of a pipeline stage holds; arguments as `stage_accounts`."""
    mode = job.recompute[0] if mode is None else mode
    ctx = _layout_context(job, layout, mode)
    layers, again = _stage_layers(layout, stage, ctx)
    plain = op_context(job)
    trained = trained_profile(plain.profile, job.optimizer_setting)
    if plain.mode != "bf16":
        # The profile has its dtype mode already; a second time would undo the optimizer's types.
        trained = trained.model_copy(update={"modes": (DtypeMode(name=plain.mode),)})
    context = replace(plain, profile=trained)
    held = stage_held(job, degrees, stage)
    ends = stage_ends(job, degrees.pp, stage)
    own_schedule = schedule_named(job.schedule)
    shape = RankShape(
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=degrees.etp,
        shards=degrees.shard if degrees.shard and degrees.zero else degrees.dp * degrees.cp,
        zero=degrees.zero,
        mbs=degrees.mbs,
        sequence_parallel=job.framework.parallelism.sequence_parallel == "with-tp",
        recompute=mode.mask,
        recompute_share=mode.share,
        recompute_span=mode.span,
    )
    table = pieces(plain)
    predictors = stage_predictors(job, layout, stage)
    own = _stage_pieces(job, table, layers, ends, predictors)
    settings = StepSettings(
        layers=layers,
        recomputed=again,
        staying=staying_layers(job, layout, ctx, shape, stage)
        if layout.offload_fraction < 1.0
        else None,
        embedding=ends[0],
        head=ends[1],
        mtp=predictors,
        mtp_losses=job.model.mtp_layers if ends[1] else 0,
        chunks=len(layout.stage_blocks(stage)),
        in_flight=held.full,
        head_in_flight=held.head,
        split_backward=degrees.pp > 1 and own_schedule.splits_backward,
        deferred=held.deferred,
        head_deferred=held.head_deferred,
        late=(held.late_full, held.late_deferred) if held.late_deferred > held.deferred else None,
        grad_acc=degrees.grad_acc,
        moment_bytes=moment_bytes(context.profile, job.optimizer_setting),
        # The trained profile says what a list kernel copies: nothing if it is another.
        optimizer_kernel="foreach",
        extra_state_bytes=extra_state_bytes(own, plain, shape, job.optimizer_setting),
        update_bytes=largest_update_bytes(table, plain, shape, job.optimizer_setting),
        gradients_on_gpu=gradients_on_gpu(context.profile, job.optimizer_setting),
        ddp=_buckets(job, degrees),
        workspace_bytes=job.framework.outside.workspace_bytes,
    )
    return make_rank(context, shape, settings)


def _stage_pieces(
    job: Job,
    table: tuple[Piece, ...],
    layers: tuple[int, ...],
    ends: tuple[bool, bool],
    predictors: int,
) -> tuple[Piece, ...]:
    """Pieces that a stage updates: a tied head away from the embedding owns a copy of it, and
    so may multi-token prediction."""
    embedding, head = ends
    kinds = len(job.model.kinds)
    own = [table[job.model.kind_indices[index]] for index in layers]
    looks_up = predictors and job.framework.parallelism.mtp_copies_embedding
    if embedding or looks_up or (head and job.model.tied_embeddings):
        own.append(table[kinds])
    if head:
        own.append(table[kinds + 1])
    return (*own, *table[kinds + 2 : kinds + 3] * predictors)


def _buckets(job: Job, degrees: Degrees) -> DataParallelBuckets | None:
    """Buckets of DistributedDataParallel where the framework uses it."""
    copied = job.framework.state.ddp_bucket_copies > 0
    used = copied and degrees.zero == 0 and degrees.dp * degrees.cp > 1
    return DataParallelBuckets() if used else None


def _layout_context(job: Job, layout: Layout, mode: RecomputeMode) -> LayoutContext:
    return LayoutContext(
        layout.pp,
        layout.vpp,
        job.model.kind_indices,
        job.framework.parallelism.layouts,
        recomputation(mode, job.framework),
        placement=layout.placement,
    )


def _stage_layers(
    layout: Layout, stage: int, ctx: LayoutContext
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Indices into the model's layers of those on a stage, and which of them recompute."""
    taken = block_recomputed(layout, ctx) or (0,) * len(layout.block_layers)
    starts = tuple(accumulate(layout.block_layers, initial=0))
    layers: list[int] = []
    again: list[bool] = []
    for block in layout.stage_blocks(stage):
        count = layout.block_layers[block]
        layers += range(starts[block], starts[block] + count)
        again += [position < taken[block] for position in range(count)]
    return tuple(layers), tuple(again)


def stage_held(job: Job, degrees: Degrees, stage: int) -> Held:
    """Micro-batches that a stage holds at its peak, as the compiled core counts."""
    from planner.cost.schedule import held_microbatches

    pp, vpp, grad_acc = map(float, (degrees.pp, degrees.vpp, degrees.grad_acc))
    return held_microbatches(float(stage), pp, vpp, grad_acc, schedule_named(job.schedule).code)


def stage_predictors(job: Job, layout: Layout, stage: int) -> int:
    """Modules of multi-token prediction on a stage: they are with the head, or apart on the stage
    before it."""
    if layout.mtp_apart:
        return job.model.mtp_layers if stage == layout.pp - 2 else 0
    return job.model.mtp_layers if stage_ends(job, layout.pp, stage)[1] else 0


def stage_ends(job: Job, pp: int, stage: int) -> tuple[bool, bool]:
    """Whether a stage holds the embedding and whether the head: the first and the last, but in a
    V both the first; two copies of the model bring both to either end."""
    placement = schedule_named(job.schedule).placement if pp > 1 else "straight"
    first, last = stage == 0, stage == pp - 1
    if placement == "mirrored":
        return first or last, first or last
    return first, first if placement == "folded" else last


def outside_bytes(job: Job, degrees: Degrees, allocated_bytes: float) -> dict[str, float]:
    """Bytes outside live tensors by name; evidence is in the framework's and the GPU's files."""
    outside = job.framework.outside
    terms = {
        "fragmentation": outside.fragmentation * allocated_bytes,
        "context": job.cluster.gpu.context_bytes,
    }
    return terms | {
        f"communicator {name}": outside.communicator_bytes for name in communicators(degrees)
    }


def communicators(degrees: Degrees) -> tuple[str, ...]:
    """Communicators that a rank is a member of and that hold buffers, by name."""
    groups = {
        "tp": degrees.tp,
        "cp": degrees.cp,
        "dp": degrees.dp * degrees.cp,
        "pp": degrees.pp,
        "ep": degrees.ep,
    }
    names = [name for name, size in groups.items() if size > 1]
    return (*names, "embedding") if degrees.pp > 1 else tuple(names)
