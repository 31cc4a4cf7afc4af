"""Megatron's modules over fp32 parameters under torch's autocast: casts, and work done in fp32.

Autocast multiplies in 16 bits, but an addition takes the wider of two types. Megatron adds the bias
of a product outside it, so an fp32 bias turns the 16-bit output into fp32, and so does the fp32
stream at each residual: activation, dropout and the stream between layers run in fp32, each
operation in a kernel of its own, and every product casts its operands again. Bytes per element,
r = read, w = written (megatron/core 0.16: tensor_parallel/layers.py,
LinearWithGradAccumulationAndAsyncCommunication; transformer/mlp.py; fusions/fused_bias_dropout.py;
torch/aten/src/ATen/autocast_mode.cpp):

    =========================  ==================================  ===============================
    what                       forward                             backward
    =========================  ==================================  ===============================
    input of a product, but    cast r4 w2                          cast again r4 w2, gradient to
    for attention's output                                         fp32 r2 w4
    output, where it has a     bias added r2 w4                    bias gradient r4, gradient to 16
    bias                                                           bits r4 w2
    query, key, value          cast r4 w2, put in order r4 w4      gradients to fp32 r2 w4, joined
                                                                   r4 w4
    activation                 r4 w4                               r4 r4 w4
    dropout of a branch        r4 w4, mask w1                      r4, mask r1, w4
    residual                   r4 r4 w4                            gradients of both branches added
                                                                   r4 r4 w4
    =========================  ==================================  ===============================

For GPT's block of width h and 4h, with biases and dropout, these are 540 h bytes per token and
layer, where fused 16-bit kernels move 82 h. Weights are cast forward and backward, and their 16-bit
gradients cast and added (`kernels.accumulation_traffic_bytes`). Modules of Transformer Engine cast
internally and add most biases there, so only what lies between them counts. Ignores experts, whose
products are grouped, and norms, which `context.norm` counts in the stream's type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.codes import OpKind, Shard
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op, Piece

_WIDE = 4.0
_INPUT = (6.0, 12.0)
_OUTPUT = (6.0, 10.0)
_HEADS = (14.0, 14.0)
_DROPOUT = (9.0, 9.0)
_RESIDUAL = (12.0, 12.0)


def with_promotions(piece: Piece, context: OpContext) -> Piece:
    """A layer with the casts and fp32 kernels that fp32 biases and residuals cause."""
    if not context.profile.kernels.promotes_biases:
        return piece
    return replace(piece, ops=tuple(row for op in piece.ops for row in _rows(op, context)))


def _rows(op: Op, context: OpContext) -> Iterator[Op]:
    """A row of a layer and the casts around it."""
    fused = bool(context.saved.norms_in_linears)
    biased = _has_bias(op, context)
    if op.kind is OpKind.ATTENTION and not fused and context.model.qkv_bias:
        width = op.heads * op.qk_head_dim + op.kv_heads * (op.qk_head_dim + op.v_head_dim)
        yield _casts(op, "casts", context, width, Shard.TP, _HEADS)
    if op.kind is OpKind.GEMM and _casts_input(op, fused=fused, biased=biased):
        yield _casts(op, "input_casts", context, op.in_width, op.in_shard, _INPUT)
    yield _widened(op, context)
    if op.kind is OpKind.GEMM and biased and not (fused and op.name == "attention/qkv"):
        yield _casts(op, "bias", context, op.out_width + op.kv_out_width, op.out_shard, _OUTPUT)


def _casts_input(op: Op, *, fused: bool, biased: bool) -> bool:
    """Whether a product receives an fp32 input. The output projection does not, because attention
    ends in a 16-bit product."""
    if op.name == "attention/out_proj":
        return False
    return not fused or (op.name == "mlp/down" and biased)


def _has_bias(op: Op, context: OpContext) -> bool:
    """Whether a bias is added to the row's product."""
    model = context.model
    biases = {
        "attention/qkv": model.qkv_bias,
        "attention/out_proj": model.attention_out_bias,
        "mlp/up": model.mlp_bias,
        "mlp/gate": model.mlp_bias,
        "mlp/down": model.mlp_bias,
    }
    return biases.get(op.name, False)


def _casts(
    op: Op, part: str, context: OpContext, width: float, shard: Shard, moved: tuple[float, float]
) -> Op:
    """Kernels next to a row. `moved`: bytes per element of `width` that they move, forward and
    backward."""
    traffic = context.profile.kernels.memory_traffic
    return Op(
        name=f"{op.name}/{part}",
        kind=OpKind.MEMORY,
        tokens=shard if shard is not Shard.NONE else op.tokens,
        forward_bytes=moved[0] * width / traffic,
        backward_bytes=moved[1] * width / traffic,
        backward_kernels=2.0,
        torch_operators=True,
        rerun_with=op.rerun_with,
    )


def _widened(op: Op, context: OpContext) -> Op:
    """An activation or residual that runs in fp32 because one of its operands is fp32."""
    model, traffic = context.model, context.profile.kernels.memory_traffic
    if op.name == "mlp/activation" and model.mlp_bias:
        wider = _WIDE / context.saved.activation_bytes
        return replace(
            op, forward_bytes=wider * op.forward_bytes, backward_bytes=wider * op.backward_bytes
        )
    if not op.name.endswith("/residual"):
        return op
    dropped = _DROPOUT if context.dropout else (0.0, 0.0)
    forward, backward = (
        (whole + part) * model.hidden / traffic
        for whole, part in zip(_RESIDUAL, dropped, strict=True)
    )
    kernels = 2.0 if context.dropout else 1.0
    return replace(
        op,
        forward_bytes=forward,
        backward_bytes=backward,
        forward_kernels=kernels,
        backward_kernels=kernels,
    )
