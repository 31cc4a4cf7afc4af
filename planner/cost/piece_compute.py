"""Seconds of the kernels of one piece on one rank, per micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import OpKind
from planner.cost.compute import (
    attention_backward_time_s,
    attention_forward_time_s,
    eager_attention_backward_time_s,
    eager_attention_forward_time_s,
    gemm_time_s,
    grouped_gemm_time_s,
    longest_row,
    memory_bound_time_s,
    odd_rows_time_s,
)
from planner.cost.frozen_products import frozen_seconds
from planner.cost.inputs import GpuInputs
from planner.cost.keys import gemm_shape, local_tokens, returned, shard_factor
from planner.cost.tables import FrameworkInputs, JobInputs

# Traffic of unfused attention's passes over its scores, torch operations one by one, in units of
# a fused softmax with dropout. One by one they move 33 bytes an entry forward (scale, mask, cast
# to fp32, softmax, cast back, dropout) and 37 backward; Megatron's fused softmax and its dropout
# 9 and 11.
TORCH_SOFTMAX_TRAFFIC = 3.5

# The same of Megatron's kernel for rows of more scores than this. A warp holds a row in registers,
# 4 bytes a score forward, 8 backward, of at most 255 a thread: what is more is written to local
# memory and read in each of three passes, 20 bytes a score each way (Transformer Engine 2.8,
# common/fused_softmax/scaled_masked_softmax.cu; its limit was 4096 before it was 16384).
LONGEST_ROW_IN_REGISTERS = 4096.0
SPILLED_SOFTMAX_TRAFFIC = 3.0

# Times that a step of a context-parallel ring moves each element of the partial results through
# HBM: halves of queries, keys and values copied, the sum read, scaled and written, in 16 and 32
# bits, and what a kernel on part of the keys loses. Fitted on a benchmark of attention with context
# parallelism in a development branch of Transformer Engine (README in tests/pytorch/attention, THD;
# H100; p2p against a2a on 6 mixes of lengths from 4K to 128K at cp 2, 4 and 8, FlashAttention and
# cuDNN: 36 pairs of times): the ratio errs by 5 % (root mean square).
RING_STEP_PASSES = 13.0
# The same of each gathered key and value in forward, and in backward of these and their gradients:
# put in order, cut for two chunks of queries, and what two kernels lose. From the same benchmark,
# all_gather against a2a with FlashAttention; with cuDNN gathering took another 5 to 30 % longer.
GATHER_PASSES = 10.0


@jit
def cast_seconds(elements: float, framework: FrameworkInputs, gpu: GpuInputs) -> float:
    """Seconds of casting a product's 16-bit operand to 8 or 4 bits, row- and column-wise."""
    if gpu.matmul_flop_per_s <= gpu.matmul16_flop_per_s:
        return 0.0
    traffic = elements * framework.cast_traffic_bytes
    return traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)


@jit
def product_rate(low: bool, framework: FrameworkInputs, gpu: GpuInputs) -> tuple[float, float]:
    """Peak of a product, FLOP/s, and the share that a large one sustains; `low`: in the job's
    precision, else in 16 bits."""
    if low:
        return gpu.matmul_flop_per_s, gpu.gemm_max_efficiency * framework.quantised_rate
    return gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency


