"""Rows of a dense feed-forward network: up (and gate), activation, down; also of shared experts."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.codes import OpKind, Shard
from planner.job.recompute import Module
from planner.predict.ops.context import WHOLE_LAYER, OpContext
from planner.predict.ops.linear import column_parallel, linear_inputs, row_parallel, tp_entry
from planner.predict.ops.rows import Op, Saved

# transformers' NewGELUActivation, 0.5·x·(1 + tanh(c·(x + a·x³))), and its backward: tensors that
# its operations read and write, number of operations, number of tensors kept. Kernels of GPT-2
# medium beside products and attention took 65 ms on one H200: this count gives 62, one fused kernel
# 34.
_UNFUSED_GELU_TENSORS = (18.0, 28.0)
_UNFUSED_GELU_KERNELS = (8.0, 11.0)
_UNFUSED_GELU_KEPT = 4.0


def gate_factor(context: OpContext) -> float:
    """Number of matrices from hidden to FFN width: 2 with a gate (gate and up), else 1."""
    return 2.0 if context.model.gated else 1.0


def mlp_rows(context: OpContext, name: str, width: float, owner: Module) -> tuple[Op, ...]:
    """Rows of a feed-forward block; `owner`: recompute modes that run the block again."""
    model = context.model
    gates = gate_factor(context)
    hidden = float(model.hidden)
    # Recomputing the norm as well restores its output, which otherwise is the checkpoint; inside a
    # recomputed MoE layer the shared experts need no separate checkpoint.
    value = owner & ~Module.MOE
    norm_freed = context.norm_in_linear if name == "mlp" else Module.LAYERNORM
    freed = WHOLE_LAYER | norm_freed | (owner & Module.MOE)
    # A norm inside the block runs again with it, from the input that it keeps.
    inputs_kept = 0.0 if norm_freed is Module.NOTHING else 2 * hidden
    checkpoint = Saved(f"{name}/checkpoint", inputs_kept, Shard.SEQUENCE, freed, only_with=value)
    # torchtitan's policy keeps every second matmul's output: the gate's of gate and up.
    kept_output = Saved(
        f"{name}/up_output", 2 * width, Shard.TP, Module.NOTHING, only_with=Module.SELECTIVE_OP
    )
    products = 1 if context.applies(context.saved.fused_gate_up_families) else int(gates)
    inputs = linear_inputs(context, f"{name}/up", hidden, norm_freed | owner, consumers=products)
    again, act = _by_name(owner)
    if context.saved.linear_inputs_shared and _input_is_kept_elsewhere(context, name):
        inputs = ()
    up = column_parallel(
        f"{name}/up",
        (hidden, gates * width),
        (*inputs, checkpoint, kept_output),
        tp_entry(context, f"{name}/up", hidden, WHOLE_LAYER | again),
        Module.FULL | again,
        bias=model.mlp_bias,
    )
    ups = (up,) if context.profile.kernels.fused_projections or gates == 1 else _split(up, name)
    down_saved = (
        *down_input(context, f"{name}/down", width, act),
        *_down_output(context, f"{name}/down_output"),
    )
    again_down = Module.FULL | owner
    down = row_parallel(
        f"{name}/down", (width, hidden), down_saved, again_down, again_down, bias=model.mlp_bias
    )
    return (*ups, activation_row(context, name, width, again, act), down)


def _by_name(owner: Module) -> tuple[Module, Module]:
    """The recompute modes that run gate and up again, and those that run the activation again. For
    a dense block these include JAX's policies that select tensors by name."""
    if owner != Module.MLP:
        return owner, owner
    return owner | Module.MLP_UP, owner | Module.MLP_UP | Module.MLP_ACT


def _input_is_kept_elsewhere(context: OpContext, name: str) -> bool:
    """Whether another row keeps the same input, because one norm feeds attention and the block, or
    a router and the shared experts."""
    if name == "shared_experts":
        saved = context.saved
        return saved.shared_experts_share_input and saved.router_input_bytes is None
    return context.model.block == "single"


def _down_output(context: OpContext, name: str) -> tuple[Saved, ...]:
    """The output of the block's down projection. It is kept only under the recompute policy that
    selects operators (`Module.SELECTIVE_OP`), because that policy keeps the outputs of products;
    empty if the framework's policy does not keep outputs that backward never reads."""
    if not context.saved.policy_keeps_unread:
        return ()
    size = 2.0 * context.model.hidden
    return (Saved(name, size, Shard.SEQUENCE, Module.NOTHING, only_with=Module.SELECTIVE_OP),)


def down_input(
    context: OpContext,
    name: str,
    width: float,
    owner: Module,
    shard: Shard = Shard.TP,
    factor: float = 1.0,
) -> tuple[Saved, ...]:
    """The activation's output, kept by the down projection; `owner`: modes that recompute it."""
    if not context.saved.down_input:
        return ()
    return linear_inputs(context, name, width, owner, shard, factor=factor)


def _split(up: Op, name: str) -> tuple[Op, Op]:
    """The row of gate and up as two rows. The shared input and the traffic are listed with gate; a
    recompute policy that selects operators runs up again."""
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


def activation_row(
    context: OpContext,
    name: str,
    width: float,
    owner: Module,
    again: Module,
    shard: Shard = Shard.TP,
    factor: float = 1.0,
) -> Op:
    """Activation between the projections: reads gate and up, writes one; backward the reverse.
    `owner`: modes that free its input; `again`: modes that run it again."""
    kept_bytes = _activation_bytes(context) * width * factor
    kept = Saved(f"{name}/activation_input", kept_bytes, shard, WHOLE_LAYER | owner)
    kernels = context.profile.kernels
    forward, backward = (3.0, 5.0) if context.model.gated else (2.0, 3.0)
    element = context.saved.activation_bytes * kernels.activation_traffic
    forward_kernels = backward_kernels = 1.0
    kept_gelu = _unfused_gelu_bytes(context)
    if kept_gelu is not None:
        forward, backward = _UNFUSED_GELU_TENSORS
        forward_kernels, backward_kernels = _UNFUSED_GELU_KERNELS
        # Every operation is counted, so the profile's factor on traffic does not apply.
        element = kept_gelu / _UNFUSED_GELU_KEPT / kernels.memory_traffic
    return Op(
        name=f"{name}/activation",
        kind=OpKind.MEMORY,
        tokens=shard,
        tokens_factor=factor,
        forward_bytes=forward * element * width,
        backward_bytes=backward * element * width,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
        saved=(kept,),
        rerun_with=WHOLE_LAYER | again,
    )


def _unfused_gelu_bytes(context: OpContext) -> float | None:
    """Bytes per unit of FFN width that GELU keeps if torch computes it operation by operation; None
    if one kernel does."""
    return context.saved.unfused_gelu_bytes if context.model.activation == "gelu_new" else None


def _activation_bytes(context: OpContext) -> float:
    """Bytes per unit of FFN width that the activation keeps besides its output."""
    saved = context.saved
    if context.model.gated:
        return saved.gated_activation_tensors * saved.activation_bytes
    kept_gelu = _unfused_gelu_bytes(context)
    if kept_gelu is not None:
        return kept_gelu
    quick = saved.quick_gelu_tensors if context.model.activation == "quick_gelu" else 1.0
    return quick * saved.plain_activation_tensors * saved.activation_bytes
