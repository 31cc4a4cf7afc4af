"""What the update of some parameters needs beyond a fixed number of bytes each.

Muon trains matrices with one moment and the rest with AdamW's two, and multiplies matrices;
Adafactor keeps a row and a column for each matrix. For optimizers that treat all parameters alike
every term but the copies of slices
is zero.
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import ParamShard
from planner.cost.inputs import GpuInputs
from planner.cost.keys import padding_factor
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def update_costs(piece: int, key: Row, parameters: Rows, job: JobInputs, out: Row) -> None:
    """Fill PIECE_STATE_*, PIECE_UPDATE_* and PIECE_TENSORS of one piece on one rank, before ZeRO.

    Matrices are orthogonalised whole, by every rank of a tensor-parallel group (Megatron-Core's
    TensorParallelMuon, mode `duplicated`), so tp divides the state alone.
    """
    for index in range(parameters.shape[0]):
        row = parameters[index]
        if int(row.piece) != piece:
            continue
        out.tensors += 1.0
        state = row.state_bytes
        out.update_bytes = max(out.update_bytes, row.temporary_bytes)
        shard = int(row.shard)
        if row.pads_vocabulary > 0 and shard == ParamShard.TP:
            state *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
        if shard == ParamShard.EXPERT:
            out.state_expert += state / (key.ep * key.etp)
            out.update_flop_expert += row.flop / key.ep
            continue
        out.update_flop_dense += row.flop
        if shard == ParamShard.TP:
            state /= key.tp
        elif shard == ParamShard.KV:
            state /= min(key.tp, job.kv_heads)
        out.state_dense += state


@jit
def extra_state_bytes(cost: Row, grid: Row) -> float:
    """Optimizer state of one piece beyond `FrameworkInputs.optimizer_bytes` per parameter."""
    dense, expert = cost.state_dense, cost.state_expert
    if grid.zero < 1:
        return float(dense + expert)
    return float(dense / grid.shards + expert / grid.expert_shards)


@jit
def largest_update_bytes(cost: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Temporaries of the update of the largest tensor of a piece."""
    size = float(cost.update_bytes)
    if framework.update_sharded > 0.0 and grid.zero >= 1:
        return size / grid.shards
    return size


@jit
def slice_copy_seconds(cost: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Seconds that ZeRO-1 takes to copy the slices of one piece's tensors, one kernel a slice.

    Where every tensor is divided over all data-parallel ranks and gathered through a flat buffer,
    each of its slices is copied by itself: tensors x ranks copies, however small.
    """
    if grid.zero != 1 or grid.shards <= 1.0:
        return 0.0
    return float(cost.tensors * grid.shards * framework.slice_copy_s)


@jit
def extra_update_seconds(cost: Row, grid: Row, framework: FrameworkInputs, gpu: GpuInputs) -> float:
    """Seconds to read and write the extra state of one piece, of its matrix products, and of
    `slice_copy_seconds`.

    Under ZeRO each rank orthogonalises its share of the matrices (Liu et al. 2025, arXiv
    2502.16982, section 2.3); products in bf16 at the rate of large ones.
    """
    dense, expert = cost.update_flop_dense, cost.update_flop_expert
    flop = dense + expert
    if grid.zero >= 1:
        flop = dense / grid.shards + expert / grid.expert_shards
    traffic = 2.0 * extra_state_bytes(cost, grid)
    products_s = flop / (gpu.matmul16_flop_per_s * gpu.gemm16_max_efficiency)
    traffic_s = traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
    return float(products_s + traffic_s + slice_copy_seconds(cost, grid, framework))


@jit
def copies_table(stage: int, counts: Array, job: JobInputs) -> bool:
    """Whether a stage holds a copy of the vocabulary table: a tied head away from the embedding
    multiplies by one, multi-token prediction looks its tokens up in one (`mtp_copies_embedding`).

    One copy serves both.
    """
    if counts[job.kinds, stage] > 0.0:
        return False
    if job.tied_embeddings > 0.0 and counts[job.kinds + 1, stage] > 0.0:
        return True
    if job.mtp_layers == 0 or job.mtp_copies_embedding == 0.0:
        return False
    return bool(counts[job.kinds + 2, stage] > 0.0)


@jit
def pieces_of(piece: int, stage: int, counts: Array, job: JobInputs) -> float:
    """How many times a stage updates a piece: some hold a copy of the embedding."""
    count = float(counts[piece, stage])
    if piece == job.kinds and copies_table(stage, counts, job):
        count += 1.0
    return count


@jit
def stage_extra_state(stage: int, counts: Array, costs: Rows, grid: Row, job: JobInputs) -> float:
    """Extra optimizer state of a stage, bytes."""
    state = 0.0
    for piece in range(job.pieces):
        state += pieces_of(piece, stage, counts, job) * extra_state_bytes(costs[piece], grid)
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
