"""Costs of an update that are not a fixed number of bytes per parameter.

Muon trains matrices with one moment and the rest with AdamW's two, and multiplies matrices;
Adafactor keeps a row and a column for each matrix. For optimizers that treat all parameters alike
every term except the copies of slices is zero.
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import extra_update
from planner.cost.codes import ParamShard
from planner.cost.inputs import GpuInputs
from planner.cost.keys import on_rank
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def update_costs(
    piece: int, key: Row, parameters: Rows, job: JobInputs, framework: FrameworkInputs, out: Row
) -> None:
    """Fill PIECE_STATE, PIECE_UPDATE_* and PIECE_TENSORS for one piece on one rank, before ZeRO.

    Matrices are orthogonalised whole, by every rank of a tensor-parallel group (Megatron-Core's
    TensorParallelMuon, mode `duplicated`), so tp divides only the state.
    """
    for index in range(parameters.shape[0]):
        row = parameters[index]
        one_class = framework.classes[int(row.parameter_class)]
        sharers, states = int(one_class.sharers), one_class.states
        if int(row.piece) != piece or states == 0.0:
            continue
        out.tensors += 1.0
        out.update_bytes = max(out.update_bytes, row.temporary_bytes)
        out.state[sharers] += states * on_rank(row.state_bytes, row, key, job)
        groups = key.ep if int(row.shard) == ParamShard.EXPERT else 1.0
        out.update_flop[sharers] += row.flop / groups


@jit
def largest_update_bytes(cost: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of temporaries in the update of the largest tensor of a piece."""
    size = float(cost.update_bytes)
    if framework.update_sharded > 0.0 and grid.zero >= 1:
        return size / grid.shards
    return size


@jit
def slice_copy_seconds(cost: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Seconds that ZeRO-1 takes to copy the slices of one piece's tensors, one kernel per slice; 0
    under other ZeRO stages and on one rank.

    If every tensor is divided over all data-parallel ranks and gathered through a flat buffer, each
    of its slices is copied by itself: tensors x ranks copies, however small.
    """
    if grid.zero != 1 or grid.shards <= 1.0:
        return 0.0
    return float(cost.tensors * grid.shards * framework.slice_copy_s)


@jit
def extra_update_seconds(cost: Row, grid: Row, framework: FrameworkInputs, gpu: GpuInputs) -> float:
    """Seconds to read and write the extra state of one piece, to multiply its matrices, and to copy
    its slices (`slice_copy_seconds`).

    Under ZeRO each rank orthogonalises its share of the matrices (Liu et al. 2025, arXiv
    2502.16982, section 2.3); products in bf16 at the rate of large ones.
    """
    flop, state = extra_update(cost, grid)
    traffic = 2.0 * state
    products_s = flop / (gpu.matmul16_flop_per_s * gpu.gemm16_max_efficiency)
    traffic_s = traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
    return float(products_s + traffic_s + slice_copy_seconds(cost, grid, framework))


@jit
def copies_table(stage: int, counts: Array, job: JobInputs) -> bool:
    """Whether a stage without the embedding has a copy of the vocabulary table, for a tied head or
    for multi-token prediction (`mtp_copies_embedding`). One copy serves both."""
    if counts[job.kinds, stage] > 0.0:
        return False
    if job.tied_embeddings > 0.0 and counts[job.kinds + 1, stage] > 0.0:
        return True
    if job.mtp_layers == 0 or job.mtp_copies_embedding == 0.0:
        return False
    return bool(counts[job.kinds + 2, stage] > 0.0)


@jit
def pieces_of(piece: int, stage: int, counts: Array, job: JobInputs) -> float:
    """Number of times that a piece's parameters are updated on a stage: its number there, and one
    more for the embedding if the stage has a copy of the vocabulary table (`copies_table`)."""
    count = float(counts[piece, stage])
    if piece == job.kinds and copies_table(stage, counts, job):
        count += 1.0
    return count


@jit
def stage_extra_state(stage: int, counts: Array, costs: Rows, grid: Row, job: JobInputs) -> float:
    """Bytes of optimizer state of a stage on one rank, beyond `FrameworkInputs.optimizer_bytes` for
    each parameter; divided as ZeRO divides them."""
    state = 0.0
    for piece in range(job.pieces):
        _, more = extra_update(costs[piece], grid)
        state += pieces_of(piece, stage, counts, job) * more
    return state


@jit
def stage_update_seconds(
    stage: int, counts: Array, costs: Rows, grid: Row, job: JobInputs,
    framework: FrameworkInputs, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds that the updates of a stage take beyond the traffic of every parameter."""
    seconds = 0.0
    for piece in range(job.pieces):
        count = pieces_of(piece, stage, counts, job)
        seconds += count * extra_update_seconds(costs[piece], grid, framework, gpu)
    return seconds
