"""Sums over the classes of parameters of a piece or a stage.

A class's record says what one of its parameters counts as in each account
(`planner.cost.tables.ClassInputs`), and which ranks share it.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import Sharers
from planner.cost.tables import Array, ClassInputs, FrameworkInputs, JobInputs


class ClassShare(NamedTuple):
    """What parameters of one class count as on a rank.

    `weights`: at rest between steps; `states`: that the optimizer updates, `updated` before ZeRO
    divides them; `gathered`, `trained`: weights that ZeRO-3 gathers and gradients, whole;
    `trained_share`: gradients as ZeRO divides them.
    """

    weights: float
    updated: float
    states: float
    gathered: float
    trained: float
    trained_share: float


@jit
def sharing_ranks(one_class: ClassInputs, grid: Row) -> float:
    """Ranks over which ZeRO divides the parameters of a class."""
    if one_class.sharers == Sharers.EXPERT_DATA:
        return float(grid.expert_shards)
    return float(grid.shards)


@jit
def is_sharded(grid: Row) -> bool:
    """Gradients (ZeRO-2) or weights too (ZeRO-3) are divided."""
    return grid.zero > 1 and grid.shards > 1.0


@jit
def keeps_weights(grid: Row, framework: FrameworkInputs) -> bool:
    """Low-precision weights stay between steps; FSDP makes them from fp32 shards."""
    return not is_sharded(grid) or framework.zero3_keeps_weight_shard > 0.0


@jit
def resting_parameters(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> float:
    """Parameters of a class whose weights stay on the rank between steps.

    All of them below ZeRO-3, unless fp32 shards are the parameters (FSDP): there ZeRO-2 and 3
    gather them for each pass, and have no weights beside the shards but of what nothing updates.
    """
    stage = 3
    if not keeps_weights(grid, framework):
        if one_class.states > 0.0:
            return 0.0
        stage = 2
    if grid.zero < stage or one_class.gathered == 0.0:
        return parameters
    return parameters / sharing_ranks(one_class, grid)


@jit
def class_share(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> ClassShare:
    """What so many parameters of a class count as on a rank."""
    updated, trained = one_class.states * parameters, one_class.gradients * parameters
    return ClassShare(
        one_class.weights * resting_parameters(parameters, one_class, grid, framework),
        updated,
        updated / sharing_ranks(one_class, grid) if grid.zero > 0 else updated,
        one_class.gathered * parameters,
        trained,
        trained / sharing_ranks(one_class, grid) if grid.zero > 1 else trained,
    )


@jit
def both_shares(first: ClassShare, second: ClassShare) -> ClassShare:
    """Two classes together."""
    return ClassShare(
        first.weights + second.weights,
        first.updated + second.updated,
        first.states + second.states,
        first.gathered + second.gathered,
        first.trained + second.trained,
        first.trained_share + second.trained_share,
    )


@jit
def no_share() -> ClassShare:
    """No parameters."""
    return ClassShare(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@jit
def shares(parameters: Array, grid: Row, framework: FrameworkInputs) -> ClassShare:
    """What `parameters[class]` count as on a rank."""
    total = no_share()
    for number in range(framework.class_count):
        one_class = framework.classes[number]
        share = class_share(parameters[number], one_class, grid, framework)
        total = both_shares(total, share)
    return total


@jit
def owned(values: Array, grid: Row, framework: FrameworkInputs) -> float:
    """Sum of `values[class]`, which ZeRO divides from its first stage on."""
    total = 0.0
    for number in range(framework.class_count):
        ranks = sharing_ranks(framework.classes[number], grid) if grid.zero >= 1 else 1.0
        total += values[number] / ranks
    return total


@jit
def trained_share(parameters: Array, grid: Row, framework: FrameworkInputs) -> float:
    """`ClassShare.trained_share` of `parameters[class]`."""
    total = 0.0
    for number in range(framework.class_count):
        one_class = framework.classes[number]
        total += one_class.gradients * parameters[number] / sharing_ranks(one_class, grid)
    return total


@jit
def reduced_parameters(parameters: Array, framework: FrameworkInputs) -> tuple[float, float]:
    """Parameters whose gradients are reduced: (over dp·cp, over the expert-data group)."""
    data = experts = 0.0
    for number in range(framework.class_count):
        one_class = framework.classes[number]
        if one_class.sharers == Sharers.EXPERT_DATA:
            experts += one_class.reduced * parameters[number]
        else:
            data += one_class.reduced * parameters[number]
    return data, experts


@jit
def gathered_parameters(
    parameters: Array, grid: Row, framework: FrameworkInputs
) -> tuple[float, float]:
    """Parameters whose weights are gathered: (over dp·cp, over the expert-data group).

    Where weights stay whole on every rank, those that the optimizer has updated.
    """
    data = experts = 0.0
    for number in range(framework.class_count):
        one_class = framework.classes[number]
        if grid.zero < 3 and one_class.states == 0.0 and keeps_weights(grid, framework):
            continue
        if one_class.sharers == Sharers.EXPERT_DATA:
            experts += one_class.gathered * parameters[number]
        else:
            data += one_class.gathered * parameters[number]
    return data, experts


@jit
def trained_table(costs: Rows, job: JobInputs, framework: FrameworkInputs) -> float:
    """Parameters of the vocabulary table whose gradients are made."""
    embedding = costs[job.kinds]
    return framework.classes[int(embedding.table_class)].gradients * embedding.table
