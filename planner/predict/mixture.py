"""Layouts in which layers of one kind are not alike, costed by the kernel as several kinds.

A layer that recomputes in another mode than its shape's becomes a separate kind. For memory it is a
plain layer whose kept tensors and working set are those of its mode, and whose backward contains
the repeated work, so every maximum and phase of the cost core is valid for it. The same applies to
layers whose activations stay on the GPU if only a fraction is offloaded: a framework's fraction
leaves the last groups of every chunk there (`constraints.offload`). A layer with some groups on the
GPU counts as resident in bytes and as offloaded in seconds, which overstates both by less than a
layer of each chunk.

Pieces are the kinds, the kinds again for each variant, then the ends. Searches choose no such
layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from constraints.layout_context import LayoutContext
from constraints.offload import resident_counts
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array, FrameworkInputs
from planner.job.recompute import RecomputeMode
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostedShapes, CostModel, KernelLayout, LayoutInputs

_PASS_LINKS = slice(f.PIECE_LINKS + f.LINK_PASS, f.PIECE_LINKS + 2 * f.LINK_PASS)
_AGAIN_LINKS = slice(f.PIECE_LINKS + 2 * f.LINK_PASS, f.PIECE_LINKS + 3 * f.LINK_PASS)
_MEMORY = [f.STEP_PEAK_BYTES, f.STEP_PEAK_STAGE, f.STEP_ALLOCATED_BYTES]
_OF_TIME = [f.STAGE_FORWARD_S, f.STAGE_BACKWARD_S, f.STAGE_OFFLOADED]


@dataclass(frozen=True)
class CostedLayout:
    """A layout costed by the kernel: STEP_* vector, [stage, STAGE_*] matrix, pieces per stage,
    their costs on the first machine, and the inputs of its memory on each machine."""

    step: Array
    stages: Array
    counts: KernelLayout
    costs: Array
    memory: tuple[LayoutInputs, ...]


def cost_layout(
    cost_model: CostModel, costed: CostedShapes, row: int, configuration: Configuration
) -> CostedLayout:
    """The kernel's figures for a configuration whose shape is row `row` of `costed`."""
    heavy, timed = zip(
        *(
            kernel_inputs(machine, costed, row, configuration, at)
            for at, machine in enumerate(cost_model.machines)
        ),
        strict=True,
    )
    step, stages = cost_model.cost_inputs(timed)
    if timed[0] is not heavy[0]:
        held, sizes = cost_model.cost_inputs(heavy)
        step[_MEMORY] = held[_MEMORY]
        if configuration.groups is not None:
            sizes[:, _OF_TIME] = stages[:, _OF_TIME]
        stages = sizes
    return CostedLayout(step, stages, timed[0].layout, timed[0].costs, heavy)


def cost_configuration(cost_model: CostModel, configuration: Configuration) -> CostedLayout:
    """The kernel's figures for a configuration that is not costed yet."""
    priced = cost_model.price_shapes(configuration.columns)
    return cost_layout(cost_model, priced, 0, configuration)


def kernel_inputs(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    configuration: Configuration,
    machine: int = 0,
) -> tuple[LayoutInputs, LayoutInputs]:
    """Two sets of inputs (for memory, for seconds) to cost a configuration on the machine of
    `cost_model`. They are one object if all layers of a kind are alike; otherwise layers that
    differ count as a kind of their own."""
    layout, ctx, groups = configuration.layout, configuration.context, configuration.groups
    counts = configuration.kernel_layout(cost_model)
    plain = cost_model.layout_inputs(costed, row, counts, machine)
    if groups is not None:
        resident = cost_model.cost_resident(plain.key[None, :])[0]
        inputs = _wider(plain, [resident], cost_model.framework_inputs._replace(reloads_ahead=1.0))
        heavy, timed = (
            _split(counts, np.array(stays, dtype=float).T, plain.job.kinds)
            for stays in resident_counts(layout, ctx, groups)
        )
        return replace(inputs, layout=heavy), replace(inputs, layout=timed)
    if not set(layout.recomputed) - set(ctx.modes[:1]):
        return plain, plain
    find = cost_model.job.framework.recompute_mode
    others = [mode_costs(cost_model, plain.key, find(name)) for name in ctx.modes[1:]]
    # For time these layers count as recomputing, so that the repeated work is reported as
    # recomputation.
    heavy, timed = (_mixed(counts, layout, ctx, again=again) for again in (False, True))
    return (
        replace(_wider(plain, list(map(as_plain, others))), layout=heavy),
        replace(_wider(plain, others), layout=timed),
    )


