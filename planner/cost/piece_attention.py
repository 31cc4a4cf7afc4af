"""Seconds of attention of one piece on one rank, per micro-batch."""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.codes import OpKind
from planner.cost.compute import (
    attention_backward_time_s,
    attention_forward_time_s,
    eager_attention_backward_time_s,
    eager_attention_forward_time_s,
    longest_row,
    memory_bound_time_s,
)
from planner.cost.inputs import GpuInputs
from planner.cost.keys import local_tokens, shard_factor
from planner.cost.tables import FrameworkInputs, JobInputs

# Traffic of unfused attention's passes over its scores if torch operations run one by one, relative
# to a fused softmax with dropout. One by one they move 33 bytes an entry forward (scale, mask, cast
# to fp32, softmax, cast back, dropout) and 37 backward; Megatron's fused softmax and its dropout 9
# and 11.
TORCH_SOFTMAX_TRAFFIC = 3.5

# The same for Megatron's fused kernel if rows have more scores than this. A warp keeps a row in
# registers, 4 bytes a score forward, 8 backward, of at most 255 a thread: the rest is written to
# local memory and read in each of three passes, 20 bytes a score in each direction (Transformer
# Engine 2.8, common/fused_softmax/scaled_masked_softmax.cu; its limit was 4096 before it was
# 16384).
LONGEST_ROW_IN_REGISTERS = 4096.0
SPILLED_SOFTMAX_TRAFFIC = 3.0

# Number of times that a step of a context-parallel ring moves each element of the partial results
# through HBM: halves of queries, keys and values copied, the sum read, scaled and written, in 16
# and 32 bits, and the loss of a kernel that runs on part of the keys. Fitted on a benchmark of
# attention with context parallelism in a development branch of Transformer Engine (README in
# tests/pytorch/attention, THD; H100; p2p against a2a on 6 mixes of lengths from 4K to 128K at cp 2,
# 4 and 8, FlashAttention and cuDNN: 36 pairs of times): the ratio errs by 5 % (root mean square).
RING_STEP_PASSES = 13.0
# The same for each gathered key and value in forward, and in backward for these and their
# gradients: put in order, cut for two chunks of queries, and the loss of running two kernels. From
# the same benchmark, all_gather against a2a with FlashAttention; with cuDNN gathering took another
# 5 to 30 % longer.
GATHER_PASSES = 10.0


@jit
def softmax_is_fused(op: Row, key: Row, job: JobInputs) -> bool:
    """Whether unfused attention runs Megatron's fused softmax kernel.

    The kernel works on four heads of the micro-batch at a time. If mbs·heads/tp is not a multiple
    of four, torch's operations run one by one instead (Megatron-LM and Megatron-DeepSpeed,
    megatron/model/fused_softmax.py, `is_kernel_available`). Ignores its limits on the length, which
    versions raised.
    """
    return job.eager_attention == 1.0 and (key.mbs * op.heads / key.tp) % 4.0 == 0.0


@jit
def last_chunk_share(chunks: float, window: float, seq: float) -> float:
    """Number of keys that the last of n equal chunks of a causal sequence sees, over the mean of
    all chunks.

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
    """Forward and backward seconds of core attention on the rank with the most of it.

    Under context parallelism each rank has two chunks whose causal work adds up to the same share
    on every rank (zig-zag order), so its queries see the whole length at 1/cp of the work. If a
    framework distributes chunks in order, all ranks wait for the one with the last chunk. When n
    ranks exchange heads, each has n times the queries and 1/n of the heads.
    """
    forward, backward = balanced_attention_seconds(op, key, job, gpu)
    if op.span > 0.0:
        return forward, backward
    chunks = key.cp / max(1.0, key.exchange)
    # Unfused attention computes the whole square, or all blocks except those entirely above the
    # diagonal.
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
    """Forward and backward seconds of core attention if all ranks of context parallelism have the
    same work."""
    exchange = max(1.0, key.exchange)
    queries, length, rows = job.seq * exchange / key.cp, job.seq, key.mbs
    causal = job.causal
    heads = op.heads / (key.tp * exchange)
    if op.span > 0.0:
        # Each patch attends to all patches of its image.
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
    """Forward and backward seconds of the copies and additions around attention that context
    parallelism needs.

    A ring of n adds n-1 partial outputs to the sum (forward), gradients of queries, keys and values
    (backward): `RING_STEP_PASSES`. An all-to-all reorders each tensor before and after it: read and
    write. Gathered keys and values, and their gradients: `GATHER_PASSES`. Source: Transformer
    Engine 2.8, context_parallel.py.
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
def context_kernels(op: Row, key: Row) -> float:
    """Additional kernels of an attention row, in either pass, if cp ranks share the sequence.

    The CPU cuts queries, keys and values into the two chunks of a rank and puts them together again
    (4), and each of the cp steps has one more kernel besides its attention. From tests of
    Megatron-Core on small models, all bound by launches: at cp 2 a layer takes 2.3 ms more in both
    passes together than at cp 1, at cp 4 3.1 ms: 12 and 16 kernels at 0.19 ms. Fitted on 12 runs on
    A100; 5 on GB200 then err by 6 % instead of 33, 6 on H100, whose hosts are faster, by 32 instead
    of 5. That is for a ring. Assumed for the others: an all-to-all reorders four tensors before and
    after it (8); gathered keys and values are put in order, and two kernels run in place of one, on
    the two chunks of the queries (6).
    """
    if int(op.kind) != OpKind.ATTENTION or key.cp <= 1.0 or op.span > 0.0:
        return 0.0
    if key.exchange < 1.0:
        return 6.0
    ring = 4.0 + key.cp / key.exchange if key.exchange < key.cp else 0.0
    return ring + (8.0 if key.exchange > 1.0 else 0.0)


@jit
def softmax_kernels(op: Row, key: Row, job: JobInputs) -> float:
    """Additional kernels of unfused attention, in either pass, without Megatron's fused softmax.

    Cast to fp32, scale, mask, softmax and cast back in place of one kernel.
    """
    if int(op.kind) != OpKind.ATTENTION or job.eager_attention != 1.0:
        return 0.0
    return 0.0 if softmax_is_fused(op, key, job) else 4.0
