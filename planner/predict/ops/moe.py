"""Rows of experts: dispatch, grouped products, combine, shared experts."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import CollectiveKind, Hidden, OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.job.specs import MoeSpec
from planner.predict.ops.context import WHOLE_LAYER, OpContext, elementwise
from planner.predict.ops.linear import linear_inputs
from planner.predict.ops.mlp import activation_row, down_input, gate_factor, mlp_rows
from planner.predict.ops.router import BLOCK, Experts, latent_rows, router, routing
from planner.predict.ops.rows import Collective, Op, Saved

# Modes that run the activation of routed experts again; `moe_act` runs only that (Megatron-Core,
# experts.py).
_ACTIVATION = Module.MOE | Module.ACTIVATION | Module.MLP_ACT
# Modes that run the experts' products again.
_PRODUCTS = Module.FULL | Module.SELECTIVE_OP | Module.MOE


def moe_rows(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Rows of one layer's experts."""
    experts = Experts(context, moe)
    hidden, latent = float(context.model.hidden), float(moe.latent or 0)
    routed = (
        _dispatch(experts),
        *_local_dispatch(experts),
        *_experts(experts),
        _combine(experts),
        *latent_rows(context, "moe/latent_up", latent, hidden),
    )
    return (
        router(experts),
        routing(experts),
        *latent_rows(context, "moe/latent_down", hidden, latent),
        *(replace(op, captured=False) for op in routed),
        *(_shared_experts(context, moe) if moe.shared_ffn else ()),
    )


def _padding_bytes(experts: Experts) -> float:
    """HBM bytes per token of copying the routed copies into or out of padded buffers, in one kernel
    (`Kernels.pads_experts`); 0 unless products are quantised."""
    kernels = experts.context.profile.kernels
    if not kernels.pads_experts or experts.context.quantised_input_bytes == 0.0:
        return 0.0
    return 2.0 * experts.copied_bytes / kernels.memory_traffic


def _added(experts: Experts) -> float:
    """Number of values per token that atomic operations add up when the routed copies of a token
    are summed; 0 if the framework has a fused kernel for that (`fused_permutation`)."""
    fused = experts.context.profile.kernels.fused_permutation
    return 0.0 if fused else experts.hidden * experts.copies


def _dispatch(experts: Experts) -> Op:
    """Permutation by expert, and the all-to-all that sends each token to its experts' ranks."""
    context, moe, saved = experts.context, experts.moe, experts.context.saved
    kernels = context.profile.kernels
    # Each pass reads and writes the routed copies.
    moved = 2 * kernels.dispatch_passes * experts.copied_bytes + _padding_bytes(experts)
    per_copy = saved.routing_bytes_per_copy + saved.normalised_bytes_per_copy * moe.normalised
    offsets = saved.expert_offset_bytes * moe.experts
    # Each rank receives, for every other rank's tokens, the experts to which they go, a byte per
    # expert (DeepEP, branch hybrid-ep, executor.cu, `allgather_routing_map`); backward reuses it.
    routing_map = Collective(
        "moe/dispatch/map", CollectiveKind.ALL_GATHER, "ep", context.mapped_experts, 1, 0,
        Shard.SEQUENCE, Hidden.EP_OVERLAP, rerun_with=BLOCK,
    )  # fmt: skip
    freed = WHOLE_LAYER | Module.LAYERNORM
    checkpoint_bytes = 2.0 * context.model.hidden
    return Op(
        name="moe/dispatch",
        kind=OpKind.MEMORY,
        tokens=Shard.SEQUENCE,
        forward_bytes=moved,
        backward_bytes=moved,
        forward_kernels=4,
        backward_kernels=4,
        backward_adds=_added(experts),
        host_waits=float(kernels.counts_on_host),
        saved=(
            Saved(
                "moe/permutation", per_copy * experts.routed, Shard.SEQUENCE, BLOCK,
                fixed_bytes=offsets,
            ),
            Saved("moe/checkpoint", checkpoint_bytes, Shard.SEQUENCE, freed, Module.MOE),
        ),
        collectives=(
            *((routing_map,) if routing_map.bytes_per_token else ()),
            _exchange("moe/dispatch", experts),
            _expert_tensor("moe/dispatch/etp_gather", CollectiveKind.ALL_GATHER, experts),
        ),
        rerun_with=BLOCK,
    )  # fmt: skip


