"""The loops over keys and shapes; the other modules contain everything that they compute.

A machine is a type of GPU with its node and links. A job runs on one or on several machines, and
each stage of the pipeline is on one of them: `place[stage]`. Tables that differ between machines
have the machine as their first axis: `costs[machine, piece]`, `traffic[machine, piece]`,
`frameworks`, `gpus` and `networks` [machine]. Functions for one stage or piece get the rows of its
machine.

Rows of `out` are filled in place, so that threads can share a table (`planner.predict.cost_model`).
"""

from __future__ import annotations

import math

from planner.cost._jit import Row, Rows, jit
from planner.cost.frame import fill_group, fill_passes, fill_traffic, group_stages
from planner.cost.inputs import GpuInputs
from planner.cost.layer import piece_cost
from planner.cost.layout import usual_counts
from planner.cost.memory import outside_bytes
from planner.cost.passes import exposed_pipeline_seconds
from planner.cost.stage import stage_memory
from planner.cost.step import ShapeFrame, StepFrame, evaluate_step, step_frame
from planner.cost.step_bounds import step_bounds
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def cost_keys(
    keys: Rows, ops: Rows, parameters: Rows, saved: Rows, collectives: Rows, job: JobInputs,
    framework: FrameworkInputs, gpu: GpuInputs, network: Rows, traffic: Rows, out: Rows,
) -> None:  # fmt: skip
    """Fill the piece costs of every key: out[keys, pieces], zero before. `traffic`: working array
    for `communication_terms`."""
    for index in range(keys.shape[0]):
        for piece in range(job.pieces):
            piece_cost(
                piece, keys[index], ops, parameters, saved, collectives, job, framework, gpu,
                network, traffic, out[index][piece],
            )  # fmt: skip


