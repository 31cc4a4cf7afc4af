"""Costs of one shape as linear terms: floats from the compiled core, integers for the solver.

Seconds round down and bytes round up, so that the solver's objective is a lower bound of the
kernel's step time and a layout that it calls fitting does fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from constraints.layout import LayoutContext
from constraints.memory import MemoryNumbers
from planner.cost import fields as f
from planner.cost import linear
from planner.cost.tables import Array, FrameworkInputs
from planner.cost_model import CostedShapes, CostModel
from planner.frameworks import FrameworkProfile, RecomputeMode
from planner.recomputation import recomputation

# Rounding each layer up costs at most 130 layers · 16 KiB = 2 MiB of a stage.
MEMORY_UNIT_BYTES = 16 * 1024
# The time unit is this share of a layer's forward and backward pass. Finer units cost the solver
# seconds on some models: its linear relaxation dislikes large coefficients.
TIME_RESOLUTION = 1 / 2_000


@dataclass(frozen=True)
class ShapeTerms:
    """Linear terms of one shape; columns TERM_*, SCALAR_* of `planner.cost.linear`.

    `layer[kind]` per layer; `stage[stage]` summed over embedding, head and MTP (and a tied
    head's copy of the embedding); `kept_bytes[stage]` what those keep for backward,
    `ends_bytes[stage]` the largest of their working sets and the logits.
    """

    pp: int
    vpp: int
    grad_acc: int
    layer: Array
    stage: Array
    in_flight: Array
    kept_bytes: Array
    ends_bytes: Array
    gather_bytes: Array
    scalars: Array
    framework: FrameworkInputs


def shape_terms(cost_model: CostModel, costed: CostedShapes, row: int) -> ShapeTerms:
    """The linear terms of one costed shape."""
    shape = costed.shapes[row]
    key = int(shape[f.SHAPE_KEY])
    job, framework = cost_model.job_inputs, cost_model.framework_inputs
    terms, in_flight, scalars = linear.layout_terms(
        shape,
        costed.keys[key],
        costed.costs[key],
        job,
        framework,
        cost_model.gpu_inputs,
        cost_model.link_inputs,
    )
    return assemble(terms, in_flight, scalars, shape, cost_model, costed.costs[key])


def assemble(
    terms: Array,
    in_flight: Array,
    scalars: Array,
    shape: Array,
    cost_model: CostModel,
    costs: Array,
) -> ShapeTerms:
    """Group the pieces that are pinned to the first and last stage."""
    job, framework = cost_model.job_inputs, cost_model.framework_inputs
    kinds, pp = job.kinds, int(shape[f.SHAPE_PP])
    first, last = terms[kinds], terms[kinds + 1 :]
    multiples = np.array([1.0, float(job.mtp_layers)])[: len(last), None]
    stage = np.zeros((pp, linear.TERM_COLUMNS))
    stage[0] += first
    stage[-1] += (last * multiples).sum(axis=0)
    kept = np.zeros(pp)
    kept[0] += first[linear.TERM_SAVED] * in_flight[0]
    kept[-1] += (last * multiples)[:, linear.TERM_SAVED].sum()
    ends = np.zeros(pp)
    ends[0] = first[linear.TERM_WORKING]
    ends[-1] = max(ends[-1], last[:, linear.TERM_WORKING].max(), scalars[linear.SCALAR_LOGITS])
    root = np.zeros(pp)
    root[0] += costs[kinds, f.PIECE_DENSE_PARAMETERS]
    root[-1] += costs[kinds + 1, f.PIECE_DENSE_PARAMETERS]
    if job.tied_embeddings > 0 and pp > 1:
        tied = [
            linear.TERM_PERSISTENT,
            linear.TERM_TEMPORARY,
            linear.TERM_OPTIMIZER,
            linear.TERM_REDUCE,
            linear.TERM_ALL_GATHER,
        ]
        stage[-1, tied] += first[tied]
    return ShapeTerms(
        pp=pp,
        vpp=int(shape[f.SHAPE_VPP]),
        grad_acc=int(shape[f.SHAPE_GRAD_ACC]),
        layer=terms[:kinds],
        stage=stage,
        in_flight=in_flight,
        kept_bytes=kept,
        ends_bytes=ends,
        gather_bytes=scalars[linear.SCALAR_GATHER_BASE] + root * scalars[linear.SCALAR_ROOT_GATHER],
        scalars=scalars,
        framework=framework,
    )


def allocated_limit_bytes(terms: ShapeTerms, limit_bytes: float) -> float:
    """Live bytes that a limit on reserved memory leaves: (limit - fixed) / (1 + fragmentation)."""
    fixed = float(terms.scalars[linear.SCALAR_FIXED_BYTES])
    return (limit_bytes - fixed) / (1.0 + terms.framework.fragmentation)


def memory_numbers(terms: ShapeTerms, limit_bytes: float) -> MemoryNumbers:
    """Stage memory in units of MEMORY_UNIT_BYTES: use rounded up, limit and savings down."""
    layer, flight = terms.layer, terms.in_flight
    persistent, temporary = layer[:, linear.TERM_PERSISTENT], layer[:, linear.TERM_TEMPORARY]
    kept = terms.stage[:, linear.TERM_PERSISTENT]
    working, dropped = layer[:, linear.TERM_WORKING], layer[:, linear.TERM_DROPPED]
    return MemoryNumbers(
        unit_bytes=MEMORY_UNIT_BYTES,
        limit=floor(allocated_limit_bytes(terms, limit_bytes) / MEMORY_UNIT_BYTES),
        stage=_up(kept + terms.kept_bytes + terms.gather_bytes),
        layer=tuple(_up(persistent + n * layer[:, linear.TERM_SAVED]) for n in flight),
        freed=tuple(_down(n * dropped) for n in flight),
        ends=_up(terms.ends_bytes),
        working=_up(working),
        working_recomputed=_up(working + np.maximum(dropped, 0.0)),
        gather=_up(layer[:, linear.TERM_GATHER]),
        optimizer_stage=_up(kept + terms.stage[:, linear.TERM_TEMPORARY]),
        optimizer_layer=_up(persistent + temporary),
    )


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
        layouts=framework.parallelism.layouts,
        recomputation=recomputation(mode, framework),
        memory=memory_numbers(terms, limit_bytes),
    )
