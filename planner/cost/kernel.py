"""The loops over keys and shapes; everything they compute lives in the other modules.

Rows of `out` are filled in place, so that threads can share a table (`planner.predict.cost_model`).
"""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import Row, Rows, jit
from planner.cost.frame import TRAFFIC_ROW, fill_group, fill_traffic, group_stages
from planner.cost.inputs import GpuInputs
from planner.cost.layer import piece_cost
from planner.cost.layout import usual_counts
from planner.cost.phase_records import GROUP_ROW
from planner.cost.stage import stage_memory
from planner.cost.step import evaluate_step, step_bounds
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def cost_keys(
    keys: Rows,
    ops: Rows,
    parameters: Rows,
    saved: Rows,
    collectives: Rows,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    network: Rows,
    out: Rows,
) -> None:
    """Fill the piece costs of every key: out[keys, pieces], zero before."""
    for index in range(keys.shape[0]):
        for piece in range(job.pieces):
            piece_cost(
                piece, keys[index], ops, parameters, saved, collectives, job, framework, gpu,
                network, out[index][piece],
            )  # fmt: skip


@jit
def cost_shapes(
    shapes: Rows,
    order: Array,
    keys: Rows,
    costs: Rows,
    prefix: Array,
    totals: Array,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    network: Rows,
    out: Rows,
) -> None:
    """Fill the step results of shapes in their even layouts, every layer recomputed as the key
    says, bounds over all layouts included: out[shapes], zero before.

    `order`: rows of the shapes to cost; those of one frame (SHAPE_FRAME) after each other, so that
    what depends on the frame alone is computed once.
    """
    most = 1
    for index in range(order.shape[0]):
        most = max(most, int(shapes[int(order[index])].pp))
    counts, nothing = np.zeros((job.pieces, most)), np.zeros((job.pieces, most))
    recomputed = np.zeros((job.pieces, most))
    groups, stages = np.zeros(most, GROUP_ROW), np.zeros(most, f.STAGE_ROW)
    traffic = np.zeros(job.pieces, TRAFFIC_ROW)
    frame, found = -1.0, 0
    for index in range(order.shape[0]):
        row = int(order[index])
        grid = shapes[row]
        key, own = keys[int(grid.key)], costs[int(grid.key)]
        if grid.frame != frame:
            frame = grid.frame
            usual_counts(prefix, int(grid.pp), int(grid.vpp), job, framework.schedule, counts)
            found = group_stages(int(grid.pp), framework.schedule, counts, groups)
            fill_frame(
                counts, own, key, grid, job, framework, gpu, network, traffic, groups[:found]
            )
            for kind in range(job.kinds):
                for stage in range(found):
                    recomputed[kind, stage] = counts[kind, stage]
        evaluate_step(
            counts, recomputed if key.modules != 0 else nothing, own, traffic, groups[:found], key,
            grid, job, framework, network, out[row], stages,
        )  # fmt: skip
        step_bounds(totals, own, traffic, key, grid, job, framework, gpu, network, out[row])


@jit
def fill_frame(
    counts: Array, costs: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    gpu: GpuInputs, network: Rows, traffic: Rows, groups: Rows,
) -> None:  # fmt: skip
    """Fill what depends on degrees and layout alone (`planner.cost.frame`)."""
    fill_traffic(costs, key, grid, job, framework, network, traffic)
    for group in range(groups.shape[0]):
        fill_group(group, counts, costs, key, grid, job, framework, gpu, network, groups[group])


@jit
def cost_layout(
    grid: Row,
    key: Row,
    costs: Rows,
    counts: Array,
    recomputed: Array,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    network: Rows,
    out: Row,
    stages: Rows,
) -> None:
    """Fill step and stage results of one given layout: out, stages[pp], zero before."""
    groups, traffic = np.zeros(stages.shape[0], GROUP_ROW), np.zeros(job.pieces, TRAFFIC_ROW)
    for stage in range(stages.shape[0]):
        groups[stage].first, groups[stage].span = float(stage), 1.0
    fill_frame(counts, costs, key, grid, job, framework, gpu, network, traffic, groups)
    evaluate_step(
        counts, recomputed, costs, traffic, groups, key, grid, job, framework, network, out, stages
    )
    heaviest = 0
    for stage in range(stages.shape[0]):
        stage_memory(
            stage, float(stage), counts, recomputed, costs, key, grid, job, framework,
            stages[stage],
        )  # fmt: skip
        if stages[stage].peak > stages[heaviest].peak:
            heaviest = stage
    out.peak_bytes, out.peak_stage = stages[heaviest].peak, float(heaviest)
    out.allocated_bytes = stages[heaviest].allocated