def _local_dispatch(experts: Experts) -> tuple[Op, ...]:
    """A row for additional passes over the routed copies, at dispatch and combine, on a rank that
    holds all experts: a fused dispatcher avoids them only where it exchanges tokens. Empty if there
    are no additional passes."""
    kernels = experts.context.profile.kernels
    further = kernels.local_dispatch_passes - kernels.dispatch_passes
    if kernels.local_dispatch_passes == 0.0 or further <= 0.0:
        return ()
    moved = 4 * further * experts.copied_bytes
    return (
        Op(
            name="moe/local_permutation",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            forward_bytes=moved,
            backward_bytes=moved,
            forward_kernels=0,
            backward_kernels=0,
            local=True,
            rerun_with=BLOCK,
        ),
    )


def _exchange(name: str, experts: Experts) -> Collective:
    """All-to-all over the expert group: bytes of the routed copies that a rank sends."""
    return Collective(
        f"{name}/all_to_all", CollectiveKind.ALL_TO_ALL, "ep",
        2.0 * experts.hidden * experts.copies, 1, 1, Shard.SEQUENCE, Hidden.EP_OVERLAP,
        Hidden.EP_OVERLAP, BLOCK,
    )  # fmt: skip


def _expert_tensor(name: str, kind: CollectiveKind, experts: Experts) -> Collective:
    """Gather of routed tokens over expert-tp before the experts, or the corresponding scatter after
    them."""
    size = 2.0 * experts.hidden * experts.copies
    return Collective(name, kind, "etp", size, 1, 1, Shard.ROUTED, rerun_with=BLOCK)


def _experts(experts: Experts) -> tuple[Op, ...]:
    """Grouped GEMMs of the routed experts, and the activation between them."""
    context, hidden, copies = experts.context, experts.hidden, experts.copies
    width, gates = float(experts.moe.ffn), gate_factor(context)
    up_input = linear_inputs(
        context, "moe/experts_up", hidden, Module.MOE, Shard.ROUTED, factor=copies
    )
    up = _grouped(experts, "moe/experts_up", (hidden, gates * width), up_input)
    routed = (Shard.ROUTED_TP, copies)
    activation = activation_row(context, "moe", width, Module.MOE, _ACTIVATION, *routed)
    kept = (*activation.saved, *_unweighted(context, width * copies))
    forward_bytes, backward_bytes = _clamping_bytes(experts)
    activation = replace(
        activation,
        saved=_in_expert_type(context, kept),
        forward_bytes=activation.forward_bytes + forward_bytes,
        backward_bytes=activation.backward_bytes + backward_bytes,
    )
    kept = down_input(context, "moe/experts_down", width, _ACTIVATION, *routed)
    down = _grouped(experts, "moe/experts_down", (width, hidden), kept)
    return (
        replace(up, out_shard=Shard.EXPERT_TP),
        activation,
        replace(down, in_shard=Shard.EXPERT_TP),
        *_expert_bias(experts),
    )


def _grouped(
    experts: Experts, name: str, sizes: tuple[float, float], saved: tuple[Saved, ...]
) -> Op:
    """One product of all experts, from one width to another."""
    count, (into, out), saved_rules = float(experts.moe.experts), sizes, experts.context.saved
    bias = 1.0 if experts.moe.expert_bias else 0.0
    return Op(
        name=name,
        kind=OpKind.GROUPED_GEMM,
        tokens=Shard.ROUTED,
        tokens_factor=experts.copies,
        out_width=out,
        in_width=into,
        groups=count,
        parameters=((count * out * (into + bias), ParamShard.EXPERT),),
        parameter_class="expert",
        saved=_in_expert_type(experts.context, saved),
        forward_launches=1.0,
        backward_launches=2.0,
        autocasts=saved_rules.expert_bytes in (None, saved_rules.activation_bytes),
        rerun_with=_PRODUCTS,
    )


def _unweighted(context: OpContext, width: float) -> tuple[Saved, ...]:
    """The output of a plain GELU, kept for the gradient of the routing weights that multiply it;
    empty for other activations, or if the weights multiply the experts' outputs instead. SwiGLU,
    quick GEGLU and squared ReLU have kernels that multiply and keep only their input (Megatron-Core
    0.13, transformer/moe/experts.py, `bias_act_func`)."""
    plain_gelu = context.model.activation.startswith("gelu") and not context.model.gated
    if context.saved.moe_keeps_expert_output or not plain_gelu:
        return ()
    owner = WHOLE_LAYER | _ACTIVATION
    return (context.kept("moe/activation_output", width, Shard.ROUTED_TP, owner),)


def _in_expert_type(context: OpContext, saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """The kept tensors with the bytes of the type in which the experts' products run; unchanged if
    that is the type of other activations. Experts skip the cast that autocast makes for a plain
    activation."""
    type_bytes = context.saved.expert_bytes
    if type_bytes is None:
        return saved
    factor = type_bytes / context.saved.activation_bytes
    if not context.model.gated and saved[0].name.endswith("activation_input"):
        factor /= context.saved.plain_activation_tensors
    return tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in saved)