def mode_costs(cost_model: CostModel, key: Array, mode: RecomputeMode) -> Array:
    """Piece costs [pieces, PIECE_COLUMNS] of a key in another recompute mode."""
    other = key.copy()
    other[[f.KEY["modules"], f.KEY["share"], f.KEY["span"]]] = int(mode.mask), mode.share, mode.span
    costs: Array = cost_model.cost_keys(other[None, :])[0]
    return costs


def as_plain(costs: Array) -> Array:
    """Costs of recomputing layers, written as those of plain layers that keep and need as much (see
    the module docstring)."""
    out = costs.copy()
    out[:, f.BACKWARD_COLUMNS] += out[:, f.RECOMPUTE_COLUMNS]
    out[:, f.RECOMPUTE_COLUMNS] = 0.0
    out[:, _PASS_LINKS] += out[:, _AGAIN_LINKS]
    out[:, _AGAIN_LINKS] = 0.0
    out[:, f.PIECE_SAVED] = out[:, f.PIECE_SAVED_RECOMPUTED]
    out[:, f.PIECE_WORKING] += out[:, f.PIECE_AGAIN]
    out[:, f.PIECE_SOFTMAX] += out[:, f.PIECE_AGAIN]
    out[:, f.PIECE_AGAIN] = 0.0
    return out


def _wider(
    plain: LayoutInputs, others: list[Array], framework: FrameworkInputs | None = None
) -> LayoutInputs:
    """The inputs with further kinds of layers: for each element of `others` a copy of all layer
    kinds, whose costs it gives. `framework` replaces the inputs of the framework, if given."""
    job, kinds = plain.job, plain.job.kinds
    return replace(
        plain,
        costs=stack(plain.costs, others, kinds),
        job=job._replace(
            kinds=kinds * (1 + len(others)),
            pieces=job.pieces + kinds * len(others),
            kinds_in_order=0.0,
        ),
        framework=framework or plain.framework,
    )


def stack(base: Array, others: list[Array], kinds: int) -> Array:
    """Rows of the table `base` with copies of the layer kinds inserted: first the layer kinds, then
    the same kinds once for each variant in `others`, with the costs of that variant, then
    embedding, head and the rest."""
    rows = [base[:kinds], *(other[:kinds] for other in others), base[kinds:]]
    return np.ascontiguousarray(np.concatenate(rows))


def _mixed(
    counts: KernelLayout, layout: Layout, ctx: LayoutContext, *, again: bool
) -> KernelLayout:
    """Pieces per stage, where layers in other modes than the shape's are separate kinds. `again`:
    they also count as recomputing."""
    taken = np.array(ctx.mode_counts(layout)[1:], dtype=float).transpose(0, 2, 1)
    kinds, plain = taken.shape[1], counts.counts.copy()
    plain[:kinds] -= taken.sum(axis=0)
    remade = list(taken) if again else [np.zeros_like(item) for item in taken]
    return KernelLayout(
        stack(plain, list(taken), kinds),
        stack(counts.recomputed, remade, kinds),
        layout.mtp_standalone,
    )


def _split(plain: KernelLayout, resident: Array, kinds: int) -> KernelLayout:
    """Pieces per stage, where layers whose activations stay on the GPU are separate kinds.
    `resident[kind, stage]`: number of such layers."""

    def parts(counts: Array, stay: Array) -> Array:
        leave = counts.copy()
        leave[:kinds] -= stay
        return stack(leave, [stay], kinds)

    again = np.where(plain.recomputed[:kinds] > 0.0, resident, 0.0)
    return KernelLayout(
        parts(plain.counts, resident), parts(plain.recomputed, again), plain.mtp_standalone
    )