@jit
def gemm_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float, float]:
    """Seconds of a dense product, casts and unpacked weights included: forward, backward, and of
    that the weight gradient.

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
def softmax_is_fused(op: Row, key: Row, job: JobInputs) -> bool:
    """Whether unfused attention runs Megatron's softmax kernel.

    The kernel works on four heads of the micro-batch at a time; where mbs·heads/tp is no multiple
    of four, torch's operations run one by one instead (Megatron-LM and Megatron-DeepSpeed,
    megatron/model/fused_softmax.py, `is_kernel_available`). Ignores its limits on the length,
    which versions raised.
    """
    return job.eager_attention == 1.0 and (key.mbs * op.heads / key.tp) % 4.0 == 0.0


@jit
def last_chunk_share(chunks: float, window: float, seq: float) -> float:
    """Keys that the last of n equal chunks of a causal sequence sees, over the mean of all.

    mean of min(x, w) for x in (s - s/n, s), over w - w²/(2s); 2 - 1/n without a window (w = s).
    """
    longest = longest_row(seq, window)
    start = seq * (1.0 - 1.0 / chunks)
    mean = longest * (1.0 - longest / (2.0 * seq))
    if start >= longest:
        return longest / mean
    rising = (longest * longest - start * start) / 2.0
    return (rising + (seq - longest) * longest) * chunks / seq / mean


@jit
def attention_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of core attention on the rank with most of it.

    Under context parallelism each rank holds two chunks whose causal work adds up to the same
    share on every rank (zig-zag order), so its queries see the whole length at 1/cp of the work;
    where a framework hands out chunks in order, all wait for the rank with the last. Ranks that
    exchange heads have so many times the queries of fewer heads.
    """
    forward, backward = balanced_attention_seconds(op, key, job, gpu)
    if op.span > 0.0:
        return forward, backward
    chunks = key.cp / max(1.0, key.exchange)
    # Unfused attention computes the whole square, or blocks that are not all above the diagonal.
    if job.causal > 0.0 and job.eager_attention > 0 and framework.score_block > 0.0:
        share = min(1.0, 0.5 + 0.5 * framework.score_block / job.seq)
        return forward * share, backward * share
    whole = job.causal == 0.0 or job.eager_attention > 0
    if framework.context_balanced > 0.0 or chunks <= 1.0 or whole:
        return forward, backward
    last = last_chunk_share(chunks, op.window, job.seq)
    return forward * last, backward * last


