"""Rows of state-space and linear-attention mixers: projection, convolution, recurrence in chunks,
gated norm, output projection.

Symbols: H = heads, P = head_dim, N = state, K = groups·N (width of B or C, of keys or queries), I =
H·P, Q = chunk. Sources: Mamba-2's kernels (mamba_ssm, ops/triton/ssd_combined.py) as Megatron-Core
calls them (core/ssm/mamba_mixer.py), flash-linear-attention's gated delta rule, transformers 5.23
(modeling_qwen3_next.py, modeling_minimax.py, modeling_jamba.py).

Heads are split over tp; context parallelism distributes them by all-to-all before the convolution
and returns the outputs (core/ssm/mamba_context_parallel.py). Ignored: copies of groups if there are
fewer groups than ranks, and GPU copies of that exchange.

For transformers 5.23, kept tensors are counted one by one: Mamba-2 is mamba_ssm's fused kernel
(ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn), Mamba-1 its MambaInnerFn or, if its
steps have norms, SelectiveScanFn after causal_conv1d; gated delta nets are flash-linear-attention's
rule and torch's gated norm; lightning attention is torch. Without these packages transformers
computes the first three in torch, and keeps many times as much.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from planner.cost.codes import CollectiveKind, OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.job.specs import LayerKind, StateSpaceSpec
from planner.predict.ops.context import WHOLE_LAYER, OpContext, elementwise, present
from planner.predict.ops.linear import column_parallel, linear_inputs, row_parallel, tp_entry
from planner.predict.ops.rows import Collective, Op, Saved

# Tensor-core FLOP that take as long as one FLOP of a selective scan: its exponentials, one of nine
# operations for each channel and state, run at 16 an SM and cycle against some 4,100 FLOP (H100).
# Assumed: at 0.15 of that rate, where products of scans in chunks reach 0.083 (`scan_efficiency`).
_EXPONENTIAL_COST = 4100.0 / 16.0 / 9.0 * 0.083 / 0.15
_SCAN_FLOP = 9.0
# mamba_ssm's Triton kernels wait for Python: on one H200 (torch 2.11, Triton 3.6; 64 and 128 heads,
# 8,192 tokens) `mamba_chunk_scan_combined` takes 0.6 to 0.7 ms of CPU forward, as much as five
# modules, and 3.0 to 3.4 ms backward.
_SCAN_BACKWARD_KERNELS = 25
# HBM traffic of backward over that of forward; backward runs most of forward again.
_BACKWARD_TRAFFIC = 3.0


def state_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of a state-space mixer, between the norms of its block."""
    space = context.model.state_space
    if space is None:
        return ()
    rows = (
        _in_projection(context, space, beside=kind.attention == "both"),
        *(_steps(context, space) if space.kind == "mamba1" else ()),
        *(_convolution(context, space) if space.conv else ()),
        _scan(context, space),
        *(_gated_norm(context, space) if space.gated_norm else ()),
        _out_projection(context, space),
    )
    return _as_transformers(context, space, rows) if context.saved.fused_mixers else rows


def _as_transformers(
    context: OpContext, space: StateSpaceSpec, rows: tuple[Op, ...]
) -> tuple[Op, ...]:
    """The rows with the tensors that transformers keeps; under autocast two projections each cast
    their input."""
    hidden, kept = float(context.model.hidden), defaultdict[str, list[Saved]](list)
    products = 1 + (space.kind in ("gated_delta", "lightning"))
    kept["in_proj"] += linear_inputs(
        context, "state/in_proj", hidden, Module.LAYERNORM, consumers=products
    )
    for name, size in kept_bytes(context, space, projected_width(space)).items():
        row = Saved(f"state/{name}", size, Shard.TP, WHOLE_LAYER)
        kept[name.partition("/")[0]].append(row)
    fixed = fixed_bytes(context, space)
    kept["scan"].append(Saved("state/decays", 0.0, Shard.TP, WHOLE_LAYER, fixed_bytes=fixed))
    return tuple(replace(op, saved=present(tuple(kept[op.name[6:]]))) for op in rows)