def _clamping_bytes(experts: Experts) -> tuple[float, float]:
    """HBM bytes per routed token, forward and backward, of limiting gate and up before they are
    multiplied.

    The fused activation starts afterwards (Megatron-Core, fusions/fused_bias_geglu.py,
    `weighted_bias_quick_geglu_impl`). Bytes per element of either half, operation by operation:
    clamps 4 and 4, concatenation 8; backward compares and selects 8 for the one limit of the gate
    and 14 for both of up, and concatenates the halves' gradients, 8.
    """
    moe, traffic = experts.moe, experts.context.profile.kernels.memory_traffic
    width = moe.ffn / traffic if moe.clamp else 0.0
    return 16.0 * width, 30.0 * width


def _expert_bias(experts: Experts) -> tuple[Op, ...]:
    """The bias of the experts' outputs, times the probabilities; because these are fp32, the sum is
    too.

    Bytes per routed element, operation by operation (Megatron-Core, transformer/moe/experts.py,
    `_apply_bias`): product 4, sum 10, concatenation 8, cast 6; backward casts 12, concatenation 4,
    and a product and a sum each for the gradients of biases and probabilities, 24. The bias of the
    first product is added by its kernel.
    """
    if not experts.moe.expert_bias:
        return ()
    traffic = experts.context.profile.kernels.memory_traffic
    return (
        Op(
            name="moe/experts_bias",
            kind=OpKind.MEMORY,
            tokens=Shard.ROUTED,
            tokens_factor=experts.copies,
            forward_bytes=28.0 * experts.hidden / traffic,
            backward_bytes=40.0 * experts.hidden / traffic,
            forward_kernels=2,
            backward_kernels=4,
            # Forward: a product and a sum for each expert. Backward: a product and a sum each for
            # the gradients of its bias and its probabilities, casts of the gradients of the output
            # and the bias, and the gradients of both products' biases, added to their fp32 buffers.
            groups=float(experts.moe.experts),
            forward_launches=2.0,
            backward_launches=8.0,
            rerun_with=_PRODUCTS,
        ),
    )


def _expert_output_bytes(context: OpContext) -> float:
    """Bytes per element of the tensor that the routing weights multiply: the experts' outputs or,
    if all experts see all tokens, their inputs, which have the residual's type."""
    saved = context.saved
    if saved.experts_see_all_tokens:
        return saved.residual_bytes
    return saved.activation_bytes if saved.expert_bytes is None else saved.expert_bytes


def _combine(experts: Experts) -> Op:
    """Reverse exchange and weighted sum of the experts' outputs."""
    context, hidden, copies = experts.context, experts.hidden, experts.copies
    saved, passes = context.saved, context.profile.kernels.dispatch_passes
    width, padding = saved.activation_bytes * hidden, _padding_bytes(experts)
    name = "moe/scaled_input" if saved.experts_see_all_tokens else "moe/expert_output"
    kept = Saved(name, _expert_output_bytes(context) * hidden * copies, Shard.SEQUENCE, BLOCK)
    return Op(
        name="moe/combine",
        kind=OpKind.MEMORY,
        tokens=Shard.SEQUENCE,
        # A fused dispatcher's combine adds up the copies as it receives them.
        forward_bytes=width * ((2 * passes - 1) * copies + 1) + padding,
        backward_bytes=width * (2 * passes * copies + 1) + padding,
        forward_kernels=4,
        backward_kernels=4,
        forward_adds=_added(experts),
        saved=(kept,) if saved.moe_keeps_expert_output else (),
        collectives=(
            _expert_tensor("moe/combine/etp_scatter", CollectiveKind.REDUCE_SCATTER, experts),
            _exchange("moe/combine", experts),
        ),
        rerun_with=BLOCK,
    )


def _shared_experts(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Shared experts: a dense MLP in parallel with the routed ones, with Qwen2-MoE's scalar gate if
    the model has it."""
    owner = Module.SHARED_EXPERTS | Module.MOE
    rows = mlp_rows(context, "shared_experts", float(moe.shared_ffn), owner)
    if not moe.shared_gate:
        return rows
    hidden, name = float(context.model.hidden), "shared_experts/gate"
    inputs = linear_inputs(context, name, hidden, Module.LAYERNORM | Module.MOE)
    gated = context.kept("shared_experts/gated", hidden + 1.0, Shard.SEQUENCE, BLOCK)
    row = elementwise(context, name, hidden, Shard.SEQUENCE, (2, 3), BLOCK)
    return (
        *rows,
        replace(
            row,
            backward_kernels=2.0,
            parameters=((hidden, ParamShard.NONE),),
            saved=(gated,) if context.saved.linear_inputs_shared else (*inputs, gated),
        ),
    )