@jit
def balanced_attention_seconds(
    op: Row, key: Row, job: JobInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """The same with as much work for each rank of context parallelism."""
    exchange = max(1.0, key.exchange)
    queries, length, rows = job.seq * exchange / key.cp, job.seq, key.mbs
    causal = job.causal
    heads = op.heads / (key.tp * exchange)
    if op.span > 0.0:
        # Patches of images: each attends to all of its image.
        queries = length = op.span
        share = shard_factor(int(op.tokens_shard), key, job.kv_heads)
        rows = share * key.mbs * job.seq * op.tokens_factor / (op.span * key.cp)
        causal = 0.0
        heads = op.heads * shard_factor(int(op.out_shard), key, job.kv_heads)
    if job.eager_attention > 0:
        traffic = job.eager_attention
        if softmax_is_fused(op, key, job):
            traffic = 1.0 if length <= LONGEST_ROW_IN_REGISTERS else SPILLED_SOFTMAX_TRAFFIC
        elif traffic == 1.0:
            traffic = TORCH_SOFTMAX_TRAFFIC
        forward = eager_attention_forward_time_s(
            rows, queries, length, heads, op.qk_head_dim, op.v_head_dim,
            traffic, gpu,
        )  # fmt: skip
        backward = eager_attention_backward_time_s(
            rows, queries, length, heads, op.qk_head_dim, op.v_head_dim,
            traffic, gpu,
        )  # fmt: skip
        return forward, backward
    window = op.window
    forward = attention_forward_time_s(
        rows, queries, length, heads, op.qk_head_dim, op.v_head_dim,
        causal, window, gpu,
    )  # fmt: skip
    backward = attention_backward_time_s(
        rows, queries, length, heads, op.qk_head_dim, op.v_head_dim,
        causal, window, gpu,
    )  # fmt: skip
    return forward, backward


@jit
def context_copies(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of what context parallelism copies and adds around attention.

    A ring of n adds n-1 partial outputs to the sum (forward), gradients of queries, keys and
    values (backward): `RING_STEP_PASSES`. An all-to-all reorders each tensor before and after
    it: read and write. Gathered keys and values, and their gradients: `GATHER_PASSES`.
    Source: Transformer Engine 2.8, context_parallel.py.
    """
    if key.cp <= 1.0 or op.span > 0.0:
        return 0.0, 0.0
    element, tokens = framework.activation_bytes, local_tokens(key, job)
    query = tokens * op.heads * op.qk_head_dim / key.tp
    output = tokens * op.heads * op.v_head_dim / key.tp
    width = op.qk_head_dim + op.v_head_dim
    pair = tokens * op.kv_heads * width / min(key.tp, op.kv_heads)
    if key.exchange < 1.0:
        gathered = GATHER_PASSES * element * pair * key.cp
        return (
            memory_bound_time_s(gathered, 1.0, gpu),
            memory_bound_time_s(2.0 * gathered, 2.0, gpu),
        )
    steps = key.cp / key.exchange - 1.0
    added = RING_STEP_PASSES * element * steps
    forward, backward = added * output, added * (query + pair)
    kernels = steps
    if key.exchange > 1.0:
        moved = 4.0 * element * (query + output + pair)
        forward, backward, kernels = forward + moved, backward + moved, kernels + 8.0
    return memory_bound_time_s(forward, kernels, gpu), memory_bound_time_s(backward, kernels, gpu)


@jit
def memory_seconds(
    op: Row, key: Row, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of a memory-bound row; kernels of a loop over the experts of the
    rank start one by one."""
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
    """Forward and backward seconds of a recurrence in chunks: what its kernels stream, and their
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
    """Seconds of any row: forward, backward, and of that the gradients of weights.

    Norms' weight gradients are left with the gradients of their inputs: one kernel makes both.
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
def context_kernels(op: Row, key: Row) -> float:
    """Further kernels of an attention row, in either pass, where cp ranks share the sequence.

    The CPU cuts queries, keys and values into the two chunks of a rank and puts them together
    again (4), and each of the cp steps has one more kernel beside its attention. From tests of
    Megatron-Core on small models, all bound by launches: at cp 2 a layer takes 2.3 ms more in both
    passes together than at cp 1, at cp 4 3.1 ms: 12 and 16 kernels at 0.19 ms. Fitted on 12 runs
    on A100; 5 on GB200 then err by 6 % instead of 33, 6 on H100, whose hosts are faster, by 32
    instead of 5. That is a ring. Assumed of the others: an all-to-all reorders four tensors before
    and after it (8); gathered keys and values are put in order, and two kernels run in place of
    one, on the two chunks of the queries (6).
    """
    if int(op.kind) != OpKind.ATTENTION or key.cp <= 1.0 or op.span > 0.0:
        return 0.0
    if key.exchange < 1.0:
        return 6.0
    ring = 4.0 + key.cp / key.exchange if key.exchange < key.cp else 0.0
    return ring + (8.0 if key.exchange > 1.0 else 0.0)


@jit
def softmax_kernels(op: Row, key: Row, job: JobInputs) -> float:
    """Further kernels of unfused attention, in either pass, without Megatron's fused softmax.

    Cast to fp32, scale, mask, softmax and cast back in place of one kernel.
    """
    if int(op.kind) != OpKind.ATTENTION or job.eager_attention != 1.0:
        return 0.0
    return 0.0 if softmax_is_fused(op, key, job) else 4.0


@jit
def expert_kernels(op: Row, key: Row, framework: FrameworkInputs) -> float:
    """How many times a row of the experts is issued: once where their products are grouped, else
    once for each expert of the rank (Megatron-Core 0.19, transformer/moe/experts.py,
    SequentialMLP). Their products take as long as grouped ones: an underestimate with few tokens.
    """
    if int(op.kind) != OpKind.GROUPED_GEMM or framework.sequential_experts == 0.0:
        return 1.0
    return float(op.groups / key.ep)


@jit
def issue_s(
    op: Row, kernels: float, launches: float, key: Row, job: JobInputs, framework: FrameworkInputs
) -> float:
    """CPU seconds that one pass of a row takes to issue: its kernels, and `launches` of a loop over
    the experts of the rank for each of them."""
    kernels = kernels * expert_kernels(op, key, framework)
    kernels += context_kernels(op, key) + softmax_kernels(op, key, job)
    looped = launches * op.groups / key.ep if framework.sequential_experts == 0.0 else 0.0
    return float(op.issued * (kernels * framework.issue_s + looped * framework.launch_s))


class ComputeTerms(NamedTuple):
    """Sums over a piece's rows, for one micro-batch on one rank.

    Seconds of all kernels by pass, of GEMMs in backward and of attention (what collectives may
    hide behind), of weight gradients, CPU seconds to issue each pass, dense products and those that
    backward comes back to, bytes that the weight gradients read.
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
    """Sum the rows of one piece. What a CUDA graph holds of it is replayed by one call each way, a
    function of autograd that copies its inputs in (Transformer Engine 2.12, pytorch/graph.py,
    `Graphed`)."""
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
    """16-bit input and gradient of the output of a product: what its weight gradient reads.

    A layer of GPT-3 keeps 32·s·b·h bytes for its weight gradients (Qi et al. 2024, arXiv
    2401.10241, Table 1).
    """
    rows, out, depth = gemm_shape(op, key, job)
    return 2.0 * rows * (out + depth)