def projected_width(space: StateSpaceSpec) -> float:
    """Output width of the input projection: values, gate, B, C (keys, queries), steps, decays."""
    steps = {"mamba2": 1.0, "gated_delta": 2.0}.get(space.kind, 0.0)
    keys = 0.0 if space.kind == "mamba1" else 2.0 * space.key_width
    return 2.0 * space.inner + keys + steps * space.heads


def _in_projection(context: OpContext, space: StateSpaceSpec, *, beside: bool) -> Op:
    """Column-parallel projection; its output is kept, so that convolution and scan can run
    again."""
    hidden, width, name = float(context.model.hidden), projected_width(space), "state/in_proj"
    inputs = linear_inputs(context, name, hidden, context.norm_in_linear)
    kept = context.kept("state/projected", width)
    # In parallel with attention, the qkv projection keeps the same input.
    saved = (kept,) if beside and context.saved.linear_inputs_shared else (*inputs, kept)
    gathers = () if beside else tp_entry(context, name, hidden, WHOLE_LAYER)
    collectives = (*gathers, _head_exchange("state/cp_heads", width))
    return column_parallel(name, (hidden, width), saved, collectives, bias=space.projection_bias)


def _head_exchange(name: str, width: float) -> Collective:
    """All-to-all over cp from tokens to heads or back, and for the gradients in backward."""
    kind, size = CollectiveKind.HEAD_EXCHANGE, 2.0 * width
    return Collective(name, kind, "cp", size, 1, 1, Shard.TP, rerun_with=WHOLE_LAYER)


def _steps(context: OpContext, space: StateSpaceSpec) -> tuple[Op, ...]:
    """Mamba-1's projections to steps, B and C, and from the rank of the steps to channels."""
    inner, rank = float(space.inner), float(space.step_rank)
    width = rank + 2.0 * space.state
    steps = row_parallel(
        "state/x_proj", (inner, width), (context.kept("state/steps", width, Shard.NONE),)
    )
    ((weights, shard), _) = steps.parameters
    norms = width if space.inner_norms else 0.0
    return (
        replace(steps, parameters=((weights, shard), (norms, ParamShard.NONE)), collectives=()),
        column_parallel(
            "state/step_proj", (rank, inner), (context.kept("state/step", inner),), (), bias=True
        ),
    )


def _convolution(context: OpContext, space: StateSpaceSpec) -> tuple[Op, ...]:
    """Causal depthwise convolution with its activation, which backward first runs again. Its
    channels are the values and, except in Mamba-1, B and C."""
    width = space.inner + (0.0 if space.kind == "mamba1" else 2.0 * space.key_width)
    row = elementwise(context, "state/conv", width, Shard.TP, (2.0, 6.0))
    weights = width * (space.conv + float(space.conv_bias))
    # Megatron and mamba_ssm's fused path keep only the convolution's input, gated delta nets also
    # its output.
    saved = () if space.kind == "mamba2" else (context.kept("state/mixed", width),)
    parameters = ((weights, ParamShard.TP),)
    return (replace(row, backward_kernels=2.0, parameters=parameters, saved=saved),)


def scan_products(space: StateSpaceSpec) -> float:
    """Multiply-adds per token in the recurrence of all heads, for whole blocks of a chunk.

    SSD: C·B for each group, and for each head scores·x, B·x into the state, C·state:

        G·Q·N + H·(Q·P + 2·N·P)

    (arXiv 2405.21060, section 6). Gated delta rule: keys and queries of every value head, the
    triangular solve's two products, and three with the state, H·(3·Q·N + 2·Q·P + 3·N·P). Selective
    scan: nine FLOP for each channel and state (arXiv 2312.00752, appendix D).
    """
    heads, width, state, chunk = space.heads, space.head_dim, space.state, space.chunk
    if space.kind == "mamba1":
        return _SCAN_FLOP / 2.0 * space.inner * state
    if space.kind == "gated_delta":
        return float(heads * (3 * chunk * state + 2 * chunk * width + 3 * state * width))
    return float(space.groups * chunk * state + heads * (chunk * width + 2 * state * width))


