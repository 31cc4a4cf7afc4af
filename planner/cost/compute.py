"""Seconds of one kernel on one GPU: dense and grouped GEMM, attention, memory-bound kernels.

All functions are pure, with float64 scalars in and out. They ignore the CPU (the caller adds launch
time) and contention with collectives that run at the same time.

Symbols: P = dense peak (FLOP/s), W = HBM rate (bytes/s), N = streaming multiprocessors.
"""

from __future__ import annotations

import math

from planner.cost._jit import jit
from planner.cost.inputs import GpuInputs

# Bytes per score of Megatron's fused softmax, the unit of traffic over scores, and of one entry of
# the dropout mask.
_HALF_BYTES = 2.0
_MASK_BYTES = 1.0
# Number of parts into which the depth of a product may be split over SMs, least depth of a part,
# and bytes of an element of its sums (`tiled_time_s`).
_PARTS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_LEAST_PART = 512.0
_SUM_BYTES = 4.0
# Number of 16-bit elements that a tensor core loads at once (`alignment_share`).
_VECTOR_ELEMENTS = 8.0


@jit
def memory_bound_time_s(total_bytes: float, kernels: float, gpu: GpuInputs) -> float:
    """Seconds of `kernels` streaming kernels that together move `total_bytes` through HBM.

        t = kernels · t_floor + bytes / (W · e)

    e: share of the HBM rate that a long kernel reaches; t_floor: launch-to-finish time of an empty
    kernel, so that half the rate is reached at t_floor · W · e bytes. Williams et al., Roofline
    (CACM 52(4), 2009), with a latency term. Ignores hits in L2.
    """
    return kernels * gpu.kernel_floor_s + total_bytes / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)


@jit
def operand_bytes(peak_flop_per_s: float, gpu: GpuInputs) -> float:
    """Bytes of an input element, by the rule that halving the width doubles the peak."""
    return gpu.element_bytes * min(1.0, gpu.matmul16_flop_per_s / peak_flop_per_s)


