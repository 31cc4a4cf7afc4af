"""Costs of one shape as linear terms: floats from the compiled core, integers for the solver.

Seconds round down and bytes round up, so that the solver's objective is a lower bound of the
kernel's step time and a layout that it calls fitting does fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from constraints.layout import LayoutContext, Recomputation
from constraints.memory import MemoryNumbers
from constraints.rule import Placement
from planner.cost import bounds, linear, schedule
from planner.cost import fields as f
from planner.cost.tables import Array, FrameworkInputs
from planner.cost_model import CostedShapes, CostModel
from planner.frameworks import FrameworkProfile, RecomputeMode
from planner.modules import Module
from planner.search.arrays import job_placement

# Rounding each layer up costs at most 130 layers · 16 KiB = 2 MiB of a stage.
MEMORY_UNIT_BYTES = 16 * 1024
# The time unit is this share of a layer's forward and backward pass. Finer units cost the solver
# seconds on some models: its linear relaxation dislikes large coefficients.
TIME_RESOLUTION = 1 / 2_000


@dataclass(frozen=True)
class ShapeTerms:
    """Linear terms of one shape; columns TERM_*, SCALAR_* of `planner.cost.linear`.

    `layer[kind]` per layer; `stage[stage]` summed over embedding, head and MTP (and a tied
    head's copy of the embedding); `held[stage, HELD_*]` micro-batches; `kept_bytes[stage]` what
    those keep for backward, `ends_bytes[stage]` the largest of their working sets and the logits.
    `bubble_share`: see `planner.cost.schedule`, at most that of any layout.
    """

    pp: int
    vpp: int
    grad_acc: int
    layer: Array
    stage: Array
    held: Array
    kept_bytes: Array
    ends_bytes: Array
    gather_bytes: Array
    scalars: Array
    framework: FrameworkInputs
    bubble_share: float
    placement: Placement = "straight"


_CODES: dict[Recomputation, int] = {
    "none": bounds.RECOMPUTE_NONE,
    "all": bounds.RECOMPUTE_ALL,
    "shared": bounds.RECOMPUTE_SOME,
    "free": bounds.RECOMPUTE_SOME,
}


def recompute_code(mode: Recomputation) -> int:
    """RECOMPUTE_* of the bounds."""
    return _CODES[mode]


def recomputation(mode: RecomputeMode, framework: FrameworkProfile) -> Recomputation:
    """How many layers may recompute in a mode.

    Only `full` recomputation can be limited to some layers, where the framework can say so;
    module lists hold for every layer.
    """
    if mode.mask == Module.NOTHING:
        return "none"
    if Module.FULL not in mode.mask:
        return "all"
    choices: dict[str, Recomputation] = {
        "same-on-every-stage": "shared",
        "any": "free",
        "all-or-none": "all",
    }
    return choices[framework.parallelism.recompute_layers]


def shape_terms(
    cost_model: CostModel, costed: CostedShapes, row: int, mode: Recomputation
) -> ShapeTerms:
    """The linear terms of one costed shape; `mode`: how many layers may recompute."""
    shape = costed.shapes[row]
    key = int(shape[f.SHAPE_KEY])
    job, framework = cost_model.job_inputs, cost_model.framework_inputs
    terms, held, scalars = linear.layout_terms(
        shape,
        costed.keys[key],
        costed.costs[key],
        job,
        framework,
        cost_model.gpu_inputs,
        cost_model.link_inputs,
    )
    return assemble(terms, held, scalars, shape, cost_model, costed.costs[key], mode)


def assemble(
    terms: Array,
    held: Array,
    scalars: Array,
    shape: Array,
    cost_model: CostModel,
    costs: Array,
    mode: Recomputation,
) -> ShapeTerms:
    """Group the pieces that are pinned to stages: embedding, head and MTP."""
    job, framework = cost_model.job_inputs, cost_model.framework_inputs
    kinds, pp = job.kinds, int(shape[f.SHAPE_PP])
    placement = job_placement(cost_model.job) if pp > 1 else "straight"
    head = schedule.head_stage(framework.schedule, pp)
    first, last = terms[kinds], terms[kinds + 1 :]
    multiples = np.array([1.0, float(job.mtp_layers)])[: len(last), None]
    stage = np.zeros((pp, linear.TERM_COLUMNS))
    stage[0] += first
    stage[head] += (last * multiples).sum(axis=0)
    kept = np.zeros(pp)
    kept[0] += first[linear.TERM_SAVED] * held[0, linear.HELD_FULL]
    ahead = (last * multiples)[:, [linear.TERM_SAVED, linear.TERM_WEIGHT_SAVED]].sum(axis=0)
    kept[head] += ahead @ held[head, [linear.HELD_HEAD, linear.HELD_HEAD_DEFERRED]]
    ends = np.zeros(pp)
    ends[0] = first[linear.TERM_WORKING]
    ends[head] = max(ends[head], last[:, linear.TERM_WORKING].max(), scalars[linear.SCALAR_LOGITS])
    root = np.zeros(pp)
    root[0] += costs[kinds, f.PIECE_DENSE_PARAMETERS]
    root[head] += costs[kinds + 1, f.PIECE_DENSE_PARAMETERS]
    if job.tied_embeddings > 0 and head > 0:
        tied = [
            linear.TERM_PERSISTENT,
            linear.TERM_TEMPORARY,
            linear.TERM_OPTIMIZER,
            linear.TERM_REDUCE,
            linear.TERM_ALL_GATHER,
        ]
        stage[-1, tied] += first[tied]
    if placement == "mirrored":
        stage, kept, root = stage + stage[::-1], kept + kept[::-1], root + root[::-1]
        ends = np.maximum(ends, ends[::-1])
    return ShapeTerms(
        pp=pp,
        vpp=int(shape[f.SHAPE_VPP]),
        grad_acc=int(shape[f.SHAPE_GRAD_ACC]),
        layer=terms[:kinds],
        stage=stage,
        held=held,
        kept_bytes=kept,
        ends_bytes=ends,
        gather_bytes=scalars[linear.SCALAR_GATHER_BASE] + root * scalars[linear.SCALAR_ROOT_GATHER],
        scalars=scalars,
        framework=framework,
        bubble_share=bounds.shape_bubble_share(
            shape,
            terms,
            cost_model.totals,
            _total_s(terms, cost_model, mode),
            _CODES[mode],
            framework,
        ),
        placement=placement,
    )


def _total_s(terms: Array, cost_model: CostModel, mode: Recomputation) -> float:
    """Seconds of a micro-batch through the model, every layer recomputed or none."""
    return bounds.model_seconds(terms, cost_model.totals, _CODES[mode], cost_model.job_inputs)


def allocated_limit_bytes(terms: ShapeTerms, limit_bytes: float) -> float:
    """Live bytes that a limit on reserved memory leaves: (limit - fixed) / (1 + fragmentation)."""
    fixed = float(terms.scalars[linear.SCALAR_FIXED_BYTES])
    return (limit_bytes - fixed) / (1.0 + terms.framework.fragmentation)


def memory_numbers(terms: ShapeTerms, limit_bytes: float) -> MemoryNumbers:
    """Stage memory in units of MEMORY_UNIT_BYTES: use rounded up, limit and savings down."""
    layer = terms.layer
    kept_bytes, freed_bytes = layer_bytes(terms)
    persistent, temporary = layer[:, linear.TERM_PERSISTENT], layer[:, linear.TERM_TEMPORARY]
    kept = terms.stage[:, linear.TERM_PERSISTENT]
    working, dropped = layer[:, linear.TERM_WORKING], layer[:, linear.TERM_DROPPED]
    return MemoryNumbers(
        unit_bytes=MEMORY_UNIT_BYTES,
        limit=floor(allocated_limit_bytes(terms, limit_bytes) / MEMORY_UNIT_BYTES),
        stage=_up(kept + terms.kept_bytes + terms.gather_bytes),
        layer=tuple(_up(persistent + own) for own in kept_bytes),
        freed=tuple(_down(own) for own in freed_bytes),
        ends=_up(terms.ends_bytes),
        working=_up(working),
        working_recomputed=_up(working + np.maximum(dropped, 0.0)),
        gather=_up(layer[:, linear.TERM_GATHER]),
        optimizer_stage=_up(kept + terms.stage[:, linear.TERM_TEMPORARY]),
        optimizer_layer=_up(persistent + temporary),
    )


def layer_bytes(terms: ShapeTerms) -> tuple[Array, Array]:
    """[stage, kind] bytes that one layer keeps for backward, and those that it drops if it
    recomputes, over the micro-batches that the stage holds."""
    saved, dropped, weight = (
        terms.layer[:, column]
        for column in (linear.TERM_SAVED, linear.TERM_DROPPED, linear.TERM_WEIGHT_SAVED)
    )
    full = terms.held[:, linear.HELD_FULL, None]
    kept = [
        full * size
        + np.array(
            [
                [_deferred(own, size, weight, kind) for kind in range(len(weight))]
                for own in terms.held
            ]
        )
        for size in (saved, saved - dropped)
    ]
    return kept[0], kept[0] - kept[1]


def _deferred(held: Array, saved: Array, weight: Array, kind: int) -> float:
    return schedule.deferred_bytes(float(saved[kind]), float(weight[kind]), schedule.Held(*held))


def _up(sizes: Iterable[float]) -> tuple[int, ...]:
    return tuple(ceil(size / MEMORY_UNIT_BYTES) for size in sizes)


def _down(sizes: Iterable[float]) -> tuple[int, ...]:
    return tuple(floor(size / MEMORY_UNIT_BYTES) for size in sizes)


def layout_context(
    terms: ShapeTerms,
    kinds: tuple[int, ...],
    framework: FrameworkProfile,
    mode: RecomputeMode,
    limit_bytes: float,
) -> LayoutContext:
    """What the layout rules read for one shape under a memory limit."""
    return LayoutContext(
        pp=terms.pp,
        vpp=terms.vpp,
        kinds=kinds,
        layouts="even" if terms.placement == "mirrored" else framework.parallelism.layouts,
        recomputation=recomputation(mode, framework),
        memory=memory_numbers(terms, limit_bytes),
        placement=terms.placement,
    )
