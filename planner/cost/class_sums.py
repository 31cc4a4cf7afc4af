"""Sums over the classes of parameters in a piece or a stage.

The record of a class (`planner.cost.tables.ClassInputs`) gives its weight in each sum and the ranks
that share its parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import Sharers
from planner.cost.tables import ClassInputs, FrameworkInputs, JobInputs


class ClassShare(NamedTuple):
    """Numbers of parameters of one class on a rank, counted in several ways.

    `weights`: parameters whose weights stay between steps. `updated`: parameters that the optimizer
    updates, before ZeRO divides its states; `states`: after. `gathered`: parameters whose weights
    ZeRO-3 gathers, undivided. `trained`: parameters that have gradients, before ZeRO divides these;
    `trained_share`: after.
    """

    weights: float
    updated: float
    states: float
    gathered: float
    trained: float
    trained_share: float


@jit
def sharing_ranks(sharers: float, grid: Row) -> float:
    """Number of ranks over which ZeRO divides parameters. `sharers`: a code of `Sharers`."""
    if sharers == Sharers.EXPERT_DATA:
        return float(grid.expert_shards)
    return float(grid.shards)


@jit
def divided(value: float, divides: bool, sharers: float, grid: Row) -> float:
    """A rank's share of a value if ZeRO `divides` it over its `sharers`, otherwise the whole
    value."""
    if value == 0.0 or not divides:
        return value
    return value / sharing_ranks(sharers, grid)


@jit
def is_sharded(grid: Row) -> bool:
    """Whether ZeRO divides gradients (ZeRO-2), or gradients and weights (ZeRO-3)."""
    return grid.zero > 1 and grid.shards > 1.0


@jit
def fetches_weights(grid: Row, framework: FrameworkInputs) -> bool:
    """Whether weights are gathered before each use (ZeRO-2 or 3 over several ranks), or fetched
    from the host before each use (ZeRO-3 with weights on the host, even on one rank)."""
    return is_sharded(grid) or (grid.zero > 2 and framework.host_weight_bytes > 0.0)


@jit
def keeps_weights(grid: Row, framework: FrameworkInputs) -> bool:
    """Whether low-precision weights, or a rank's shard of them, stay between steps. False only for
    FSDP with gradients or weights divided (`is_sharded`): it keeps fp32 shards and makes the
    low-precision weights anew from them."""
    return not is_sharded(grid) or framework.zero3_keeps_weight_shard > 0.0


@jit
def resting_parameters(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> float:
    """Parameters of a class whose weights stay on the rank between steps.

    Below ZeRO-3 all of them stay. If the parameters are fp32 shards (FSDP), ZeRO-2 and 3 gather
    weights for each pass, and besides the shards only weights that are never updated stay. Weights
    that are fetched from the host do not stay.
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
    """Number of ranks that share the second copy of weights, if `shards` ranks share the first
    copy."""
    return min(framework.secondary_shards, shards)


@jit
def secondary_parameters(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> float:
    """Number of parameters of a class in one rank's share of the second copy of weights
    (`secondary_shards`); 0 below ZeRO-3, or if the class is never gathered."""
    if grid.zero < 3 or one_class.gathers == 0.0:
        return 0.0
    shards = sharing_ranks(one_class.sharers, grid)
    return parameters / secondary_ranks(shards, framework)


@jit
def class_share(
    parameters: float, one_class: ClassInputs, grid: Row, framework: FrameworkInputs
) -> ClassShare:
    """The `ClassShare` for a number of parameters of a class."""
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
    """The sum of two shares."""
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
    """(`ClassShare.updated`, `ClassShare.states`), summed over the parameters of a piece or a
    stage."""
    updated = states = 0.0
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        counted = one_class.states * holds.parameters[number]
        updated += counted
        states += divided(counted, grid.zero > 0, one_class.sharers, grid)
    return updated, states


@jit
def extra_update(cost: Row, grid: Row) -> tuple[float, float]:
    """(FLOP, bytes of extra state) of the update of one piece on one rank. From ZeRO-1 on both are
    divided over the ranks that share the parameters."""
    flop = state = 0.0
    for sharers in (Sharers.DATA, Sharers.EXPERT_DATA):
        flop += divided(cost.update_flop[int(sharers)], grid.zero > 0, float(sharers), grid)
        state += divided(cost.state[int(sharers)], grid.zero > 0, float(sharers), grid)
    return flop, state


@jit
def trained_share(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Number of parameters of a piece or a stage that have gradients, divided over the ranks that
    share them, whatever the ZeRO stage."""
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
    expert-data group). If every rank keeps whole weights, only updated ones are gathered."""
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
    """Bytes that one gather of a piece or a stage fetches from the host for a rank's shards, in the
    host's number format; frozen weights have their own format there."""
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
    """Number of parameters of the vocabulary table that have gradients, on one rank; 0 if the table
    is frozen."""
    embedding = costs[job.kinds]
    return framework.classes[int(embedding.table_class)].gradients * embedding.table
