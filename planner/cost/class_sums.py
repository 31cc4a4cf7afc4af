"""Sums over the classes of parameters of a piece or a stage.

A class's record says what one of its parameters counts as in each account
(`planner.cost.tables.ClassInputs`), and which ranks share it.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import Sharers
from planner.cost.tables import ClassInputs, FrameworkInputs, JobInputs


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
def sharing_ranks(sharers: float, grid: Row) -> float:
    """Ranks over which ZeRO divides parameters that such ranks share."""
    if sharers == Sharers.EXPERT_DATA:
        return float(grid.expert_shards)
    return float(grid.shards)


@jit
def divided(value: float, divides: bool, sharers: float, grid: Row) -> float:
    """A value of parameters, or a rank's share of it where ZeRO `divides` it over its `sharers`."""
    if value == 0.0 or not divides:
        return value
    return value / sharing_ranks(sharers, grid)


@jit
def is_sharded(grid: Row) -> bool:
    """Gradients (ZeRO-2) or weights too (ZeRO-3) are divided."""
    return grid.zero > 1 and grid.shards > 1.0


@jit
def fetches_weights(grid: Row, framework: FrameworkInputs) -> bool:
    """Weights are gathered before use, or fetched from the host by one rank."""
    return is_sharded(grid) or (grid.zero > 2 and framework.host_weight_bytes > 0.0)


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
    None of those that are fetched from the host.
    """
    stage = 3
    if not keeps_weights(grid, framework):
        if one_class.states > 0.0:
            return 0.0
        stage = 2
    if framework.host_weight_bytes > 0.0 and grid.zero >= stage and one_class.gathers > 0.0:
        return 0.0
    divides = grid.zero >= stage and one_class.gathers > 0.0
    return divided(parameters, divides, one_class.sharers, grid)


@jit
def secondary_ranks(shards: float, framework: FrameworkInputs) -> float:
    """Ranks that share the second copy of weights that `shards` ranks share."""
    return min(framework.secondary_shards, shards)


@jit
def secondary_parameters(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> float:
    """Parameters of a class in a rank's share of the second copy (`secondary_shards`)."""
    if grid.zero < 3 or one_class.gathers == 0.0:
        return 0.0
    shards = sharing_ranks(one_class.sharers, grid)
    return parameters / secondary_ranks(shards, framework)


@jit
def class_share(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> ClassShare:
    """What so many parameters of a class count as on a rank."""
    updated, trained = one_class.states * parameters, one_class.gradients * parameters
    resting = resting_parameters(parameters, one_class, grid, framework)
    if framework.secondary_shards > 0.0:
        resting += secondary_parameters(parameters, one_class, grid, framework)
    return ClassShare(
        one_class.weights * resting, updated,
        divided(updated, grid.zero > 0, one_class.sharers, grid), one_class.gathered * parameters,
        trained, divided(trained, grid.zero > 1, one_class.sharers, grid),
    )  # fmt: skip


@jit
def both_shares(first: ClassShare, second: ClassShare) -> ClassShare:
    """Two classes together."""
    return ClassShare(
        first.weights + second.weights, first.updated + second.updated,
        first.states + second.states, first.gathered + second.gathered,
        first.trained + second.trained, first.trained_share + second.trained_share,
    )  # fmt: skip


@jit
def no_share() -> ClassShare:
    """No parameters."""
    return ClassShare(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@jit
def updated_parameters(holds: Row, grid: Row, framework: FrameworkInputs) -> tuple[float, float]:
    """`ClassShare.updated` and `.states` of the parameters of a piece or a stage."""
    updated = states = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        counted = one_class.states * holds.parameters[number]
        updated += counted
        states += divided(counted, grid.zero > 0, one_class.sharers, grid)
    return updated, states


@jit
def extra_update(cost: Row, grid: Row) -> tuple[float, float]:
    """(FLOP, bytes of extra state) of the update of one piece, as ZeRO divides them."""
    flop = state = 0.0
    for sharers in (Sharers.DATA, Sharers.EXPERT_DATA):
        flop += divided(cost.update_flop[int(sharers)], grid.zero > 0, float(sharers), grid)
        state += divided(cost.state[int(sharers)], grid.zero > 0, float(sharers), grid)
    return flop, state


@jit
def trained_share(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Gradients of a piece or a stage, divided over the ranks that share them."""
    total = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        total += divided(
            one_class.gradients * holds.parameters[number], True, one_class.sharers, grid
        )
    return total


@jit
def reduced_parameters(holds: Row, framework: FrameworkInputs) -> tuple[float, float]:
    """Parameters of a piece or a stage whose gradients are reduced: (over dp·cp, over the
    expert-data group)."""
    data = experts = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        if one_class.sharers == Sharers.EXPERT_DATA:
            experts += one_class.reduced * holds.parameters[number]
        else:
            data += one_class.reduced * holds.parameters[number]
    return data, experts


@jit
def gathered_parameters(holds: Row, grid: Row, framework: FrameworkInputs) -> tuple[float, float]:
    """Parameters of a piece or a stage whose weights are gathered: (over dp·cp, over the
    expert-data group).

    Where weights stay whole on every rank, those that the optimizer has updated.
    """
    data = experts = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        if grid.zero < 3 and one_class.states == 0.0 and keeps_weights(grid, framework):
            continue
        gathered = one_class.gathers if grid.zero > 2 else one_class.gathered
        if one_class.sharers == Sharers.EXPERT_DATA:
            experts += gathered * holds.parameters[number]
        else:
            data += gathered * holds.parameters[number]
    return data, experts


@jit
def fetched_bytes(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of a rank's shards of a piece or a stage that one gather fetches from the host, in the
    type in which they are there: of frozen weights their own."""
    total = 0.0
    if framework.host_weight_bytes == 0.0 or grid.zero < 2:
        return total
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        held = framework.host_weight_bytes if one_class.states > 0.0 else framework.weight_bytes
        value = held * one_class.gathers * holds.parameters[number]
        total += divided(value, True, one_class.sharers, grid)
    return total


@jit
def trained_table(costs: Rows, job: JobInputs, framework: FrameworkInputs) -> float:
    """Parameters of the vocabulary table whose gradients are made."""
    embedding = costs[job.kinds]
    return framework.classes[int(embedding.table_class)].gradients * embedding.table
