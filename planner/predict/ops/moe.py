"""Rows of experts: dispatch, grouped products, combine, shared experts."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.modules import Module
from planner.job.specs import MoeSpec
from planner.predict.ops.context import WHOLE_LAYER, OpContext, linear_inputs
from planner.predict.ops.mlp import activation_row, down_input, gate_factor, mlp_rows
from planner.predict.ops.router import (
    copies_of,
    expert_hidden,
    latent_rows,
    routed_copies,
    router,
    routing,
)
from planner.predict.ops.rows import Collective, Op, Saved

# What runs the activation of routed experts again. The module `moe_act`: of them alone
# (Megatron-Core, experts.py).
_ACTIVATION = Module.MOE | Module.ACTIVATION | Module.MLP_ACT


def moe_rows(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Rows of one layer's experts."""
    hidden, latent = float(context.model.hidden), float(moe.latent or 0)
    routed = (
        *_dispatch(context, moe),
        *_local_dispatch(context, moe),
        *_experts(context, moe),
        *_combine(context, moe),
        *(latent_rows(context, "moe/latent_up", latent, hidden) if latent else ()),
    )
    return (
        router(context, moe),
        routing(context, moe),
        *(latent_rows(context, "moe/latent_down", hidden, latent) if latent else ()),
        *(replace(op, captured=False) for op in routed),
        *(_shared_experts(context, moe) if moe.shared_ffn else ()),
    )


def _padding_bytes(context: OpContext, moe: MoeSpec) -> float:
    """HBM bytes per token of copying the routed copies into padded buffers, or out of them, in one
    kernel (`Kernels.pads_experts`); 0 where products are not quantised."""
    kernels = context.profile.kernels
    if not kernels.pads_experts or context.quantised_input_bytes == 0.0:
        return 0.0
    copied = context.saved.activation_bytes * expert_hidden(context, moe) * copies_of(context, moe)
    return 2.0 * copied / kernels.memory_traffic


def _added(context: OpContext, moe: MoeSpec) -> float:
    """Values of a token's routed copies, where atomics add them up (`fused_permutation`)."""
    if context.profile.kernels.fused_permutation:
        return 0.0
    return expert_hidden(context, moe) * copies_of(context, moe)