def _scan_bytes(space: StateSpaceSpec, element: float) -> float:
    """HBM bytes per token in forward, kernel by kernel.

    SSD: x twice, gate, two outputs; B and C three times together, their product in fp32 by groups;
    states of each chunk written and read in fp32 and in 16 bits (12 bytes). Gated delta rule: q, k
    and v copied for the heads and normed, w and u made from them, and read again. Selective scan:
    x, step, gate and output.
    """
    inner, chunk = float(space.inner), float(space.chunk)
    states = 12.0 * inner * space.state / chunk
    if space.kind == "mamba1":
        return 4.0 * element * inner
    if space.kind == "gated_delta":
        keys = float(space.heads * space.state)
        return element * (9.0 * keys + 7.0 * inner) + 12.0 * chunk * space.heads + states
    products = 8.0 * space.groups * chunk
    return element * (5.0 * inner + 4.0 * space.key_width) + products + states


def _scan(context: OpContext, space: StateSpaceSpec) -> Op:
    """The recurrence. It keeps its output before the gate; backward recomputes states and the
    convolution's output, and computes their gradients."""
    element = context.saved.activation_bytes
    traffic = _scan_bytes(space, element) / context.profile.kernels.memory_traffic
    states = 4.0 * space.inner * space.state / space.chunk if space.kind != "mamba1" else 0.0
    heads = {"mamba2": 3.0, "gated_delta": 2.0}.get(space.kind, 0.0)
    decays = space.inner * (space.state + 1.0) if space.kind == "mamba1" else heads * space.heads
    return Op(
        name="state/scan",
        kind=OpKind.SCAN,
        tokens=Shard.TP,
        in_width=scan_products(space),
        out_width=1.0,
        groups=_EXPONENTIAL_COST if space.kind == "mamba1" else 1.0,
        forward_bytes=traffic,
        backward_bytes=_BACKWARD_TRAFFIC * traffic,
        work_bytes=2.0 * states + 2.0 * element * projected_width(space),
        forward_kernels=5,
        backward_kernels=_SCAN_BACKWARD_KERNELS,
        parameters=((decays, ParamShard.TP),),
        saved=(context.kept("state/scanned", space.inner),),
        collectives=(_head_exchange("state/cp_heads_back", float(space.inner)),),
        rerun_with=WHOLE_LAYER,
    )


def _gated_norm(context: OpContext, space: StateSpaceSpec) -> tuple[Op, ...]:
    """Norm of the gated output over each group's width, or over each head's with a shared scale."""
    inner, per_head = float(space.inner), space.kind == "gated_delta"
    row = elementwise(context, "state/norm", inner, Shard.TP, (3, 5))
    norms = space.heads if per_head else space.groups
    statistics = context.norm_statistics_bytes * norms
    kept = (
        context.kept("state/norm/input", inner),
        Saved("state/norm/statistics", statistics, Shard.TP, WHOLE_LAYER),
    )
    scale = (float(space.head_dim), ParamShard.NONE) if per_head else (inner, ParamShard.TP)
    return (replace(row, parameters=(scale,), saved=present(kept)),)


def _out_projection(context: OpContext, space: StateSpaceSpec) -> Op:
    """Row-parallel projection back to the hidden width; it keeps its input."""
    sizes, name = (float(space.inner), float(context.model.hidden)), "state/out_proj"
    inputs = linear_inputs(context, name, sizes[0], Module.NOTHING, Shard.TP)
    return row_parallel(name, sizes, inputs, bias=space.projection_bias)


Sizes = dict[str, float]
# Mamba-1's kernel keeps its states, two numbers each, once per this number of tokens.
_SCAN_CHUNK = 2048


def kept_bytes(context: OpContext, space: StateSpaceSpec, projected: float) -> Sizes:
    """Bytes per token by `row/tensor`, without the inputs that the projections' rows list
    themselves; `projected`: output width of the input projection."""
    if space.kind == "mamba2":
        return _mamba2(context, space, projected)
    if space.kind == "gated_delta":
        return _gated_delta(context, space)
    if space.kind == "lightning":
        return _lightning(context, space)
    return _mamba1(context, space)


