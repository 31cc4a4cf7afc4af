"""A configuration: one way to run a job, in the form that packages exchange it, and its
conversions.

People and rules read degrees and a `Layout`; the cost core reads rows of degree columns and counts
of pieces per stage. This module converts between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from constraints.axes import OF_LAYER
from constraints.layout_context import LayoutContext, Recomputation
from constraints.numbers import IntArray
from constraints.rule import Layout, Placement
from planner.cost.layout import mirror, place_vocab_layers, usual_split
from planner.job.images import first_layers
from planner.job.job import Job
from planner.job.offload import grouped_modules
from planner.job.recomputation import layer_modes, recomputation
from planner.job.recompute import RecomputeMode
from planner.job.request import Request
from planner.job.schedules import schedule_named
from planner.predict.cost_model import Columns, CostModel, KernelLayout
from planner.predict.cost_tables import greedy_costs, may_part
from planner.predict.plan import Degrees, Plan
from planner.predict.saved import shape_groups


def decided_job(job: Job, plan: Plan) -> Job:
    """The job with the choices that its search made for a plan."""
    fraction = plan.activation_offload_fraction
    return job.at_choice(plan.optimizer_offload, plan.activation_offload, fraction, plan.techniques)


def decided_request(request: Request, plan: Plan) -> Request:
    """The request with the choices that its search made for a plan: offload, context exchange,
    techniques. Costing, launching or explaining a plan starts from it."""
    decided: dict[str, object] = {}
    if request.optimizer_offload == "search" or plan.optimizer_offload:
        # A paged optimizer's share is never given by the user.
        decided["optimizer_offload"] = plan.optimizer_offload
    if request.activation_offload == "search":
        decided["activation_offload"] = ",".join(plan.activation_offload) or "off"
    if request.activation_offload_fraction != plan.activation_offload_fraction:
        decided["activation_offload_fraction"] = plan.activation_offload_fraction
    if plan.degrees.cp > 1 and request.cp_comm_type is None:
        decided |= {"cp_comm_type": plan.cp_comm_type or "p2p", "cp_sizes": plan.cp_sizes}
    decided |= _decided_techniques(request, plan)
    return request.model_copy(update=decided) if decided else request


def _decided_techniques(request: Request, plan: Plan) -> dict[str, object]:
    """`use` and `without` of a request so that it has exactly the techniques of the plan."""
    mentioned = (*request.use, *request.without)
    offered = [
        technique
        for technique in request.find_framework().techniques
        if technique.name not in mentioned
    ]
    used = tuple(one.name for one in offered if one.use != "on" and one.name in plan.techniques)
    searched = [one.name for one in offered if one.use == "searched"]
    left = tuple(name for name in searched if name not in used)
    if not (used or left):
        return {}
    return {"use": (*request.use, *used), "without": (*request.without, *left)}


@dataclass(frozen=True)
class Configuration:
    """One way to run a job.

    `job` has its offload and techniques decided. `mode` is the recompute mode of the shape, one of
    the job's; `layout` says which layers are on which stage, and which recompute in which mode.
    `place` is the row of `planner.job.pool.Pool.places` that assigns stages to machines.
    `planner.predict.evaluate.checked` says whether the configuration is legal.
    """

    job: Job
    degrees: Degrees
    mode: RecomputeMode
    layout: Layout
    place: int = field(default=0, kw_only=True)

    @classmethod
    def even(
        cls, job: Job, degrees: Degrees, recompute: str = "none", *, mtp_standalone: bool = False
    ) -> Configuration:
        """The framework's usual layout at these degrees, all layers in one recompute mode."""
        mode = job.framework.recompute_mode(recompute)
        layout = even_layout(job, degrees.pp, degrees.vpp, mode, mtp_standalone)
        place = place_of(job, degrees.pp)
        return cls(replace(job, recompute=(mode,)), degrees, mode, layout, place=place)

    @classmethod
    def of_row(cls, job: Job, columns: Columns, row: int, layout: Layout) -> Configuration:
        """The configuration of one row of a job's shape columns, with a layout."""
        mode = job.recompute[int(columns["recompute"][row])]
        place = int(columns["place"][row]) if "place" in columns else 0
        return cls(job, row_degrees(columns, row), mode, layout, place=place)

    @classmethod
    def of_plan(cls, job: Job, plan: Plan) -> Configuration:
        """The configuration of a plan that a search found for a job."""
        modes = tuple(map(job.framework.recompute_mode, plan.modes))
        decided = replace(decided_job(job, plan), recompute=modes)
        place = place_of(job, plan.degrees.pp, plan.stage_gpus)
        return cls(decided, plan.degrees, modes[0], plan.layout, place=place)

    @property
    def recompute(self) -> str:
        """Name of the recompute mode."""
        return self.mode.name

    @cached_property
    def columns(self) -> dict[str, IntArray]:
        """The configuration as columns of shapes with one row."""
        columns = degree_columns([self.degrees], self.job.recompute.index(self.mode))
        return columns | {"place": np.array([self.place], dtype=np.int64)}

    @property
    def machines(self) -> tuple[int, ...]:
        """The machine of each stage."""
        pool = self.job.pool
        return (0,) * self.degrees.pp if pool is None else pool.places[self.place]

    @cached_property
    def context(self) -> LayoutContext:
        """The facts about this configuration that the layout rules read, without a memory limit."""
        return plain_context(self.job, self.degrees.pp, self.degrees.vpp, self.mode)

    @cached_property
    def groups(self) -> tuple[int, ...] | None:
        """Number of modules that offload activations in a layer of each kind; None if all
        activations of the offloaded modules are offloaded, or none are: the number matters only if
        a fraction is."""
        job, degrees = self.job, self.degrees
        if job.offload_fraction == 1.0:
            return None
        return shape_groups(job, self.mode, **{name: getattr(degrees, name) for name in OF_LAYER})

    def kernel_layout(self, cost_model: CostModel) -> KernelLayout:
        """The layout in the form that the core reads: pieces per stage."""
        return kernel_layout(cost_model, self.layout, self.context)


