"""Products with weights: the inputs that they keep, and how tensor parallelism splits them."""

from __future__ import annotations

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.predict.ops.context import WHOLE_LAYER, OpContext
from planner.predict.ops.rows import Collective, Op, Saved


def linear_inputs(
    context: OpContext,
    name: str,
    width: float,
    freed_by: Module,
    shard: Shard = Shard.SEQUENCE,
    *,
    consumers: int = 1,
    factor: float = 1.0,
    low_precision: bool = True,
) -> tuple[Saved, ...]:
    """The kept input of one linear, or of several that read the same tensor.

    Under autocast every consumer keeps a cast of its own; otherwise they share one tensor. A linear
    that stays in 16 bits in an fp8 job (`low_precision` False) keeps the plain tensor.
    """
    copies = 1 if context.saved.linear_inputs_shared else consumers
    if shard is Shard.SEQUENCE and context.saved.keeps_gathered_inputs:
        shard = Shard.NONE
    element = context.saved.linear_input_bytes
    if not low_precision:
        element = max(element, context.saved.activation_bytes)
    size = copies * element * width * factor
    return (Saved(f"{name}/input", size, shard, WHOLE_LAYER | freed_by),)


def _forward(name: str, kind: CollectiveKind, size: float, rerun_with: Module) -> Collective:
    """Tensor-parallel traffic of a forward pass, which may overlap with the adjacent product;
    `rerun_with`: recompute modes that repeat it."""
    overlap = Hidden.TP_OVERLAP
    return Collective(name, kind, "tp", size, 1, 0, hidden_forward=overlap, rerun_with=rerun_with)


def _backward(
    name: str, kind: CollectiveKind, size: float, hidden: Hidden, *, split: bool = False
) -> Collective:
    """Tensor-parallel traffic of a backward pass. `hidden`: the work with which it may overlap;
    `split`: it exists only under sequence parallelism."""
    return Collective(
        name, kind, "tp", size, 0, 1, hidden_backward=hidden, rerun_with=Module.NOTHING,
        sequence_parallel_only=split,
    )  # fmt: skip


def tp_entry(
    context: OpContext, name: str, width: float, rerun_with: Module
) -> tuple[Collective, ...]:
    """Tensor-parallel traffic before a column-parallel linear (Korthikanti 2022, section 4.2).

    Under sequence parallelism: all-gather forward; backward gathers the input once more for the
    weight gradient, unless forward kept it gathered, and reduce-scatters the input gradient, both
    while a GEMM runs. Without it the kernel replaces each all-gather/reduce-scatter pair by the
    equivalent all-reduce.
    """
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    size, beside = 2.0 * width, Hidden.BEHIND_GEMM
    again = _backward(f"{name}/gather_again", gather, size, beside, split=True)
    return (
        _forward(f"{name}/gather", gather, size, rerun_with),
        *(() if context.saved.keeps_gathered_inputs else (again,)),
        _backward(f"{name}/scatter_gradient", scatter, size, beside),
    )


def tp_exit(name: str, width: float, rerun_with: Module) -> tuple[Collective, ...]:
    """Tensor-parallel traffic after a row-parallel linear: scatter the output, and gather its
    gradient."""
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return (
        _forward(f"{name}/scatter", scatter, 2.0 * width, rerun_with),
        _backward(f"{name}/gather_gradient", gather, 2.0 * width, Hidden.TP_OVERLAP),
    )


def column_parallel(
    name: str,
    sizes: tuple[float, float],
    saved: tuple[Saved, ...],
    collectives: tuple[Collective, ...],
    rerun_with: Module = WHOLE_LAYER,
    *,
    bias: bool = False,
) -> Op:
    """A product from one width to another, split over tp by its outputs."""
    into, out = sizes
    return Op(
        name=name,
        kind=OpKind.GEMM,
        out_width=out,
        out_shard=Shard.TP,
        in_width=into,
        parameters=((out * (into + bias), ParamShard.TP),),
        saved=saved,
        collectives=collectives,
        rerun_with=rerun_with,
    )


def row_parallel(
    name: str,
    sizes: tuple[float, float],
    saved: tuple[Saved, ...],
    exit_again: Module = Module.FULL,
    rerun_with: Module = WHOLE_LAYER,
    *,
    bias: bool = False,
) -> Op:
    """A product from one width to another, split over tp by its inputs; `exit_again`: recompute
    modes that repeat the scatter of its output."""
    into, out = sizes
    return Op(
        name=name,
        kind=OpKind.GEMM,
        out_width=out,
        in_width=into,
        in_shard=Shard.TP,
        parameters=((into * out, ParamShard.TP), (float(bias) * out, ParamShard.NONE)),
        saved=saved,
        collectives=tp_exit(name, out, exit_again),
        rerun_with=rerun_with,
    )


def replicated(
    name: str,
    sizes: tuple[float, float],
    saved: tuple[Saved, ...],
    rerun_with: Module = Module.FULL,
) -> Op:
    """A product from one width to another whose weights every tp rank has whole; each rank computes
    its part of the sequence."""
    into, out = sizes
    return Op(
        name=name,
        kind=OpKind.GEMM,
        tokens=Shard.SEQUENCE,
        out_width=out,
        in_width=into,
        parameters=((into * out, ParamShard.NONE),),
        saved=saved,
        rerun_with=rerun_with,
    )
