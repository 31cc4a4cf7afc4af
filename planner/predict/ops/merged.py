"""Adapters that are merged with their weights before each use.

peft cannot add a layer to a bare tensor of weights, such as the experts of a layer or, since
transformers 5, a router. It computes W + s·B·A, of W's size and type, by which the layer multiplies
(peft 0.21, src/peft/tuners/lora/layer.py, ParamWrapper: `_LoraFactorsProxy`, and for one matrix
`_LoraParameterProxy`). The graph keeps the sum, for the gradient of the input, and the input, for
the gradient of the sum, from which the gradients of A and B follow. For an input x to n experts
peft's A is (r·n) x in and its B out x (r·n); if gate and up are one tensor their rank doubles
(peft/utils/transformers_weight_conversion.py, `_convert_peft_config_moe`).

Computing the sum costs 2·r FLOP per weight and takes as long as its memory traffic; only the
traffic is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard
from planner.job.parameter_classes import class_name
from planner.job.recompute import Module
from planner.predict.ops.adapter_parts import Part
from planner.predict.ops.context import WHOLE_LAYER, OpContext, present
from planner.predict.ops.rows import Op, Saved

_HALF, _FP32 = 2.0, 4.0
ROUTER = "moe/router"


def merges(op: Op, context: OpContext) -> bool:
    """Whether adapters of a row are merged with its weights."""
    bare = op.kind is OpKind.GROUPED_GEMM or op.name == ROUTER
    return bare and bool(context.profile.adapters.merges_tensors)


def with_sum(op: Op, context: OpContext) -> Op:
    """A frozen row that multiplies by the sum W + s·B·A: the row with the kept sum, the gradient of
    the sum, and their memory traffic.

    Bytes per weight, r = read, w = written, in W's type: forward r of W, w of the sum; backward r
    of the gradient of the sum for A and r for B. During backward that gradient is alive as a whole,
    for all experts. It is counted for the second product only: the first product's gradient is no
    larger than the second product's sum and gradient, which are freed by then (counted on a step of
    a small Qwen3-MoE on a CPU: within 1 %).
    """
    size = context.profile.state.weight_bytes
    first = op.name.endswith("experts_up")
    count = op.groups * op.in_width * op.out_width
    kept = Saved(f"{op.name}/merged", 0.0, op.tokens, _freed(op), fixed_bytes=size * count)
    return replace(
        op,
        saved=(*op.saved, kept),
        merged=True,
        weight_traffic=2.0 * size,
        weight_copies=0.0 if first else size * op.groups,
    )


def _freed(op: Op) -> Module:
    """Recompute modes that run the row again and recompute the sum."""
    return WHOLE_LAYER | op.rerun_with


def merged_rows(op: Op, part: Part, context: OpContext) -> Iterator[Op]:
    """The adapters' matrices of a row, which are held but not multiplied with activations."""
    joined = 2.0 if op.name.endswith("experts_up") and context.model.gated else 1.0
    rank, groups = joined * context.tuning.rank, op.groups
    held = context.tuning.adapter or context.profile.adapters.weight_type
    count = groups * rank * (part.into + part.out)
    grouped = op.kind is OpKind.GROUPED_GEMM
    shard = ParamShard.EXPERT if grouped else ParamShard.NONE
    cast = Saved(f"{op.name}/{part.name}/cast", 0.0, op.tokens, _freed(op),
                 fixed_bytes=_cast_bytes(held, grouped, context) * count)  # fmt: skip
    yield Op(
        name=f"{op.name}/{part.name}/lora",
        kind=OpKind.MEMORY,
        tokens=op.tokens,
        tokens_factor=op.tokens_factor,
        forward_kernels=4.0,
        backward_kernels=6.0,
        parameters=((count, shard),),
        parameter_class=class_name(
            "adapter", None if held == "framework" else held, expert=grouped
        ),
        saved=present((cast,)),
        torch_operators=True,
        captured=op.captured,
        rerun_with=op.rerun_with,
    )


def _cast_bytes(held: str, grouped: bool, context: OpContext) -> float:
    """Bytes per value of the copy of fp32 adapter matrices in the type of the weights, which the
    graph keeps. `grouped`: the matrices belong to experts, which always make the copy; a single
    matrix makes it only if autocast casts the operands of the product of B and A. 0 if no copy is
    made."""
    rules, size = context.profile.adapters, context.profile.state.weight_bytes
    if held != "fp32" or size >= _FP32:
        return 0.0
    autocasts = 0.0 < rules.cast_bytes < _FP32
    return _HALF if grouped or autocasts else 0.0
