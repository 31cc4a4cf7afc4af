"""Rows of the feed-forward block: dense, or router, dispatch, experts, combine, shared experts."""

from __future__ import annotations

from dataclasses import replace

from planner.job.modules import Module
from planner.job.specs import LayerKind, MoeSpec
from planner.predict.ops.attention import tp_entry, tp_exit
from planner.predict.ops.context import (
    WHOLE_LAYER,
    OpContext,
    linear_inputs,
    norm,
    present,
    residual,
)
from planner.predict.ops.rows import (
    Collective,
    CollectiveKind,
    Group,
    Hidden,
    Op,
    OpKind,
    ParamShard,
    Saved,
    Shard,
)


def ffn_rows(context: OpContext, kind: LayerKind) -> tuple[Op, ...]:
    """All rows of one feed-forward block of the given kind."""
    moe = context.model.moe
    body = _moe_rows(context, moe) if kind.ffn == "moe" and moe else _dense_rows(context)
    return (
        *_input_norm(context),
        *body,
        *_output_norm(context),
        residual(context, "ffn/residual", Module.NOTHING),
    )


def _input_norm(context: OpContext) -> tuple[Op, ...]:
    """Norm before the block; none when one norm feeds both branches or norms come after."""
    if context.model.block in ("single", "post"):
        return ()
    row = norm(context, "ffn/norm", context.model.hidden, Shard.SEQUENCE, Module.NOTHING)
    copies = context.norm_input_bytes != context.saved.residual_bytes
    if context.model.block == "parallel" and not copies:
        # Both norms of parallel branches keep the same input.
        row = replace(row, saved=tuple(item for item in row.saved if item.name != "ffn/norm/input"))
    return (row,)


def _output_norm(context: OpContext) -> tuple[Op, ...]:
    if context.model.block not in ("sandwich", "post"):
        return ()
    return (norm(context, "ffn/post_norm", context.model.hidden, Shard.SEQUENCE, Module.NOTHING),)


def _gate_factor(context: OpContext) -> float:
    """Matrices between hidden and FFN width on the way up: gate and up, or one."""
    return 2.0 if context.model.gated else 1.0


def _dense_rows(context: OpContext) -> tuple[Op, ...]:
    """Column-parallel up (and gate), activation, row-parallel down."""
    return _mlp(context, "mlp", float(context.model.ffn), Module.MLP)


def _mlp(context: OpContext, name: str, width: float, owner: Module) -> tuple[Op, ...]:
    model = context.model
    gates = _gate_factor(context)
    hidden = float(model.hidden)
    bias = 1.0 if model.mlp_bias else 0.0
    # Recomputing the norm as well brings its output back, which else is the checkpoint; inside
    # a recomputed MoE layer the shared experts need none of their own.
    value = owner & ~Module.MOE
    freed = WHOLE_LAYER | Module.LAYERNORM | (owner & Module.MOE)
    checkpoint = Saved(f"{name}/checkpoint", 2 * hidden, Shard.SEQUENCE, freed, only_with=value)
    # torchtitan's policy keeps every second matmul's output: the gate's of gate and up.
    kept_output = Saved(
        f"{name}/up_output", 2 * width, Shard.TP, Module.NOTHING, only_with=Module.SELECTIVE_OP
    )
    products = 1 if context.applies(context.saved.fused_gate_up_families) else int(gates)
    inputs = linear_inputs(
        context, f"{name}/up", hidden, Shard.SEQUENCE, products, Module.LAYERNORM | owner
    )
    if context.saved.linear_inputs_shared and _input_is_kept_elsewhere(context, name):
        inputs = ()
    up = Op(
        name=f"{name}/up",
        kind=OpKind.GEMM,
        out_width=gates * width,
        out_shard=Shard.TP,
        in_width=hidden,
        parameters=((gates * width * (hidden + bias), ParamShard.TP),),
        saved=(*inputs, checkpoint, kept_output),
        collectives=tp_entry(context, f"{name}/up", hidden, WHOLE_LAYER | owner),
        rerun_with=Module.FULL | owner,
    )
    ups = (up,) if context.profile.kernels.fused_projections or gates == 1 else _split(up, name)
    down = Op(
        name=f"{name}/down",
        kind=OpKind.GEMM,
        out_width=hidden,
        in_width=width,
        in_shard=Shard.TP,
        parameters=((width * hidden, ParamShard.TP), (bias * hidden, ParamShard.NONE)),
        saved=(
            *_down_input(context, f"{name}/down", width, Shard.TP, owner, 1.0),
            *_down_output(context, f"{name}/down_output"),
        ),
        collectives=tp_exit(f"{name}/down", hidden, Module.FULL | owner),
        rerun_with=Module.FULL | owner,
    )
    activation = _activation(context, name, width, Shard.TP, 1.0, owner)
    return (*ups, activation, down)


