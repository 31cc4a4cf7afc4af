"""The loops over keys and shapes; everything they compute lives in the other modules."""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit, jit_parallel, prange
from planner.cost.data_parallel import Grid, make_grid
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.layer import piece_cost
from planner.cost.layout import usual_counts
from planner.cost.step import evaluate_step, step_bounds
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable


@jit
def read_key(row: Array, job: JobInputs) -> Key:
    """Key of one row of the key table; sequence parallelism needs tp > 1."""
    sequence_parallel = job.sequence_parallel if row[f.KEY_TP] > 1.0 else 0.0
    return Key(
        row[f.KEY_TP],
        row[f.KEY_CP],
        row[f.KEY_EP],
        row[f.KEY_ETP],
        row[f.KEY_MBS],
        int(row[f.KEY_MODULES]),
        sequence_parallel,
        row[f.KEY_SHARE],
        row[f.KEY_SPAN],
        row[f.KEY_PIPELINED],
        row[f.KEY_EXCHANGE],
    )


@jit
def read_grid(row: Array, key: Key) -> Grid:
    """Grid of one row of the shape table."""
    return make_grid(
        key,
        row[f.SHAPE_DP],
        row[f.SHAPE_PP],
        row[f.SHAPE_VPP],
        int(row[f.SHAPE_ZERO]),
        row[f.SHAPE_GRAD_ACC],
        row[f.SHAPE_SHARD],
        row[f.SHAPE_MTP_APART],
    )


@jit_parallel
def cost_keys(
    keys: Array,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
) -> Array:
    """Piece costs of every key: array [keys, pieces, PIECE_COLUMNS]."""
    out = np.zeros((keys.shape[0], job.pieces, f.PIECE_COLUMNS))
    for index in prange(keys.shape[0]):
        key = read_key(keys[index], job)
        for piece in range(job.pieces):
            piece_cost(piece, key, table, job, framework, gpu, links, out[index, piece])
    return out


@jit_parallel
def cost_shapes(
    shapes: Array,
    keys: Array,
    costs: Array,
    prefix: Array,
    totals: Array,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
) -> Array:
    """Step results of every shape in its even layout, every layer recomputed as its key says.

    Array [shapes, STEP_COLUMNS], bounds over all layouts included.
    """
    out = np.zeros((shapes.shape[0], f.STEP_COLUMNS))
    for index in prange(shapes.shape[0]):
        shape = shapes[index]
        key_index = int(shape[f.SHAPE_KEY])
        key = read_key(keys[key_index], job)
        grid = read_grid(shape, key)
        pp = int(grid.pp)
        counts = np.zeros((job.pieces, pp))
        recomputed = np.zeros((job.pieces, pp))
        stages = np.zeros((pp, f.STAGE_COLUMNS))
        usual_counts(prefix, pp, int(grid.vpp), job, framework.schedule, counts)
        if key.modules != 0:
            recomputed[: job.kinds] = counts[: job.kinds]
        evaluate_step(
            counts, recomputed, costs[key_index], key, grid, job, framework, gpu, links,
            out[index], stages,
        )  # fmt: skip
        step_bounds(totals, costs[key_index], key, grid, job, framework, gpu, links, out[index])
    return out


@jit
def cost_layout(
    shape: Array,
    key_row: Array,
    costs: Array,
    counts: Array,
    recomputed: Array,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
) -> tuple[Array, Array]:
    """Step and stage results of one given layout: ([STEP_COLUMNS], [pp, STAGE_COLUMNS])."""
    key = read_key(key_row, job)
    grid = read_grid(shape, key)
    out = np.zeros(f.STEP_COLUMNS)
    stages = np.zeros((int(grid.pp), f.STAGE_COLUMNS))
    evaluate_step(counts, recomputed, costs, key, grid, job, framework, gpu, links, out, stages)
    return out, stages