@jit
def tiled_time_s(
    m: float, n: float, k: float, products: float, tile_m: float, tile_n: float, flop_per_s: float,
    output_bytes: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of `products` m×n×k GEMMs cut into tiles that run in waves over the N SMs.

        t = ⌈products·⌈m/Tm⌉·⌈n/Tn⌉ / N⌉ · N · (2·Tm·Tn·(k + k0)/R + x·Tm·Tn·o/W)

    R: FLOP/s of the whole GPU while all SMs work; k0: depth that costs as much as filling a tile's
    pipeline; o: output bytes per element; x: share of the output traffic that does not overlap the
    next tile's main loop. NVIDIA, Matrix Multiplication Background User's Guide, sections "Tile
    quantization" and "Wave quantization".

    If the tiles of one product leave half of the SMs idle or more, its depth may be cut into p ≤
    N/tiles parts whose fp32 sums are written and added up: k/p in place of k, plus a kernel that
    moves 8·p·m·n bytes, if that is faster (split-k, which cuBLAS chooses by itself: CUTLASS,
    efficient_gemm.md, "Parallelized Reductions"). Weight gradients of narrow layers are such
    products. Ignores stream-k.
    """
    tiles = products * math.ceil(m / tile_m) * math.ceil(n / tile_n)
    area = tile_m * tile_n
    epilogue = gpu.gemm_epilogue_exposed * area * output_bytes / gpu.hbm_bytes_per_s
    slots = math.ceil(tiles / gpu.sm_count) * gpu.sm_count
    least_s = slots * (2.0 * area * (k + gpu.gemm_start_depth) / flop_per_s + epilogue)
    for parts in _PARTS:
        if products > 1.0 or parts * tiles > gpu.sm_count:
            break
        depth = max(k / parts, _LEAST_PART) + gpu.gemm_start_depth
        sums = 2.0 * _SUM_BYTES * parts * products * m * n
        split = gpu.sm_count * (2.0 * area * depth / flop_per_s + epilogue)
        least_s = min(least_s, split + memory_bound_time_s(sums, 1.0, gpu))
    return least_s


@jit
def best_tiling_time_s(
    m: float, n: float, k: float, products: float, flop_per_s: float, output_bytes: float,
    gpu: GpuInputs,
) -> float:  # fmt: skip
    """Least `tiled_time_s` over the tiles that a GEMM library chooses from.

    These are the full tile in both orientations, half of it and a quarter of it; each halving
    lowers the SM's rate by `gemm_small_tile_share`, because operands are reused less.
    """
    big, small = gpu.tile_m, gpu.tile_n
    best = math.inf
    rate = flop_per_s
    for _ in range(3):
        for rows, columns in ((big, small), (small, big)):
            seconds = tiled_time_s(m, n, k, products, rows, columns, rate, output_bytes, gpu)
            best = min(best, seconds)
        rate *= gpu.gemm_small_tile_share
        big, small = max(big, small) / 2.0, min(big, small)
    return best


@jit
def compute_bound_time_s(
    m: float, n: float, k: float, products: float, peak_flop_per_s: float, max_efficiency: float,
    output_bytes: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of `products` GEMMs whose operands arrive in time: the slower of two limits.

        power:  (2·m·n·(k + k0)/(P·e) + x·m·n·o/W) · products
        tiling: best_tiling_time_s at R = P·e·g

    Under sustained load a GPU lowers its clock until it meets its power limit: share e of P. SMs
    that idle in a partial wave free power, and the others speed up by a factor of at most g (clock
    limit). k0, x, o as in `tiled_time_s`.
    """
    sustained = peak_flop_per_s * max_efficiency
    outputs = products * m * n
    power = 2.0 * outputs * (k + gpu.gemm_start_depth) / sustained
    power += gpu.gemm_epilogue_exposed * outputs * output_bytes / gpu.hbm_bytes_per_s
    clock = sustained * gpu.gemm_clock_gain
    return max(power, best_tiling_time_s(m, n, k, products, clock, output_bytes, gpu))


@jit
def gemm_time_s(
    m: float, n: float, k: float, batch: float, peak_flop_per_s: float, max_efficiency: float,
    output_bytes: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of `batch` products (m×k)·(k×n): the slowest of power, tiling and HBM, plus a floor.

        t = t_floor + max(compute, batch·(i·(m·k + k·n) + o·m·n) / (W·e_hbm))

    i: operand bytes per element; o (`output_bytes`): output bytes per element, 2 for bf16, 4 for
    fp32 and TF32, 8 for a weight gradient added into an fp32 buffer (read and write), 4 for one
    added into bf16. Roofline with tile and wave quantisation. Ignores layout (TN/NN/NT differ by 1
    % in the fitted rows), operands that stay in L2 and operands that are read twice.
    """
    compute = compute_bound_time_s(
        m, n, k, batch, peak_flop_per_s, max_efficiency, output_bytes, gpu
    )
    traffic = operand_bytes(peak_flop_per_s, gpu) * k * (m + n) + output_bytes * m * n
    memory = batch * traffic / (gpu.hbm_bytes_per_s * gpu.gemm_hbm_efficiency)
    return gpu.kernel_floor_s + max(compute, memory)


@jit
def odd_rows_time_s(m: float, n: float, k: float, gpu: GpuInputs) -> float:
    """Least seconds of an m×n×k product if a matrix has rows of an odd width.

        t = 2·m·n·k / (N·r)  if n or k is odd, else 0

    Such rows start at odd multiples of 2 bytes, and the SMs' asynchronous copies take 4 bytes or
    more (CUDA Programming Guide, "Asynchronous Data Copies using LDGSTS"), so operands are loaded
    one by one. This happens to the logits of an unpadded vocabulary. r:
    `odd_rows_flop_per_s_per_sm`. Validation on rows that were not fitted: nine runs of nanotron of
    2024 with GPT-2's vocabulary on 8 H100 err by 4 % (median) with it, by 33 % without.
    """
    if math.floor(n + 0.5) % 2.0 == 0.0 and math.floor(k + 0.5) % 2.0 == 0.0:
        return 0.0
    return 2.0 * m * n * k / (gpu.sm_count * gpu.odd_rows_flop_per_s_per_sm)


@jit
def grouped_gemm_time_s(
    m: float, n: float, k: float, groups: float, peak_flop_per_s: float, max_efficiency: float,
    output_bytes: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of `groups` equal products of experts, whose tiles share the SMs.

        t = t_floor + groups · t_group + max(compute, memory),  e → e · g_grouped

    t_group: cost of starting one group's product; g_grouped: efficiency of a grouped launch
    relative to one large product (shared caches and SMs). With few tokens per expert the traffic of
    the weight gradients' buffers, 8·m·n bytes each, dominates. Ignores imbalance between the
    experts of one rank; for imbalance between ranks, multiply by the load of the busiest over the
    mean.
    """
    share = max_efficiency * gpu.grouped_efficiency_share
    compute = compute_bound_time_s(m, n, k, groups, peak_flop_per_s, share, output_bytes, gpu)
    traffic = operand_bytes(peak_flop_per_s, gpu) * k * (m + n) + output_bytes * m * n
    memory = groups * traffic / (gpu.hbm_bytes_per_s * gpu.grouped_hbm_efficiency)
    return gpu.kernel_floor_s + groups * gpu.group_start_s + max(compute, memory)


@jit
def longest_row(seq_kv: float, window: float) -> float:
    """Most keys that one query attends to: the `window`, but at most `seq_kv`; all `seq_kv` if
    `window` is 0."""
    return min(seq_kv, window) if window > 0 else seq_kv


@jit
def visited_columns(seq_kv: float, causal: float, window: float, tile: float) -> float:
    """Average number of keys for which a tile of `tile` queries computes scores, with s = `seq_kv`
    and w = `window`.

    Without a mask: s. Causal with window w ≤ s: w - w²/(2s), the mean of min(position, w), plus the
    masked part of the blocks on the edges, tile·(1 - w/(2s)). Without a window w = s, which gives
    (s + tile)/2. Valid for a whole sequence and for the zig-zag chunks of context parallelism.
    """
    if causal == 0.0:
        return seq_kv
    span = longest_row(seq_kv, window)
    outside = 1.0 - span / (2.0 * seq_kv)
    return min(seq_kv, (span + min(tile, seq_kv)) * outside)


@jit
def head_width_share(head_dim: float, gpu: GpuInputs) -> float:
    """Rate at a head width, relative to that at 128: (d/(d + d0)) · ((128 + d0)/128), at most 1.

    Narrow heads do more softmax work per matrix FLOP. Wider ones gain little, because registers
    limit the tile. Shah et al., FlashAttention-3 (arXiv 2407.08608), Figure 5: 64, 128, 256.
    """
    half = gpu.attention_half_head_dim
    return min(1.0, head_dim / (head_dim + half) * (128.0 + half) / 128.0)


@jit
def padded(width: float, other: float, gpu: GpuInputs) -> float:
    """Head width with which a kernel multiplies heads of `width`, if the other operand's heads have
    the width `other`: the larger of both if the kernel supports only one width, otherwise `width`.
    """
    return width + gpu.attention_padding * max(0.0, other - width)


@jit
def flash_time_s(
    batch: float, seq_q: float, seq_kv: float, heads: float, head_dim: float, widths: float,
    causal: float, window: float, efficiency: float, tile: float, start_columns: float,
    tail_share: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of a fused attention kernel; `widths` is the sum of head widths over the products of
    a score block.

        work(c) = 2 · T · w · (c + c0);  rate = P16 · e · share(d)
        t = t_floor + max(work(longest), total/N + q · work(longest)) · N / rate
        total = b · a · ⌈s_q/T⌉ · work(mean visited columns)

    w (`widths`): head widths of the block's products, added up; T (`tile`): queries of a tile
    (backward: keys, which see as many queries); c0 (`start_columns`): number of columns that cost
    as much as a tile's start and end; q (`tail_share`): tiles of unequal length on N SMs end within
    q of the longest one after the mean, and Graham's list-scheduling bound (SIAM J. Appl. Math.
    17(2), 1969) is q ≤ 1 - 1/N. Ignores HBM traffic, which does not limit a fused kernel at s ≥
    512.
    """
    per_column = 2.0 * tile * widths
    mean = per_column * (visited_columns(seq_kv, causal, window, tile) + start_columns)
    longest = per_column * (min(seq_kv, longest_row(seq_kv, window) + tile) + start_columns)
    total = batch * heads * math.ceil(seq_q / tile) * mean
    critical = max(longest, total / gpu.sm_count + tail_share * longest)
    rate = gpu.matmul16_flop_per_s * efficiency * head_width_share(head_dim, gpu)
    return gpu.kernel_floor_s + critical * gpu.sm_count / rate


@jit
def attention_forward_time_s(
    batch: float, seq_q: float, seq_kv: float, heads: float, qk_head_dim: float, v_head_dim: float,
    causal: float, window: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of fused attention forward: 2 products (scores, output) per block, `flash_time_s`.

    Kernels of one width pad the other to max(qk, v); in kernels of two widths, scores take qk and
    the output v. `causal`: 1 or 0; `window`: keys seen, 0 for all. Dao, FlashAttention-2 (arXiv
    2307.08691), section 3.1: 4·s²·d·a FLOP, half when causal.
    """
    keys, values = padded(qk_head_dim, v_head_dim, gpu), padded(v_head_dim, qk_head_dim, gpu)
    return flash_time_s(
        batch, seq_q, seq_kv, heads, max(keys, values), keys + values, causal, window,
        gpu.attention_forward_efficiency, gpu.attention_forward_tile,
        gpu.attention_forward_start_columns, gpu.attention_forward_tail_share, gpu,
    )  # fmt: skip


@jit
def attention_backward_time_s(
    batch: float, seq_q: float, seq_kv: float, heads: float, qk_head_dim: float, v_head_dim: float,
    causal: float, window: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of fused attention backward: 5 products per block, 2.5 × forward's FLOP.

    Scores again, then the gradients of probabilities, values, queries and keys: three of width qk
    and two of width v. Dao, FlashAttention-2 (arXiv 2307.08691), section 4.1. Otherwise the same as
    `attention_forward_time_s`.
    """
    keys, values = padded(qk_head_dim, v_head_dim, gpu), padded(v_head_dim, qk_head_dim, gpu)
    return flash_time_s(
        batch, seq_q, seq_kv, heads, max(keys, values), 3.0 * keys + 2.0 * values, causal, window,
        gpu.attention_backward_efficiency, gpu.attention_backward_tile,
        gpu.attention_backward_start_columns, gpu.attention_backward_tail_share, gpu,
    )  # fmt: skip


@jit
def alignment_share(head_dim: float, gpu: GpuInputs) -> float:
    """Rate of unfused attention's batched products, relative to that for heads with 16-byte rows.

    Tensor cores load operands in vectors of 16 bytes, 8 elements of 16 bits; rows of another width
    fall back to slow kernels (NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core
    requirements").
    """
    return 1.0 if head_dim % _VECTOR_ELEMENTS == 0.0 else gpu.misaligned_share


@jit
def eager_attention_forward_time_s(
    batch: float, seq_q: float, seq_kv: float, heads: float, qk_head_dim: float, v_head_dim: float,
    traffic: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of unfused attention forward, as Megatron-LM ran it before FlashAttention.

    Two batched GEMMs over the full square and two passes over its b·a·s² entries: fused
    scale-mask-softmax (2 B read, 2 B written), dropout (2 B read, 2 B and a 1 B mask written).
    Narayanan et al. (arXiv 2104.04473), section 4.2. The causal mask saves nothing here. `traffic`:
    bytes of those passes relative to fused ones; 1 as above.
    """
    pairs, element = batch * heads, gpu.element_bytes
    peak = gpu.matmul16_flop_per_s
    share = gpu.gemm16_max_efficiency * alignment_share(qk_head_dim, gpu)
    scores = gemm_time_s(seq_q, seq_kv, qk_head_dim, pairs, peak, share, element, gpu)
    output = gemm_time_s(seq_q, v_head_dim, seq_kv, pairs, peak, share, element, gpu)
    entries = pairs * seq_q * seq_kv
    softmax = memory_bound_time_s(traffic * 2.0 * _HALF_BYTES * entries, 1.0, gpu)
    dropout = memory_bound_time_s(traffic * (2.0 * _HALF_BYTES + _MASK_BYTES) * entries, 1.0, gpu)
    return scores + softmax + dropout + output


@jit
def eager_attention_backward_time_s(
    batch: float, seq_q: float, seq_kv: float, heads: float, qk_head_dim: float, v_head_dim: float,
    traffic: float, gpu: GpuInputs,
) -> float:  # fmt: skip
    """Seconds of unfused attention backward: two GEMMs for each of forward's, and two passes.

    Dropout reads a gradient and the mask and writes a gradient; softmax reads a gradient and the
    probabilities and writes a gradient. See `eager_attention_forward_time_s`.
    """
    pairs, element = batch * heads, gpu.element_bytes
    peak = gpu.matmul16_flop_per_s
    share = gpu.gemm16_max_efficiency * alignment_share(qk_head_dim, gpu)
    probabilities = gemm_time_s(seq_q, seq_kv, v_head_dim, pairs, peak, share, element, gpu)
    values = gemm_time_s(seq_kv, v_head_dim, seq_q, pairs, peak, share, element, gpu)
    queries = gemm_time_s(seq_q, qk_head_dim, seq_kv, pairs, peak, share, element, gpu)
    keys = gemm_time_s(seq_kv, qk_head_dim, seq_q, pairs, peak, share, element, gpu)
    entries = pairs * seq_q * seq_kv
    dropout = memory_bound_time_s(traffic * (2.0 * _HALF_BYTES + _MASK_BYTES) * entries, 1.0, gpu)
    softmax = memory_bound_time_s(traffic * 3.0 * _HALF_BYTES * entries, 1.0, gpu)
    return probabilities + values + queries + keys + dropout + softmax
