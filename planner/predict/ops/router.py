"""Rows before the experts: the router, what becomes of its logits, the way to a latent width."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.modules import Module
from planner.job.specs import MoeSpec
from planner.predict.ops.context import WHOLE_LAYER, OpContext, linear_inputs, present
from planner.predict.ops.rows import Op, Saved


def expert_hidden(context: OpContext, moe: MoeSpec) -> float:
    """Width of what is sent to experts."""
    return float(moe.latent or context.model.hidden)


def latent_rows(context: OpContext, name: str, into: float, out: float) -> tuple[Op, ...]:
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


def copies_of(context: OpContext, moe: MoeSpec) -> float:
    """Copies of a token that experts compute: one for each it was routed to, or one for each."""
    if context.saved.experts_see_all_tokens:
        return float(moe.experts)
    return moe.top_k * context.expert_imbalance


def routed_copies(context: OpContext, moe: MoeSpec) -> float:
    """Copies of a token that the router makes, however they fall on experts."""
    return float(moe.experts if context.saved.experts_see_all_tokens else moe.top_k)


def router(context: OpContext, moe: MoeSpec) -> Op:
    """Router: logits over all experts, replicated over tp; it keeps what `routing` makes too."""
    hidden = float(context.model.hidden)
    experts = float(moe.experts)
    bias = experts if moe.router_bias else 0.0
    saved = context.saved
    type_bytes = saved.router_input_bytes
    # Recomputed experts keep the same tensor as their checkpoint.
    freed = Module.LAYERNORM | (Module.MOE if type_bytes is None else Module.NOTHING)
    inputs = linear_inputs(
        context, "moe/router", hidden, Shard.SEQUENCE, 1, freed, low_precision=False
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
        rerun_with=WHOLE_LAYER | Module.MOE,
    )


def routing(context: OpContext, moe: MoeSpec) -> Op:
    """From logits to a map of tokens and their weights, and the loss that balances the load.

    36 small operators of torch in forward, 24 in backward (Megatron-Core 0.19, moe_utils.py,
    `topk_routing_with_score_function`, `compute_routing_scores_for_aux_loss`, router.py,
    `_apply_aux_loss`, token_dispatcher.py, `preprocess`): casts, top-k, softmax, scatter, sums; 12
    and 8 of them read and write an fp32 value of each token and expert. Transformer Engine fuses
    them into three calls (2.7, pytorch/router.py). They take the GPU 0.1 to 0.3 ms a layer, and on
    Grace, slow at bare launches, the CPU twice as long as modules do: mixtures that wait for it
    there, of five sources, were 5 to 27 % fast.
    """
    kernels = context.profile.kernels
    one_pass = 8.0 * moe.experts / kernels.memory_traffic
    fused = kernels.fused_router
    return Op(
        name="moe/routing",
        kind=OpKind.MEMORY,
        tokens=Shard.SEQUENCE,
        forward_bytes=(2.0 if fused else 12.0) * one_pass,
        backward_bytes=(2.0 if fused else 8.0) * one_pass,
        forward_kernels=3 if fused else 36,
        backward_kernels=3 if fused else 24,
        torch_operators=not fused,
        rerun_with=WHOLE_LAYER | Module.MOE,
    )
