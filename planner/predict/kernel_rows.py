"""Columns of the key and shape tables that follow from the degrees (ranks, groups, frames), and
work arrays for the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from constraints.axes import (
    EXPERTS,
    GROUPS,
    OF_LAYER,
    OF_STEP,
    WORLD,
    ContextKind,
    product_of,
    within,
)
from constraints.context_exchange import inner_ranks
from planner.cost import fields as f
from planner.cost.frame import TRAFFIC_ROW
from planner.cost.phase_records import GROUP_ROW
from planner.cost.tables import Array
from planner.job.job import Job, model_numbers

# Integers below this are ranked by a look-up table instead of sorting.
_FEW = 1 << 16


def work_arrays(
    pieces: int, stages: int, machines: int = 1
) -> tuple[Array, NDArray[Any], NDArray[Any], Array]:
    """Empty arrays in which the core's `cost_shapes` keeps intermediate results: layouts, groups of
    stages, traffic of pieces on each machine, and stages. `pieces`, `stages`, `machines`: their
    sizes."""
    return (
        np.zeros((3, pieces, stages)),
        np.zeros(stages, GROUP_ROW),
        np.zeros((machines, pieces), TRAFFIC_ROW),
        np.zeros((stages, f.STAGE_COLUMNS)),
    )


def place_table(job: Job) -> Array:
    """The machine of each stage, one row per place of the job's pool; zeros without a pool."""
    places = job.pool.places if job.pool else ((0,) * job.cluster.num_gpus,)
    table = np.zeros((len(places), max(map(len, places))))
    for row, place in enumerate(places):
        table[row, : len(place)] = place
    return table


def laid_out(shape: Array, mtp_standalone: bool) -> Array:
    """A copy of a row of the shape table, which says whether multi-token prediction has a block to
    itself."""
    row = shape.copy()
    row[f.SHAPE["mtp_standalone"]] = float(mtp_standalone)
    return row


def with_ranks(table: Array) -> Array:
    """The key table, completed from its first columns by the rank counts that follow from them."""
    keys = np.zeros((len(table), f.KEY_COLUMNS))
    keys[:, [f.KEY["kept"], f.KEY["computed"]]] = 1.0
    keys[:, : table.shape[1]] = table
    degrees = {axis: keys[:, f.KEY[axis]] for axis in OF_LAYER}
    keys[:, f.KEY["inner_ranks"]] = product_of(set(WORLD) & set(OF_LAYER), degrees)
    keys[:, f.KEY["expert_ranks"]] = product_of(EXPERTS, degrees)
    for place, axis in enumerate(GROUPS):
        keys[:, f.KEY["ranks"] + place] = degrees[axis]
        keys[:, f.KEY["stride"] + place] = product_of(within(axis), degrees)
    return keys


def exchange_ranks(kind: ContextKind, keys: Array, job: Job, domain: float) -> NDArray[np.int64]:
    """Ranks that exchange heads under a kind of context parallelism, for each key
    (`constraints.context_exchange.inner_ranks`); `domain`: GPUs of a scale-up domain."""
    columns = {axis: keys[:, f.KEY[axis]].astype(np.int64) for axis in ("tp", "cp")}
    model = model_numbers(job.model, job.seq)
    return inner_ranks(kind, columns, model, int(domain), job.context_inner)


def fill_groups(shapes: Array, keys: Array) -> None:
    """Fill columns `shards`, `expert_shards`, `replicas`: the groups that shard parameters.

    Dense parameters are divided over dp·cp, experts over edp = dp·cp·tp/(ep·etp). Under hybrid
    sharding (HSDP, `shard` ranks) they are divided over the part of these ranks that holds one
    replica, which is contiguous in rank order.
    """
    key = keys[shapes[:, f.SHAPE["key"]].astype(np.int64)]
    ranks = shapes[:, f.SHAPE["dp"]] * key[:, f.KEY["cp"]]
    expert_ranks = ranks * key[:, f.KEY["tp"]] / key[:, f.KEY["expert_ranks"]]
    shard = shapes[:, f.SHAPE["shard"]]
    hybrid = (shard > 0.0) & (shapes[:, f.SHAPE["zero"]] > 0.0)
    replicas = np.where(hybrid, ranks / np.maximum(shard, 1.0), 1.0)
    shapes[:, f.SHAPE["replicas"]] = replicas
    shapes[:, f.SHAPE["shards"]] = ranks / replicas
    shapes[:, f.SHAPE["expert_shards"]] = np.maximum(1.0, np.maximum(1.0, expert_ranks) / replicas)


def numbered(table: Array) -> NDArray[np.int64]:
    """A number for each row of a table: equal rows get the same number, different rows different
    ones, in the order of the rows' columns."""
    codes = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        ranks, count = _ranks(column)
        if count > 1:
            codes = codes * count + ranks
    return codes


def _ranks(column: Array) -> tuple[NDArray[np.int64], int]:
    """(for each value its index among the distinct values in ascending order, number of distinct
    values)."""
    integers = column.astype(np.int64)
    if len(column) and integers.min() >= 0 and integers.max() < _FEW and (integers == column).all():
        present = np.zeros(int(integers.max()) + 1, dtype=np.int64)
        present[integers] = 1
        places = np.cumsum(present)
        return places[integers] - 1, int(places[-1])
    values, ranks = np.unique(column, return_inverse=True)
    return ranks, len(values)


def fill_frames(shapes: Array, keys: Array) -> None:
    """Fill column `frame` with a number for each group of shapes that differ only in micro-batch
    (`mbs`, `grad_acc`) and recompute mode; shapes with one micro-batch per step are in groups of
    their own. Numbers follow the order of the layouts."""
    key = keys[shapes[:, f.SHAPE["key"]].astype(np.int64)]
    degrees = [f.KEY[axis] for axis in OF_LAYER if axis != "mbs"]
    grid = [f.SHAPE[name] for name in (*OF_STEP, "mtp_standalone", "place") if name != "grad_acc"]
    alone = shapes[:, f.SHAPE["grad_acc"]] == 1.0
    shapes[:, f.SHAPE["frame"]] = numbered(
        np.column_stack([shapes[:, grid], key[:, degrees], alone])
    )
