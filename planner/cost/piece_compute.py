"""Seconds of the kernels of one piece on one rank, per micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import OpKind
from planner.cost.compute import (
    gemm_time_s,
    grouped_gemm_time_s,
    memory_bound_time_s,
    odd_rows_time_s,
)
from planner.cost.frozen_products import frozen_seconds
from planner.cost.inputs import GpuInputs
from planner.cost.keys import gemm_shape, local_tokens, returned, shard_factor
from planner.cost.piece_attention import (
    attention_seconds,
    context_copies,
    context_kernels,
    softmax_kernels,
)
from planner.cost.tables import FrameworkInputs, JobInputs


@jit
def cast_seconds(elements: float, framework: FrameworkInputs, gpu: GpuInputs) -> float:
    """Seconds to cast a product's 16-bit operand to 8 or 4 bits, row- and column-wise."""
    if gpu.matmul_flop_per_s <= gpu.matmul16_flop_per_s:
        return 0.0
    traffic = elements * framework.cast_traffic_bytes
    return traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)


@jit
def product_rate(low: bool, framework: FrameworkInputs, gpu: GpuInputs) -> tuple[float, float]:
    """(peak in FLOP/s, share that a large product sustains). `low`: in the job's precision,
    otherwise in 16 bits."""
    if low:
        return gpu.matmul_flop_per_s, gpu.gemm_max_efficiency * framework.quantised_rate
    return gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency


@jit
def gemm_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float, float]:
    """(forward, backward, weight gradient) seconds of a dense product, including casts and
    unpacking of weights; backward includes the weight gradient.

    Forward (rows, out, in); backward the input gradient (rows, in, out) and the weight gradient
    (out, in, rows), which accumulates into an fp32 buffer.
    """
    rows, out, depth = gemm_shape(op, key, job)
    low = op.low_precision > 0
    peak, share = product_rate(low, framework, gpu)
    least = 0.0 if framework.pads_products > 0.0 else odd_rows_time_s(rows, out, depth, gpu)
    forward = max(least, gemm_time_s(rows, out, depth, 1.0, peak, share, gpu.element_bytes, gpu))
    data = max(least, gemm_time_s(rows, depth, out, 1.0, peak, share, gpu.element_bytes, gpu))
    weight = op.trained * max(least, gemm_time_s(out, depth, rows, 1.0, peak, share, 8.0, gpu))
    if low:
        forward += cast_seconds(rows * depth, framework, gpu)
        data += cast_seconds(rows * out, framework, gpu)
    if op.partial > 0.0:
        forward, data = frozen_seconds(forward, data, op, key, gpu)
    return forward, data + weight, weight


@jit
def grouped_gemm_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float, float]:
    """Seconds of the experts' products on one rank; see `gemm_seconds`."""
    rows, out, depth = gemm_shape(op, key, job)
    groups = op.groups / key.ep
    each = rows / groups
    low = op.low_precision > 0
    peak, share = product_rate(low, framework, gpu)
    forward = grouped_gemm_time_s(each, out, depth, groups, peak, share, gpu.element_bytes, gpu)
    data = grouped_gemm_time_s(each, depth, out, groups, peak, share, gpu.element_bytes, gpu)
    weight = op.trained * grouped_gemm_time_s(out, depth, each, groups, peak, share, 8.0, gpu)
    if low:
        forward += cast_seconds(rows * depth, framework, gpu)
        data += cast_seconds(rows * out, framework, gpu)
    if op.partial > 0.0:
        forward, data = frozen_seconds(forward, data, op, key, gpu)
    return forward, data + weight, weight


@jit
def memory_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of a memory-bound row. In a loop over the rank's experts,
    kernels start one by one."""
    tokens = (
        local_tokens(key, job)
        * op.tokens_factor
        * shard_factor(int(op.tokens_shard), key, job.kv_heads)
    )
    rows, loop = tokens * framework.memory_traffic, op.groups / key.ep
    forward_kernels = op.forward_kernels + loop * op.forward_launches
    backward_kernels = op.backward_kernels + loop * op.backward_launches
    forward = memory_bound_time_s(rows * op.forward_bytes, forward_kernels, gpu)
    backward = memory_bound_time_s(rows * op.backward_bytes, backward_kernels, gpu)
    forward += tokens * op.forward_adds / gpu.atomic_adds_per_s
    backward += tokens * op.backward_adds / gpu.atomic_adds_per_s
    return forward, backward


@jit
def scan_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of a recurrence in chunks: streaming of its kernels, and their
    products, which the same kernels compute at `scan_efficiency` of the 16-bit peak.

    Backward runs most of forward again and has two products for each: three times the products.
    Heads are split over tp, and over the ranks of context parallelism, which exchange them: a rank
    has its share of the tokens' work either way.
    """
    forward, backward = memory_seconds(op, key, job, framework, gpu)
    rows = local_tokens(key, job) * shard_factor(int(op.tokens_shard), key, job.kv_heads)
    flop = 2.0 * rows * op.in_width * op.out_width * op.groups
    products = flop / (gpu.scan_efficiency * gpu.matmul16_flop_per_s)
    return forward + products, backward + 3.0 * products


