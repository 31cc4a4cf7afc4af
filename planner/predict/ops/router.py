"""Rows before the experts: the router, its logits, and projections to a latent width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from planner.cost.codes import OpKind, Shard
from planner.job.recompute import Module
from planner.job.specs import MoeSpec
from planner.predict.ops.context import WHOLE_LAYER, OpContext, present
from planner.predict.ops.linear import linear_inputs, replicated
from planner.predict.ops.rows import Op, Saved

# Modes that run the experts' block again.
BLOCK = WHOLE_LAYER | Module.MOE


@dataclass(frozen=True)
class Experts:
    """The experts of a layer, and the quantities on which their rows depend."""

    context: OpContext
    moe: MoeSpec

    @cached_property
    def hidden(self) -> float:
        """Width of the tokens that experts receive."""
        return float(self.moe.latent or self.context.model.hidden)

    @cached_property
    def copies(self) -> float:
        """Number of copies of a token that experts compute: the number of experts per token, times
        the load of the busiest rank over the mean. If all experts see all tokens, it is the number
        of experts."""
        if self.context.saved.experts_see_all_tokens:
            return float(self.moe.experts)
        return self.moe.top_k * self.context.expert_imbalance

    @cached_property
    def routed(self) -> float:
        """Number of copies of a token that the router makes, without regard to imbalance among
        experts: the number of experts per token, or of all experts if all see all tokens."""
        all_tokens = self.context.saved.experts_see_all_tokens
        return float(self.moe.experts if all_tokens else self.moe.top_k)

    @cached_property
    def copied_bytes(self) -> float:
        """Bytes per token of all copies, in the type of activations."""
        return self.context.saved.activation_bytes * self.hidden * self.copies


def latent_rows(context: OpContext, name: str, into: float, out: float) -> tuple[Op, ...]:
    """Projection to the experts' latent width or back, the same on every tp rank (Megatron-Core,
    transformer/moe/moe_layer.py, `fc1_latent_proj`); empty if there is no latent width."""
    if not (into and out):
        return ()
    # The router already keeps the input of the down projection to the latent width.
    down = name.endswith("down")
    saved = () if down else linear_inputs(context, name, into, Module.MOE)
    return (replicated(name, (into, out), saved, BLOCK),)


def router(experts: Experts) -> Op:
    """Router: logits over all experts, replicated over tp; this row also lists the tensors that
    `routing` computes and keeps."""
    context, moe, saved = experts.context, experts.moe, experts.context.saved
    hidden, count = float(context.model.hidden), float(moe.experts)
    type_bytes = saved.router_input_bytes
    # Recomputed experts keep the same tensor as their checkpoint.
    freed = Module.LAYERNORM | (Module.MOE if type_bytes is None else Module.NOTHING)
    inputs = linear_inputs(context, "moe/router", hidden, freed, low_precision=False)
    if type_bytes is not None:
        inputs = (replace(inputs[0], bytes_per_token=type_bytes * hidden),)
    copy_bytes = saved.router_weight_copy_bytes * count * hidden
    copy = Saved("moe/router/weight", 0.0, Shard.NONE, BLOCK, fixed_bytes=copy_bytes)
    # By default fp32 scores, probabilities and the routing map (one byte each).
    routing_bytes = (
        saved.routing_bytes_per_expert * count
        + saved.routing_bytes_per_group * moe.groups
        + saved.routing_bytes_per_top_group * moe.top_groups
        + saved.routing_bytes_per_token * moe.normalised
    )
    kept = Saved("moe/routing", routing_bytes, Shard.SEQUENCE, BLOCK)
    rows = (*inputs, *present((copy,)), kept)
    row = replicated("moe/router", (hidden, count), rows, BLOCK)
    ((weights, shard),) = row.parameters
    bias = count if moe.router_bias else 0.0
    return replace(row, parameters=((weights + bias, shard),), low_precision=False)


def routing(experts: Experts) -> Op:
    """Computes the tokens' map and weights from the logits, and the loss that balances the load.

    36 small torch operators in forward, 24 in backward (Megatron-Core 0.19, moe_utils.py,
    `topk_routing_with_score_function`, `compute_routing_scores_for_aux_loss`, router.py,
    `_apply_aux_loss`, token_dispatcher.py, `preprocess`): casts, top-k, softmax, scatter, sums; 12
    and 8 of them read and write an fp32 value per token and expert. Transformer Engine fuses them
    into three calls (2.7, pytorch/router.py). They take the GPU 0.1 to 0.3 ms per layer. On Grace,
    whose bare launches are slow, they take the CPU twice as long as modules do: predictions for
    mixtures that wait for it, from five sources, were 5 to 27 % too fast.
    """
    kernels = experts.context.profile.kernels
    one_pass = 8.0 * experts.moe.experts / kernels.memory_traffic
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
        rerun_with=BLOCK,
    )