def place_of(job: Job, pp: int, stage_gpus: Sequence[str] = ()) -> int:
    """Row of the pool's places for a pipeline of `pp` stages: the row whose GPU types are in the
    order of `stage_gpus`, else the first row."""
    if job.pool is None:
        return 0
    rows = job.pool.places_of(pp)
    names = [part.gpu.name for part in job.pool.parts]
    order = [*dict.fromkeys(stage_gpus)]
    for row in rows:
        if [*dict.fromkeys(names[part] for part in job.pool.places[row])] == order:
            return row
    return rows[0] if rows else 0


# --- degrees and columns --------------------------------------------------------------------------


def degree_columns(rows: Iterable[Degrees], recompute: int = 0) -> dict[str, IntArray]:
    """Columns of shapes, one row per `Degrees`; `recompute`: index of the job's mode."""
    records = [degrees.model_dump() | {"gbs": degrees.gbs} for degrees in rows]
    names = (*Degrees.model_fields, "gbs")
    columns = {
        name: np.array([record[name] for record in records], dtype=np.int64) for name in names
    }
    return columns | {"recompute": np.full(len(records), recompute, dtype=np.int64)}


def row_degrees(columns: Columns, row: int) -> Degrees:
    """The degrees of one row of columns."""
    return Degrees(**{name: int(columns[name][row]) for name in Degrees.model_fields})


def rows_of(
    columns: Columns, job: Job, degrees: Degrees, recompute: str, place: int | None = None
) -> list[int]:
    """Rows of a job's columns with these degrees and this recompute mode, and at one of the pool's
    places if `place` is given."""
    mode = next((at for at, one in enumerate(job.recompute) if one.name == recompute), -1)
    wanted = degrees.model_dump() | {"recompute": mode}
    if place is not None and "place" in columns:
        wanted["place"] = place
    same = [columns[name] == value for name, value in wanted.items()]
    return [int(row) for row in np.flatnonzero(np.all(same, axis=0))]


# --- layouts --------------------------------------------------------------------------------------


def job_placement(job: Job) -> Placement:
    """How the job's pipeline schedule assigns the blocks of layers to stages."""
    return schedule_named(job.schedule).placement


def plain_context(job: Job, pp: int, vpp: int, mode: RecomputeMode | None = None) -> LayoutContext:
    """The facts that the layout rules read, for a pipeline of `pp` stages with `vpp` blocks each,
    without a memory limit. `mode` None: no layer recomputes."""
    kind: Recomputation = "none" if mode is None else recomputation(mode, job.framework)
    placement = job_placement(job) if pp > 1 else "straight"
    return LayoutContext(
        pp=pp,
        vpp=vpp,
        kinds=job.model.piece_indices,
        layouts="even" if placement == "mirrored" else job.framework.parallelism.layouts,
        recomputation=kind,
        placement=placement,
        modes=tuple(one.name for one in layer_modes(job, mode)) if mode else (),
        standalone_vocab=job.framework.parallelism.standalone_vocab,
        mtp_standalone=bool(may_part(job)),
        usual_split=job_split(job, pp * vpp),
        offload_modules=grouped_modules(job.framework, job.activation_offload),
        offload_fraction=job.offload_fraction,
        first_block=first_layers(job.model),
    )


def job_split(job: Job, blocks: int) -> tuple[int, ...]:
    """Number of layers of each of `blocks` pipeline blocks in the framework's default split."""
    model, parallelism = job.model, job.framework.parallelism
    return usual_split(len(model.piece_sequence), blocks, *greedy_costs(model, parallelism))


def even_layout(
    job: Job, pp: int, vpp: int, mode: RecomputeMode | None = None, mtp_standalone: bool = False
) -> Layout:
    """The layout in which the kernel costs a shape: the framework's default, else the most even.

    `mode`: the mode of all layers; `mtp_standalone`: multi-token prediction has a block to itself,
    before the block of head and loss.
    """
    ctx = plain_context(job, pp, vpp)
    blocks = ctx.usual_split
    if mtp_standalone and ctx.may_part:
        blocks = (*usual_split(ctx.layers, ctx.blocks - 2), 0, 0)
    return in_mode(Layout(pp, vpp, blocks, {}, ctx.placement, mtp_standalone), mode)


def in_mode(layout: Layout, mode: RecomputeMode | None) -> Layout:
    """The layout with every layer in one recompute mode; without recomputation if `mode` is None or
    recomputes nothing."""
    again = {mode.name: layout.stage_layers} if mode and mode.mask else {}
    return replace(layout, recomputed=again)


def kernel_layout(cost_model: CostModel, layout: Layout, ctx: LayoutContext) -> KernelLayout:
    """A layout in the form that the cost core reads: for each stage the number of layers of each
    kind, the number of these that recompute in the layout's first mode, and the embedding, head and
    multi-token prediction that it holds."""
    job = cost_model.job_inputs
    counts = np.zeros((job.pieces, layout.pp))
    recomputed = np.zeros_like(counts)
    schedule, standalone = cost_model.framework_inputs.schedule, float(layout.mtp_standalone)
    place_vocab_layers(counts, layout.pp, job, schedule, standalone)
    if layout.placement == "mirrored":
        mirror(counts, layout.pp)
    counts[: job.kinds] = np.array(ctx.counts(layout)).T
    for again in ctx.mode_counts(layout)[:1]:
        recomputed[: job.kinds] = np.array(again).T
    return KernelLayout(counts, recomputed, layout.mtp_standalone)