@jit
def cost_shapes(
    shapes: Rows, order: Array, keys: Rows, costs: Rows, prefix: Array, totals: Array,
    job: JobInputs, frameworks: Rows, gpus: Rows, networks: Rows, places: Array, given: bool,
    layouts: Array, groups: Rows, traffic: Rows, out: Rows, stages: Rows,
) -> None:  # fmt: skip
    """Fill the results of a step of each shape, with bounds over all its layouts: out[shapes], zero
    before. Layers are split evenly, and all recompute as the key says.

    `order`: rows of the shapes to cost; shapes of one frame (`frame`) follow each other, so that
    the frame is computed once. `costs[key, machine, piece]`. `places`: rows with the machine of
    each stage. `given`: there is one shape, and the layout in `layouts` is costed with its stages
    (`cost_layout`). Working arrays: layouts[3, pieces, most stages], `groups` and `stages` with one
    row per stage, `traffic` of the pieces on each machine (`planner.predict.cost_model`).
    """
    if given:
        cost_layout(
            shapes[0], keys[0], costs[0], layouts[0], layouts[1], totals, job, frameworks, gpus,
            networks, places[int(shapes[0].place)], groups, traffic, out[0], stages,
        )  # fmt: skip
        return
    counts, recomputed, nothing = layouts[0], layouts[1], layouts[2]
    last, pp, vpp, row_of_places, found = -1.0, 0, 0, -1, 0
    schedule = frameworks[0].schedule
    frame = StepFrame(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    for index in range(order.shape[0]):
        row = int(order[index])
        grid = shapes[row]
        key, cost = keys[int(grid.key)], costs[int(grid.key)]
        if grid.frame != last:
            last = grid.frame
            place = places[int(grid.place)]
            if pp != int(grid.pp) or vpp != int(grid.vpp) or row_of_places != int(grid.place):
                pp, vpp, row_of_places = int(grid.pp), int(grid.vpp), int(grid.place)
                usual_counts(prefix, pp, vpp, job, schedule, counts)
                found = group_stages(pp, schedule, place, counts, groups)
                for kind in range(job.kinds):
                    for stage in range(found):
                        recomputed[kind, stage] = counts[kind, stage]
            fill_frame(
                counts, cost, key, grid, job, frameworks, gpus, networks, traffic, groups[:found]
            )
            frame = step_frame(
                totals, cost, key, grid, job, frameworks, gpus, networks, places[row_of_places]
            )
        shape = fill_seconds(cost, key, grid, job, frameworks, networks, traffic)
        evaluate_step(
            counts, recomputed if key.modules != 0 else nothing, cost, traffic, groups[:found],
            frame, shape, key, grid, job, frameworks, gpus, networks, out[row], stages,
        )  # fmt: skip
        step_bounds(
            totals, cost, traffic, frame, shape, key, grid, job, frameworks,
            places[row_of_places], out[row],
        )  # fmt: skip


@jit
def fill_frame(
    counts: Array, costs: Rows, key: Row, grid: Row, job: JobInputs, frameworks: Rows,
    gpus: Rows, networks: Rows, traffic: Rows, groups: Rows,
) -> None:  # fmt: skip
    """Fill the parts that depend only on degrees and layout (`planner.cost.frame`)."""
    for at in range(frameworks.shape[0]):
        fill_traffic(costs[at], key, grid, frameworks[at], networks[at], traffic[at])
    for group in range(groups.shape[0]):
        at = int(groups[group].machine)
        fill_group(
            group, counts, costs[at], key, grid, job, frameworks[at], gpus[at], networks[at],
            groups[group],
        )  # fmt: skip


@jit
def fill_seconds(
    costs: Rows, key: Row, grid: Row, job: JobInputs, frameworks: Rows, networks: Rows,
    traffic: Rows,
) -> ShapeFrame:  # fmt: skip
    """Fill the seconds of each piece on each machine, and return the `ShapeFrame`. A boundary
    between machines is as fast as the slower one."""
    exposed_s = 0.0
    for at in range(frameworks.shape[0]):
        framework = frameworks[at]
        fill_passes(costs[at], grid, framework, traffic[at])
        exposed_s = max(
            exposed_s,
            exposed_pipeline_seconds(
                costs[at], traffic[at], key, grid, job, framework, networks[at]
            ),
        )
    outside = outside_bytes(key, grid, job, frameworks[0])
    return ShapeFrame(exposed_s, math.exp(grid.learnt), outside)


@jit
def cost_layout(
    grid: Row, key: Row, costs: Rows, counts: Array, recomputed: Array, totals: Array,
    job: JobInputs, frameworks: Rows, gpus: Rows, networks: Rows, place: Array, groups: Rows,
    traffic: Rows, out: Row, stages: Rows,
) -> None:  # fmt: skip
    """Fill the results of one given layout for the step and its stages: out, stages[pp], zero
    before."""
    for stage in range(stages.shape[0]):
        groups[stage].first, groups[stage].span = float(stage), 1.0
        groups[stage].machine = place[stage]
    fill_frame(counts, costs, key, grid, job, frameworks, gpus, networks, traffic, groups)
    frame = step_frame(totals, costs, key, grid, job, frameworks, gpus, networks, place)
    shape = fill_seconds(costs, key, grid, job, frameworks, networks, traffic)
    evaluate_step(
        counts, recomputed, costs, traffic, groups, frame, shape, key, grid, job, frameworks,
        gpus, networks, out, stages,
    )  # fmt: skip
    heaviest, most = 0, 0.0
    for stage in range(stages.shape[0]):
        at = int(place[stage])
        stage_memory(
            stage, float(stage), groups[stage], counts, recomputed, costs[at], key, grid, job,
            frameworks[at], stages[stage],
        )  # fmt: skip
        if gpus[at].memory_scale * stages[stage].peak > most:
            heaviest, most = stage, gpus[at].memory_scale * stages[stage].peak
    out.peak_bytes, out.peak_stage = stages[heaviest].peak, float(heaviest)
    out.allocated_bytes = stages[heaviest].allocated