def fixed_bytes(context: OpContext, space: StateSpaceSpec) -> float:
    """Bytes of the fp32 decays before and after negation, for every head or every channel and
    state, and of fp32 copies of 16-bit weights."""
    if space.kind in ("mamba2", "gated_delta"):
        return 8.0 * space.heads
    if space.kind == "lightning":
        return 0.0
    return 8.0 * space.inner * (space.state + (context.mode == "bf16"))


def _mamba2(context: OpContext, space: StateSpaceSpec, projected: float) -> Sizes:
    """Tensors of Mamba-2. Falcon-H1, whose mixers run in parallel with attention, scales the
    projection by a vector of the residual's type."""
    beside = any(kind.attention == "both" for kind in context.model.kinds)
    element = context.saved.residual_bytes if beside else context.saved.activation_bytes
    return {
        "in_proj/projected": element * projected,
        "scan/scanned": element * space.inner,
        "scan/statistics": 4.0 * space.groups * space.gated_norm,
    }


def _mamba1(context: OpContext, space: StateSpaceSpec) -> Sizes:
    """Tensors of Mamba-1. B and C are kept as projected and separately. Jamba norms steps, B and C,
    and the scan reads the scaled B and C; the convolution's output is kept by tokens and by
    channels."""
    element, inner = context.saved.activation_bytes, float(space.inner)
    chunks = -(-context.seq // _SCAN_CHUNK)
    kept = {
        "in_proj/projected": 2.0 * element * inner,
        "scan/states": 8.0 * inner * space.state * chunks / context.seq,
        "scan/scanned": element * inner,
    }
    if not space.inner_norms:
        return kept | {"x_proj/steps": element * (space.step_rank + 4.0 * space.state)}
    width, extra = space.step_rank + 2.0 * space.state, min(context.norm_extra_bytes, element)
    scaled = max(element, context.saved.residual_bytes) * 2.0 * space.state
    return kept | {
        "x_proj/input": element * inner,
        "x_proj/norms": (context.norm_input_bytes + extra) * width + 3 * 4.0 + scaled,
        "step_proj/input": element * space.step_rank,
        "scan/input": 3.0 * element * inner,
        "out_proj/input": element * inner,
    }


def _gated_delta(context: OpContext, space: StateSpaceSpec) -> Sizes:
    """Tensors of a gated delta net. Queries and keys are kept before the convolution and normed;
    torch's norm of the output keeps its input, its gate and the gate's SiLU in fp32, and the
    factors of two products."""
    saved = context.saved
    element, inner = saved.activation_bytes, float(space.inner)
    factors = element + max(element, saved.residual_bytes)
    return {
        "conv/input": element * (inner + 2.0 * space.key_width),
        "scan/input": element * (inner + 2.0 * space.key_width) + 8.0 * space.groups,
        # Write strengths, steps before and after their softplus, cumulated, scores of a chunk.
        "scan/steps": (element * (1.0 + space.chunk) + 12.0) * space.heads,
        "norm/input": (12.0 + factors) * inner + 4.0 * space.heads,
        "out_proj/input": element * inner,
    }


def _lightning(context: OpContext, space: StateSpaceSpec) -> Sizes:
    """Tensors of lightning attention: blocks of queries, keys and values, of decayed queries and
    keys, and of values again (views of one tensor if a batch is one sequence); scores and states.
    The first block reads no state."""
    element, inner = context.saved.activation_bytes, float(space.inner)
    block = min(space.chunk, context.seq)
    blocks = 5.0 if context.one_sequence else 6.0
    factor = max(element, context.saved.residual_bytes)
    return {
        "in_proj/projected": 3.0 * element * inner,
        "scan/blocks": element * inner * (blocks - block / context.seq),
        "scan/scores": element * space.heads * block,
        "scan/states": element * inner * space.state / block,
        "norm/input": (context.norm_input_bytes + element) * inner + 4.0,
        "out_proj/gated": (element + factor) * inner,
        "out_proj/input": element * inner,
    }
