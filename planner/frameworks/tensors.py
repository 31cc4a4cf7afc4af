"""What a framework keeps in GPU memory: tensors for backward, weights, gradients, their buckets.

Parts of a framework's profile (`planner.frameworks.profile`), in bytes per element or parameter.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Bytes = Annotated[float, Field(ge=0.0)]


class Frozen(BaseModel):
    """A table of a framework's file: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SavedTensors(Frozen):
    """Bytes per element of what autograd keeps, where frameworks differ.

    `*_families` name model families (`ModelSpec.family`) whose implementation there differs;
    `*` stands for all. Sizes called `*_per_*` say what they multiply.
    """

    residual_bytes: Bytes = 2
    norm_input_bytes: Bytes = 2
    # The normalised tensor, kept beside the input by unfused RMSNorms.
    norm_extra_bytes: Bytes = 0
    # LayerNorm where it differs: a library kernel that keeps its input and no normalised tensor.
    layernorm_input_bytes: Bytes | None = None
    # rstd (and mean) of each norm, which hand formulas leave out.
    norm_statistics: bool = True
    linear_input_bytes: Bytes = 2
    # Each linear keeps a cast of its own (autocast) instead of sharing one input.
    linear_inputs_shared: bool = True
    # Bytes per weight of the casts that autocast makes and the graph keeps.
    weight_cast_bytes: Bytes = 0
    # One product makes q, k and v (gate and up); after rotary the value stays a view of all of it.
    fused_qkv_families: tuple[str, ...] = ()
    fused_gate_up_families: tuple[str, ...] = ()
    # Rotary by concatenation leaves queries contiguous by head, and flash attention's output with
    # them: the output projection keeps a copy.
    rotary_concat_families: tuple[str, ...] = ()
    # Bytes per position and unit of head width of the cosines and sines: tables shared by all
    # layers, or made and kept by each.
    rotary_table_bytes: Bytes = 0
    rotary_layer_bytes: Bytes = 0
    # Column-parallel linears keep the input gathered over tp instead of gathering it again.
    keeps_gathered_inputs: bool = False
    # Tensors of FFN width kept between the projections: gated (SwiGLU) and plain (GELU).
    gated_activation_tensors: float = 2
    plain_activation_tensors: float = 1
    # tanh-GELU written in torch operations (`gelu_new`), bytes per element; None: as fused.
    unfused_gelu_bytes: Bytes | None = None
    # The input of the down projection; hand formulas that count only its output drop it.
    down_input: bool = True
    activation_bytes: Bytes = 2
    # Softmax output of unfused attention. The product with the values keeps its operand too
    # where the type differs, and with dropout, which also keeps a one-byte mask.
    score_bytes: Bytes = 2
    # Families whose softmax runs in the type of its input.
    softmax_in_input_type_families: tuple[str, ...] = ()
    # Unfused attention copies each key/value head for the query heads that share it; the second
    # says the same of fused attention (`repeat_kv` before scaled-dot-product attention).
    expands_kv_heads: bool = False
    fused_expands_kv_heads: bool = False
    # Its batched products copy strided operands of more than one sequence.
    batched_products_copy: bool = False
    # Boolean masks of unfused attention: bytes per score position kept by each layer, by all
    # layers together, and per sequence by a checkpointed layer's arguments.
    layer_mask_bytes: Bytes = 0
    shared_mask_bytes: Bytes = 0
    # Causal mask that each layer of a framework with unfused attention registers as a buffer:
    # bytes per position squared of the longest sequence.
    mask_buffer_bytes: Bytes = 0
    checkpoint_mask_bytes: Bytes = 0
    dropout: bool = False
    # The per-op policy keeps the down projection's output, which nothing in backward reads: eager
    # torch does as it is told, a compiled block drops it.
    policy_keeps_unread: bool = True
    # MoE: the combine step keeps expert outputs to differentiate the gate weights.
    moe_keeps_expert_output: bool = True
    # Router: scores per expert, indices and weights per routed copy, sums per token.
    routing_bytes_per_expert: Bytes = 9
    routing_bytes_per_copy: Bytes = 8
    routing_bytes_per_token: Bytes = 0
    # Token ids, labels and masks of embedding and loss, bytes per token.
    id_bytes: Bytes = 8
    # Position ids, bytes per position.
    position_bytes: Bytes = 0
    # LM head and loss, bytes per token and vocabulary entry: kept for backward, at the peak of
    # backward, and beyond what is kept at the peak of forward.
    logits_saved_bytes: Bytes = 4
    logits_peak_bytes: Bytes = 8
    logits_forward_bytes: Bytes = 4
    # The loss works on logits split over tp; otherwise every rank gathers all of them.
    logits_sharded: bool = True


class TrainingState(Frozen):
    """Bytes per parameter of weights and gradients under mixed precision."""

    weight_bytes: Bytes = 2
    gradient_bytes: Bytes = 4
    # fp32 copy of the weights that the optimizer owns; 0 where the weights themselves are fp32.
    master_bytes: Bytes = 4
    # ZeRO-3 keeps a sharded low-precision copy beside the master (DeepSpeed), FSDP2 does not.
    zero3_keeps_weight_shard: bool = False
    # Type of the optimizer's moments where it follows the weights (torch's AdamW on bf16 weights).
    optimizer_state_element_bytes: Bytes = 4
    # A second, unreduced gradient in the compute precision (nanotron, DeepSpeed bf16).
    extra_gradient_bytes: Bytes = 0
    # Weight gradients in the compute precision, made by a layer's backward beside the buffer that
    # accumulates them (no fused accumulation).
    weight_gradient_bytes: Bytes = 0
    # Tensor parallelism, in backward: the gathered input, the gathered gradient of the output
    # and the gradient of the input before it is reduce-scattered.
    gathered_tensors: float = 0
    # Gradients accumulate in buffers that exist from the first step to the last; otherwise
    # backward makes them and the optimizer step frees them.
    persistent_gradients: bool = False
    # All gradients exist from the start of a backward pass on, as the textbooks' account has it.
    gradients_at_backward: bool = False
    # Backward of a feed-forward block in single torch operations: gradients of its product, of
    # both factors and of the gate's input live at once. Otherwise: input and output of one product.
    unfused_backward: bool = False
    # DistributedDataParallel below ZeRO-1: copies of the gradients in its buckets.
    ddp_bucket_copies: float = 0
    # ZeRO-3: how many layers' gathered weights and unsharded gradients live at the peak.
    gathered_layers: float = 2
    reduce_buffer_layers: float = 1
    # Weights that the root module gathers for the whole forward and backward: embedding, head.
    root_stays_gathered: bool = True
    # Optimizer temporaries, in bytes per (sharded) parameter: foreach makes a copy.
    optimizer_temporary_bytes: Bytes = 0
    bucket_bytes: Bytes = 0


class DataParallelBuckets(Frozen):
    """Gradient memory of DistributedDataParallel, in copies of the gradients.

    Buckets are one copy for good; the gradients are another unless they are views of the
    buckets, and then live through the step or, zeroed in place, for good.
    """

    view: bool = False
    set_to_none: bool = True

    def copies(self, *, in_step: bool, rebuilding: bool = False) -> float:
        """Copies that live in a step's backward and optimizer, or between steps.

        `rebuilding`: the second step, in which DDP makes its buckets anew; gradients that were
        zeroed in place are views of the old ones and keep them alive until then.
        """
        if self.view:
            return 2.0 if rebuilding and in_step and not self.set_to_none else 1.0
        return 1.0 if self.set_to_none and not in_step else 2.0