def _dispatch(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Permutation by expert and the all-to-all that takes each token to its experts' ranks."""
    hidden = expert_hidden(context, moe)
    copies = copies_of(context, moe)
    element = context.saved.activation_bytes
    passes = context.profile.kernels.dispatch_passes
    padding = _padding_bytes(context, moe)
    per_copy = (
        context.saved.routing_bytes_per_copy
        + context.saved.normalised_bytes_per_copy * moe.normalised
    )
    # Each rank learns of every other's tokens which experts they go to, a byte an expert
    # (DeepEP, branch hybrid-ep, executor.cu, `allgather_routing_map`); backward uses it again.
    routing_map = Collective(
        "moe/dispatch/map", CollectiveKind.ALL_GATHER, "ep", context.mapped_experts, 1, 0,
        Shard.SEQUENCE, Hidden.EP_OVERLAP, rerun_with=WHOLE_LAYER | Module.MOE,
    )  # fmt: skip
    return (
        Op(
            name="moe/dispatch",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            # Each a read and a write of the routed copies.
            forward_bytes=2 * passes * element * hidden * copies + padding,
            backward_bytes=2 * passes * element * hidden * copies + padding,
            forward_kernels=4,
            backward_kernels=4,
            backward_adds=_added(context, moe),
            host_waits=float(context.profile.kernels.counts_on_host),
            saved=(
                Saved(
                    "moe/permutation",
                    per_copy * routed_copies(context, moe),
                    Shard.SEQUENCE,
                    WHOLE_LAYER | Module.MOE,
                    fixed_bytes=context.saved.expert_offset_bytes * moe.experts,
                ),
                Saved(
                    "moe/checkpoint",
                    2.0 * context.model.hidden,
                    Shard.SEQUENCE,
                    WHOLE_LAYER | Module.LAYERNORM,
                    only_with=Module.MOE,
                ),
            ),
            collectives=(
                *((routing_map,) if routing_map.bytes_per_token else ()),
                *_exchange("moe/dispatch", hidden, copies),
                *_expert_tensor(
                    "moe/dispatch/etp_gather", CollectiveKind.ALL_GATHER, hidden, copies
                ),
            ),
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _local_dispatch(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Passes over the routed copies that a fused dispatcher saves, and that a rank which holds all
    experts makes all the same: those of dispatch and of combine."""
    kernels = context.profile.kernels
    further = kernels.local_dispatch_passes - kernels.dispatch_passes
    if kernels.local_dispatch_passes == 0.0 or further <= 0.0:
        return ()
    copied = 2 * further * context.saved.activation_bytes
    copied *= expert_hidden(context, moe) * copies_of(context, moe)
    return (
        Op(
            name="moe/local_permutation",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            forward_bytes=2 * copied,
            backward_bytes=2 * copied,
            forward_kernels=0,
            backward_kernels=0,
            local=True,
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _exchange(name: str, hidden: float, copies: float) -> tuple[Collective, ...]:
    """All-to-all over the expert group: bytes of the routed copies a rank sends."""
    return (
        Collective(
            f"{name}/all_to_all", CollectiveKind.ALL_TO_ALL, "ep", 2.0 * hidden * copies, 1, 1,
            Shard.SEQUENCE, Hidden.EP_OVERLAP, Hidden.EP_OVERLAP, WHOLE_LAYER | Module.MOE,
        ),
    )  # fmt: skip


def _expert_tensor(
    name: str, kind: CollectiveKind, hidden: float, copies: float
) -> tuple[Collective, ...]:
    """Routed tokens gathered over expert-tp, or scattered, its mirror image, behind the experts."""
    size, rerun = 2.0 * hidden * copies, WHOLE_LAYER | Module.MOE
    return (Collective(name, kind, "etp", size, 1, 1, Shard.ROUTED, rerun_with=rerun),)


def _experts(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Grouped GEMMs of the routed experts."""
    hidden, width = expert_hidden(context, moe), float(moe.ffn)
    gates = gate_factor(context)
    copies = copies_of(context, moe)
    bias = 1.0 if moe.expert_bias else 0.0
    experts = float(moe.experts)
    autocasts = context.saved.expert_bytes in (None, context.saved.activation_bytes)
    up = Op(
        name="moe/experts_up",
        kind=OpKind.GROUPED_GEMM,
        tokens=Shard.ROUTED,
        tokens_factor=copies,
        out_width=gates * width,
        out_shard=Shard.EXPERT_TP,
        in_width=hidden,
        groups=experts,
        parameters=((experts * gates * width * (hidden + bias), ParamShard.EXPERT),),
        parameter_class="expert",
        saved=_in_expert_type(
            context,
            linear_inputs(context, "moe/experts_up", hidden, Shard.ROUTED, 1, Module.MOE, copies),
        ),
        forward_launches=1.0,
        backward_launches=2.0,
        autocasts=autocasts,
        rerun_with=Module.FULL | Module.SELECTIVE_OP | Module.MOE,
    )
    activation = activation_row(
        context, "moe", width, Shard.ROUTED_TP, copies, Module.MOE, _ACTIVATION
    )
    forward_bytes, backward_bytes = _clamping_bytes(context, moe)
    activation = replace(
        activation,
        saved=_in_expert_type(context, (*activation.saved, *_unweighted(context, width * copies))),
        forward_bytes=activation.forward_bytes + forward_bytes,
        backward_bytes=activation.backward_bytes + backward_bytes,
    )
    down = Op(
        name="moe/experts_down",
        kind=OpKind.GROUPED_GEMM,
        tokens=Shard.ROUTED,
        tokens_factor=copies,
        out_width=hidden,
        in_width=width,
        in_shard=Shard.EXPERT_TP,
        groups=experts,
        parameters=((experts * hidden * (width + bias), ParamShard.EXPERT),),
        parameter_class="expert",
        saved=_in_expert_type(
            context,
            down_input(
                context,
                "moe/experts_down",
                width,
                Shard.ROUTED_TP,
                _ACTIVATION,
                copies,
            ),
        ),
        forward_launches=1.0,
        backward_launches=2.0,
        autocasts=autocasts,
        rerun_with=Module.FULL | Module.SELECTIVE_OP | Module.MOE,
    )
    return (up, activation, down, *_expert_bias(context, moe))


def _unweighted(context: OpContext, width: float) -> tuple[Saved, ...]:
    """A plain GELU's output, kept to differentiate the weights that are multiplied with it: SwiGLU,
    quick GEGLU and squared ReLU have kernels that multiply and keep their input alone
    (Megatron-Core 0.13, transformer/moe/experts.py, `bias_act_func`)."""
    plain_gelu = context.model.activation.startswith("gelu") and not context.model.gated
    if context.saved.moe_keeps_expert_output or not plain_gelu:
        return ()
    size = context.saved.activation_bytes * width
    owner = WHOLE_LAYER | _ACTIVATION
    return (Saved("moe/activation_output", size, Shard.ROUTED_TP, owner),)


def _in_expert_type(context: OpContext, saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Tensors in the type of the experts' products instead of that of others; what autocast casts
    for a plain activation is not cast there."""
    type_bytes = context.saved.expert_bytes
    if type_bytes is None:
        return saved
    factor = type_bytes / context.saved.activation_bytes
    if not context.model.gated and saved[0].name.endswith("activation_input"):
        factor /= context.saved.plain_activation_tensors
    return tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in saved)


def _clamping_bytes(context: OpContext, moe: MoeSpec) -> tuple[float, float]:
    """HBM bytes per routed token, forward and backward, of limiting gate and up before they are
    multiplied.

    The fused activation begins after it (Megatron-Core, fusions/fused_bias_geglu.py,
    `weighted_bias_quick_geglu_impl`), so bytes of an element of either half, operation by
    operation: clamps 4 and 4, concatenation 8; backward compares and selects 8 for the one limit
    of the gate, 14 for both of up, and concatenates the halves' gradients, 8.
    """
    width = moe.ffn / context.profile.kernels.memory_traffic if moe.clamp else 0.0
    return 16.0 * width, 30.0 * width


def _expert_bias(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """The bias of the experts' outputs, times the probabilities, which are fp32, so as its sum.

    Bytes of a routed element, operation by operation (Megatron-Core, transformer/moe/experts.py,
    `_apply_bias`): product 4, sum 10, concatenation 8, cast 6; backward casts 12, concatenation 4,
    and a product and a sum each for the gradients of biases and probabilities, 24. The bias of the
    first product is added by its kernel.
    """
    if not moe.expert_bias:
        return ()
    copies = copies_of(context, moe)
    hidden = expert_hidden(context, moe)
    return (
        Op(
            name="moe/experts_bias",
            kind=OpKind.MEMORY,
            tokens=Shard.ROUTED,
            tokens_factor=copies,
            forward_bytes=28.0 * hidden / context.profile.kernels.memory_traffic,
            backward_bytes=40.0 * hidden / context.profile.kernels.memory_traffic,
            forward_kernels=2,
            backward_kernels=4,
            # A product and a sum for each expert; backward a product and a sum each for the
            # gradients of its bias and its probabilities, casts of the output's and the bias's, and
            # the gradients of both products' biases, added to their fp32 buffers.
            groups=float(moe.experts),
            forward_launches=2.0,
            backward_launches=8.0,
            rerun_with=Module.FULL | Module.SELECTIVE_OP | Module.MOE,
        ),
    )


def _expert_output_bytes(context: OpContext) -> float:
    """Bytes per element of what is weighted: the experts' outputs, or their inputs, which are of
    the residual's type."""
    saved = context.saved
    if saved.experts_see_all_tokens:
        return saved.residual_bytes
    return saved.activation_bytes if saved.expert_bytes is None else saved.expert_bytes


def _combine(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Reverse exchange and weighted sum of the experts' outputs."""
    hidden = expert_hidden(context, moe)
    copies = copies_of(context, moe)
    element = context.saved.activation_bytes
    passes = context.profile.kernels.dispatch_passes
    padding = _padding_bytes(context, moe)
    kept = (
        (
            Saved(
                "moe/scaled_input" if context.saved.experts_see_all_tokens else "moe/expert_output",
                _expert_output_bytes(context) * hidden * copies,
                Shard.SEQUENCE,
                WHOLE_LAYER | Module.MOE,
            ),
        )
        if context.saved.moe_keeps_expert_output
        else ()
    )
    return (
        Op(
            name="moe/combine",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            # A fused dispatcher's combine adds up the copies as it receives them.
            forward_bytes=element * hidden * ((2 * passes - 1) * copies + 1) + padding,
            backward_bytes=element * hidden * (2 * passes * copies + 1) + padding,
            forward_kernels=4,
            backward_kernels=4,
            forward_adds=_added(context, moe),
            saved=kept,
            collectives=(
                *_expert_tensor(
                    "moe/combine/etp_scatter", CollectiveKind.REDUCE_SCATTER, hidden, copies
                ),
                *_exchange("moe/combine", hidden, copies),
            ),
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _shared_experts(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Shared experts: a dense MLP beside the routed ones, with Qwen2-MoE's scalar gate."""
    owner = Module.SHARED_EXPERTS | Module.MOE
    rows = mlp_rows(context, "shared_experts", float(moe.shared_ffn), owner)
    if not moe.shared_gate:
        return rows
    hidden = float(context.model.hidden)
    inputs = linear_inputs(
        context, "shared_experts/gate", hidden, Shard.SEQUENCE, 1, Module.LAYERNORM | Module.MOE
    )
    gate = Op(
        name="shared_experts/gate",
        kind=OpKind.MEMORY,
        tokens=Shard.SEQUENCE,
        forward_bytes=2 * context.saved.activation_bytes * hidden,
        backward_bytes=3 * context.saved.activation_bytes * hidden,
        parameters=((hidden, ParamShard.NONE),),
        saved=(
            *(() if context.saved.linear_inputs_shared else inputs),
            Saved(
                "shared_experts/gated",
                context.saved.activation_bytes * (hidden + 1.0),
                Shard.SEQUENCE,
                WHOLE_LAYER | Module.MOE,
            ),
        ),
        rerun_with=WHOLE_LAYER | Module.MOE,
    )
    return (*rows, gate)