def _input_is_kept_elsewhere(context: OpContext, name: str) -> bool:
    """One norm feeds attention and the block, or a router and the shared experts beside it."""
    if name == "shared_experts":
        saved = context.saved
        return saved.shared_experts_share_input and saved.router_input_bytes is None
    return context.model.block == "single"


def _down_output(context: OpContext, name: str) -> tuple[Saved, ...]:
    """The block's output, kept by the per-op policy because a product made it."""
    if not context.saved.policy_keeps_unread:
        return ()
    size = 2.0 * context.model.hidden
    return (Saved(name, size, Shard.SEQUENCE, Module.NOTHING, only_with=Module.SELECTIVE_OP),)


def _down_input(
    context: OpContext, name: str, width: float, shard: Shard, owner: Module, factor: float
) -> tuple[Saved, ...]:
    """The activation's output, kept by the down projection; `owner`: what recomputes it."""
    if not context.saved.down_input:
        return ()
    return linear_inputs(context, name, width, shard, 1, owner, factor)


def _split(up: Op, name: str) -> tuple[Op, Op]:
    """Gate and up as two products that share their input; a per-op policy runs up again."""
    ((count, shard),) = up.parameters
    gate = replace(
        up, name=f"{name}/gate", out_width=up.out_width / 2, parameters=((count / 2, shard),)
    )
    other = replace(
        up,
        out_width=gate.out_width,
        parameters=gate.parameters,
        saved=(),
        collectives=(),
        rerun_with=up.rerun_with | Module.SELECTIVE_OP,
    )
    return gate, other


def _activation(
    context: OpContext, name: str, width: float, shard: Shard, factor: float, owner: Module
) -> Op:
    """Activation between the projections: reads gate and up, writes one; backward the reverse."""
    gated = context.model.gated
    saved = context.saved
    kept = Saved(
        f"{name}/activation_input",
        _activation_bytes(context) * width * factor,
        shard,
        WHOLE_LAYER | owner,
    )
    forward, backward = (3.0, 5.0) if gated else (2.0, 3.0)
    return Op(
        name=f"{name}/activation",
        kind=OpKind.MEMORY,
        tokens=shard,
        tokens_factor=factor,
        forward_bytes=forward * saved.activation_bytes * width,
        backward_bytes=backward * saved.activation_bytes * width,
        backward_kernels=1,
        saved=(kept,),
        rerun_with=WHOLE_LAYER | owner | _activation_module(owner),
    )


def _activation_module(owner: Module) -> Module:
    """The module `moe_act`: activations of routed experts alone (Megatron-Core, experts.py)."""
    return Module.ACTIVATION if owner == Module.MOE else Module.NOTHING


def _activation_bytes(context: OpContext) -> float:
    """Bytes per unit of FFN width that the activation keeps besides its output."""
    saved = context.saved
    if context.model.gated:
        return saved.gated_activation_tensors * saved.activation_bytes
    if context.model.activation == "gelu_new" and saved.unfused_gelu_bytes is not None:
        return saved.unfused_gelu_bytes
    return saved.plain_activation_tensors * saved.activation_bytes