@jit
def op_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float, float]:
    """(forward, backward, weight gradient) seconds of any row; backward includes the weight
    gradient.

    The weight gradients of norms are counted with their input gradients, because one kernel makes
    both.
    """
    kind = int(op.kind)
    if op.local > 0.0 and key.ep > 1.0:
        return 0.0, 0.0, 0.0
    if kind == OpKind.GEMM:
        return gemm_seconds(op, key, job, framework, gpu)
    if kind == OpKind.GROUPED_GEMM:
        return grouped_gemm_seconds(op, key, job, framework, gpu)
    if kind == OpKind.ATTENTION:
        forward, backward = attention_seconds(op, key, job, framework, gpu)
        copies = context_copies(op, key, job, framework, gpu)
        forward, backward = forward + copies[0], backward + copies[1]
    elif kind == OpKind.SCAN:
        forward, backward = scan_seconds(op, key, job, framework, gpu)
    else:
        forward, backward = memory_seconds(op, key, job, framework, gpu)
    return forward, backward if op.partial == 0.0 else returned(op, key) * backward, 0.0


@jit
def expert_kernels(op: Row, key: Row, framework: FrameworkInputs) -> float:
    """Number of times that a row of the experts is issued: once if their products are grouped,
    otherwise once for each expert of the rank (Megatron-Core 0.19, transformer/moe/experts.py,
    SequentialMLP). Their products take as long as grouped ones, which is an underestimate with few
    tokens."""
    if int(op.kind) != OpKind.GROUPED_GEMM or framework.sequential_experts == 0.0:
        return 1.0
    return float(op.groups / key.ep)


@jit
def issue_s(
    op: Row, kernels: float, launches: float, key: Row, job: JobInputs, framework: FrameworkInputs
) -> float:
    """CPU seconds to issue one pass of a row: its kernels, and `launches` for each of the rank's
    experts in a loop over them."""
    kernels = kernels * expert_kernels(op, key, framework)
    kernels += context_kernels(op, key) + softmax_kernels(op, key, job)
    looped = launches * op.groups / key.ep if framework.sequential_experts == 0.0 else 0.0
    return float(op.issued * (kernels * framework.issue_s + looped * framework.launch_s))


class ComputeTerms(NamedTuple):
    """Sums over a piece's rows, for one micro-batch on one rank.

    `forward`, `backward`, `recompute`: seconds of all kernels. `gemm_backward`, `attention_*`:
    seconds of GEMMs and of attention, which may hide collectives. `weight`: seconds of weight
    gradients. `issue_*`: CPU seconds to issue each pass. `products`: dense products; `returned`:
    those with an input gradient. `weight_bytes`: bytes that the weight gradients read.
    """

    forward: float
    backward: float
    recompute: float
    gemm_backward: float
    attention_forward: float
    attention_backward: float
    weight: float
    issue_forward: float
    issue_backward: float
    issue_recompute: float
    products: float
    returned: float
    weight_bytes: float


@jit
def compute_terms(
    piece: int, key: Row, ops: Rows, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs,
) -> ComputeTerms:  # fmt: skip
    """Sum the rows of one piece. The part in a CUDA graph is replayed by one call in each
    direction, an autograd function that copies its inputs into the graph (Transformer Engine 2.12,
    pytorch/graph.py, `Graphed`)."""
    forward = backward = recompute = 0.0
    gemm_backward = attention_forward = attention_backward = 0.0
    issue_forward = issue_backward = issue_recompute = products = gradients = 0.0
    weight = weight_bytes = replays = 0.0
    for row in range(ops.shape[0]):
        op = ops[row]
        if int(op.piece) != piece:
            continue
        seconds_forward, seconds_backward, seconds_weight = op_seconds(op, key, job, framework, gpu)
        seconds_forward += op.host_waits * framework.issue_s
        if op.issued == 0.0:
            replays = 1.0
        seconds_forward *= op.repeats
        seconds_backward *= op.repeats
        forward += seconds_forward
        backward += seconds_backward
        issued_forward = op.repeats * issue_s(
            op, op.forward_kernels, op.forward_launches, key, job, framework
        )
        issue_forward += issued_forward
        issue_backward += op.repeats * issue_s(
            op, op.backward_kernels, op.backward_launches, key, job, framework
        )
        if int(op.rerun_with) & int(key.modules):
            recompute += seconds_forward
            issue_recompute += issued_forward
        kind = int(op.kind)
        if kind == OpKind.ATTENTION:
            attention_forward += seconds_forward
            attention_backward += seconds_backward
        if kind in (OpKind.GEMM, OpKind.GROUPED_GEMM):
            gemm_backward += seconds_backward
            products += op.repeats
            gradients += op.repeats * returned(op, key)
            weight += op.repeats * seconds_weight
            weight_bytes += op.repeats * op.trained * operands_bytes(op, key, job)
    issue_forward += replays * framework.issue_s
    issue_backward += replays * framework.issue_s
    return ComputeTerms(
        forward, backward, recompute, gemm_backward, attention_forward, attention_backward, weight,
        issue_forward, issue_backward, issue_recompute, products, gradients, weight_bytes,
    )  # fmt: skip


@jit
def operands_bytes(op: Row, key: Row, job: JobInputs) -> float:
    """Bytes that the weight gradient of a product reads: its 16-bit input and the gradient of its
    output.

    A layer of GPT-3 keeps 32·s·b·h bytes for its weight gradients (Qi et al. 2024, arXiv
    2401.10241, Table 1).
    """
    rows, out, depth = gemm_shape(op, key, job)
    return 2.0 * rows * (out + depth)