def _moe_rows(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    hidden, latent = float(context.model.hidden), float(moe.latent or 0)
    return (
        _router(context, moe),
        *(_latent(context, "moe/latent_down", hidden, latent) if latent else ()),
        *_dispatch(context, moe),
        *_experts(context, moe),
        *_combine(context, moe),
        *(_latent(context, "moe/latent_up", latent, hidden) if latent else ()),
        *(_shared_experts(context, moe) if moe.shared_ffn else ()),
    )


def _expert_hidden(context: OpContext, moe: MoeSpec) -> float:
    """Width of what is sent to experts."""
    return float(moe.latent or context.model.hidden)


def _latent(context: OpContext, name: str, into: float, out: float) -> tuple[Op, ...]:
    """Projection to the experts' latent width or back, the same on every tp rank (Megatron-Core,
    transformer/moe/moe_layer.py, `fc1_latent_proj`)."""
    return (
        Op(
            name=name,
            kind=OpKind.GEMM,
            tokens=Shard.SEQUENCE,
            out_width=out,
            in_width=into,
            parameters=((into * out, ParamShard.NONE),),
            # The router keeps the input of the way down.
            saved=()
            if name.endswith("down")
            else linear_inputs(context, name, into, Shard.SEQUENCE, 1, Module.MOE),
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _copies(context: OpContext, moe: MoeSpec) -> float:
    """Copies of a token that experts compute: one for each it was routed to, or one for each."""
    if context.saved.experts_see_all_tokens:
        return float(moe.experts)
    return moe.top_k * context.expert_imbalance


def _routed(context: OpContext, moe: MoeSpec) -> float:
    """Copies of a token that the router makes, however they fall on experts."""
    return float(moe.experts if context.saved.experts_see_all_tokens else moe.top_k)


def _router(context: OpContext, moe: MoeSpec) -> Op:
    """Router: logits over all experts, replicated over tp, with its fp32 softmax and top-k."""
    hidden = float(context.model.hidden)
    experts = float(moe.experts)
    bias = experts if moe.router_bias else 0.0
    saved = context.saved
    type_bytes = saved.router_input_bytes
    inputs = linear_inputs(
        context, "moe/router", hidden, Shard.SEQUENCE, 1, Module.LAYERNORM, low_precision=False
    )
    if type_bytes is not None:
        inputs = (replace(inputs[0], bytes_per_token=type_bytes * hidden),)
    copy = Saved(
        "moe/router/weight",
        0.0,
        Shard.NONE,
        WHOLE_LAYER | Module.MOE,
        fixed_bytes=saved.router_weight_copy_bytes * experts * hidden,
    )
    return Op(
        name="moe/router",
        kind=OpKind.GEMM,
        tokens=Shard.SEQUENCE,
        out_width=experts,
        in_width=hidden,
        parameters=((experts * hidden + bias, ParamShard.NONE),),
        saved=(
            *inputs,
            *present((copy,)),
            # By default fp32 scores, probabilities and the routing map (one byte each).
            Saved(
                "moe/routing",
                saved.routing_bytes_per_expert * experts
                + saved.routing_bytes_per_group * moe.groups
                + saved.routing_bytes_per_top_group * moe.top_groups
                + saved.routing_bytes_per_token * moe.normalised,
                Shard.SEQUENCE,
                WHOLE_LAYER | Module.MOE,
            ),
        ),
        low_precision=False,
        forward_kernels=6,
        backward_kernels=6,
        rerun_with=WHOLE_LAYER | Module.MOE,
    )


def _dispatch(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Permutation by expert and the all-to-all that takes each token to its experts' ranks."""
    hidden = _expert_hidden(context, moe)
    copies = _copies(context, moe)
    element = context.saved.activation_bytes
    passes = context.profile.kernels.dispatch_passes
    per_copy = (
        context.saved.routing_bytes_per_copy
        + context.saved.normalised_bytes_per_copy * moe.normalised
    )
    return (
        Op(
            name="moe/dispatch",
            kind=OpKind.MEMORY,
            tokens=Shard.SEQUENCE,
            # Each a read and a write of the routed copies.
            forward_bytes=2 * passes * element * hidden * copies,
            backward_bytes=2 * passes * element * hidden * copies,
            forward_kernels=4,
            backward_kernels=4,
            saved=(
                Saved(
                    "moe/permutation",
                    per_copy * _routed(context, moe),
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
                *_exchange("moe/dispatch", hidden, copies),
                *_expert_tensor("moe/dispatch", hidden, copies),
            ),
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _exchange(name: str, hidden: float, copies: float) -> tuple[Collective, ...]:
    """All-to-all over the expert group: bytes of the routed copies a rank sends."""
    return (
        Collective(
            f"{name}/all_to_all",
            CollectiveKind.ALL_TO_ALL,
            Group.EP,
            2.0 * hidden * copies,
            1,
            1,
            Shard.SEQUENCE,
            Hidden.EP_OVERLAP,
            Hidden.EP_OVERLAP,
            WHOLE_LAYER | Module.MOE,
        ),
    )


def _expert_tensor(name: str, hidden: float, copies: float) -> tuple[Collective, ...]:
    """Gather of the routed tokens over expert-tp (its mirror image follows the experts)."""
    return (
        Collective(
            f"{name}/etp_gather",
            CollectiveKind.ALL_GATHER,
            Group.ETP,
            2.0 * hidden * copies,
            1,
            1,
            Shard.ROUTED,
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _experts(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Grouped GEMMs of the routed experts."""
    hidden, width = _expert_hidden(context, moe), float(moe.ffn)
    gates = _gate_factor(context)
    copies = _copies(context, moe)
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
        saved=_in_expert_type(
            context,
            linear_inputs(context, "moe/experts_up", hidden, Shard.ROUTED, 1, Module.MOE, copies),
        ),
        autocasts=autocasts,
        rerun_with=Module.FULL | Module.SELECTIVE_OP | Module.MOE,
    )
    activation = _activation(context, "moe", width, Shard.ROUTED_TP, copies, Module.MOE)
    activation = replace(activation, saved=_in_expert_type(context, activation.saved))
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
        saved=_in_expert_type(
            context,
            _down_input(
                context,
                "moe/experts_down",
                width,
                Shard.ROUTED_TP,
                Module.MOE | Module.ACTIVATION,
                copies,
            ),
        ),
        autocasts=autocasts,
        rerun_with=Module.FULL | Module.SELECTIVE_OP | Module.MOE,
    )
    return (up, activation, down, *_expert_bias(context, moe))


def _in_expert_type(context: OpContext, saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    """Tensors in the type of the experts' products instead of that of others."""
    type_bytes = context.saved.expert_bytes
    if type_bytes is None:
        return saved
    factor = type_bytes / context.saved.activation_bytes
    return tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in saved)


def _expert_bias(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """The bias of the experts' outputs, times the probabilities, which are fp32, so as its sum.

    Bytes of a routed element, operation by operation (Megatron-Core, transformer/moe/experts.py,
    `_apply_bias`): product 4, sum 10, concatenation 8, cast 6; backward casts 12, concatenation 4,
    and a product and a sum each for the gradients of biases and probabilities, 24. The bias of the
    first product is added by its kernel.
    """
    if not moe.expert_bias:
        return ()
    copies = _copies(context, moe)
    hidden = _expert_hidden(context, moe)
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
    hidden = _expert_hidden(context, moe)
    copies = _copies(context, moe)
    element = context.saved.activation_bytes
    passes = context.profile.kernels.dispatch_passes
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
            forward_bytes=element * hidden * ((2 * passes - 1) * copies + 1),
            backward_bytes=element * hidden * (2 * passes * copies + 1),
            forward_kernels=4,
            backward_kernels=4,
            saved=kept,
            collectives=(
                Collective(
                    "moe/combine/etp_scatter",
                    CollectiveKind.REDUCE_SCATTER,
                    Group.ETP,
                    2.0 * hidden * copies,
                    1,
                    1,
                    Shard.ROUTED,
                    rerun_with=WHOLE_LAYER | Module.MOE,
                ),
                *_exchange("moe/combine", hidden, copies),
            ),
            rerun_with=WHOLE_LAYER | Module.MOE,
        ),
    )


def _shared_experts(context: OpContext, moe: MoeSpec) -> tuple[Op, ...]:
    """Shared experts: a dense MLP beside the routed ones, with Qwen2-MoE's scalar gate."""
    owner = Module.SHARED_EXPERTS | Module.MOE
    rows = _mlp(context, "shared_experts", float(moe.shared_ffn), owner)
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
