"""What a framework keeps in GPU memory: tensors for backward, weights, gradients, their buckets.

Parts of a framework's profile (`planner.job.frameworks.profile`), in bytes per element or
parameter.
"""

from __future__ import annotations

from typing import Annotated

from hardware.frozen import Frozen
from planner.job.frameworks.units import (
    Bytes,
    ElementBytes,
    LogitBytes,
    ParameterBytes,
    TokenBytes,
    unit,
)


class SavedTensors(Frozen):
    """Bytes per element of what autograd keeps, where frameworks differ.

    `*_families` name model families (`ModelSpec.family`) whose implementation there differs;
    `*` stands for all. Sizes called `*_per_*` say what they multiply.
    """

    residual_bytes: ElementBytes = 2
    """The stream between layers."""
    norm_input_bytes: ElementBytes = 2
    """Input of a norm."""
    norm_extra_bytes: ElementBytes = 0
    """The normalised tensor, kept beside the input by unfused RMSNorms. Norms inside attention keep
    it in the type of their input unless the scale is applied in fp32."""
    norm_scales_in_fp32: bool = False
    """The scale of a norm is applied in fp32."""
    norm_weight_copy_bytes: ElementBytes = 0
    """A copy of the norm's weights that each use makes and keeps (weight + 1), bytes per weight."""
    layernorm_input_bytes: ElementBytes | None = None
    """LayerNorm where it differs: a library kernel that keeps its input and no normalised
    tensor."""
    norm_statistics: bool = True
    """rstd (and mean) of each norm, which hand formulas leave out."""
    linear_input_bytes: ElementBytes = 2
    """Input of a linear layer."""
    linear_inputs_shared: bool = True
    """Linears that read one tensor keep it once; otherwise each keeps a cast of it (autocast)."""
    norms_in_linears: bool = False
    """The norm before a fused query, key and value projection, a dense block or a state-space mixer
    is part of the product's module, which keeps the normalised input: recomputing norms holds for
    the others alone (of a mixture, and before latent attention)."""
    weight_cast_bytes: ElementBytes = 0
    """Bytes per weight of the casts that autocast makes and the graph keeps."""
    fused_qkv_families: tuple[str, ...] = ()
    """Model families where one product makes q, k and v."""
    fused_gate_up_families: tuple[str, ...] = ()
    """Model families where one product makes gate and up."""
    value_is_view: bool = True
    """After rotary the value stays a view of the whole fused product."""
    rotary_concat_families: tuple[str, ...] = ()
    """Model families whose rotary by concatenation leaves queries contiguous by head, and flash
    attention's output with them: the output projection keeps a copy."""
    rotary_table_bytes: ElementBytes = 0
    """Bytes per position and unit of head width of cosines and sines in tables shared by all
    layers."""
    rotary_layer_bytes: ElementBytes = 0
    """The same of all tables that each layer makes and keeps, of what its rotary turns."""
    rotary_per_sequence: bool = False
    """Each sequence has shared tables of its own, as positions of text and images differ."""
    rotary_per_kind: bool = False
    """Each kind of attention has tables of its own."""
    keeps_gathered_inputs: bool = False
    """Column-parallel linears keep the input gathered over tp instead of gathering it again."""
    gated_activation_tensors: Annotated[float, unit("tensors")] = 2
    """Tensors of FFN width kept between the projections of a gated block (SwiGLU)."""
    plain_activation_tensors: Annotated[float, unit("tensors")] = 1
    """The same of a plain block (GELU)."""
    unfused_gelu_bytes: ElementBytes | None = None
    """tanh-GELU written in torch operations (`gelu_new`), bytes per element; None: as fused."""
    down_input: bool = True
    """The input of the down projection; hand formulas that count only its output drop it."""
    activation_bytes: ElementBytes = 2
    """Tensors between the projections of a feed-forward block."""
    score_bytes: ElementBytes = 2
    """Softmax output of unfused attention. The product with the values keeps its operand too where
    the type differs, and with dropout, which also keeps a one-byte mask."""
    sink_index_bytes: Annotated[Bytes, unit("B/head/token")] = 0
    """Bytes per head and token of the index of the largest score, where attention sinks are another
    column of the scores."""
    expands_kv_heads: bool = False
    """Unfused attention copies each key/value head for the query heads that share it."""
    fused_expands_kv_heads: bool = False
    """Fused attention does (`repeat_kv` before scaled-dot-product attention)."""
    broadcasts_one_kv_head: bool = False
    """A single key/value head is broadcast to the query heads instead, until a product copies
    it."""
    fused_mixers: bool = False
    """State-space mixers keep what transformers' do (`planner.predict.ops.state_kept`), else what
    Megatron-Core's do."""
    fused_pads_values: bool = False
    """Fused attention of heads whose values are narrower than their keys (latent attention): values
    are padded to the width of keys, and the output is that wide before it is cropped."""
    batched_products_copy: bool = False
    """Batched products of unfused attention copy strided operands of more than one sequence."""
    layer_mask_bytes: ElementBytes = 0
    """Boolean mask of unfused attention that each layer keeps, per score position."""
    shared_mask_bytes: ElementBytes = 0
    """The same of one mask for all layers."""
    mask_buffer_bytes: ElementBytes = 0
    """Causal mask that each layer of a framework with unfused attention registers as a buffer:
    bytes per position squared of the longest sequence."""
    checkpoint_mask_bytes: Annotated[Bytes, unit("B/position")] = 0
    """Boolean mask of unfused attention among a checkpointed layer's arguments, per sequence."""
    dropout: bool = False
    """Dropout layers are there and keep their masks."""
    policy_keeps_unread: bool = True
    """The per-op policy keeps the down projection's output, which nothing in backward reads: eager
    torch does as it is told, a compiled block drops it."""
    moe_keeps_expert_output: bool = True
    """MoE: the combine step keeps expert outputs to differentiate the gate weights; otherwise these
    weigh the activation, whose fused kernels (all but a plain GELU's) keep its input alone."""
    shared_experts_share_input: bool = False
    """Router and shared experts keep one input between them."""
    experts_see_all_tokens: bool = False
    """Every expert computes every token, whether it was routed there or not."""
    expert_bytes: ElementBytes | None = None
    """Bytes per element of what the products of routed experts read and make, which autocast leaves
    alone; None: as of other products."""
    router_input_bytes: ElementBytes | None = None
    """The router's input; None: it reads what the block does."""
    router_weight_copy_bytes: ElementBytes = 0
    """Copy of the router's weights that it makes in that type; 0: none."""
    expert_offset_bytes: Annotated[Bytes, unit("B/expert")] = 0
    """Where each expert's copies begin, however many tokens there are."""
    routing_bytes_per_expert: Annotated[Bytes, unit("B/expert/token")] = 9
    """Router: scores, per expert and token."""
    routing_bytes_per_copy: Annotated[Bytes, unit("B/copy")] = 8
    """Router: indices and weights, per routed copy."""
    routing_bytes_per_token: TokenBytes = 0
    """Router: sums (of normalised weights), per token."""
    normalised_bytes_per_copy: Annotated[Bytes, unit("B/copy")] = 0
    """Weights before they were normalised, per routed copy."""
    routing_bytes_per_group: Annotated[Bytes, unit("B/group/token")] = 0
    """Router: scores, per group of experts and token."""
    routing_bytes_per_top_group: Annotated[Bytes, unit("B/group/token")] = 0
    """Router: the same per group that was chosen."""
    id_bytes: TokenBytes = 8
    """Token ids, labels and masks of embedding and loss, bytes per token."""
    position_bytes: Annotated[Bytes, unit("B/position")] = 0
    """Position ids, bytes per position."""
    logits_saved_bytes: LogitBytes = 4
    """LM head and loss: kept for backward."""
    logits_peak_bytes: LogitBytes = 8
    """LM head and loss, at the peak of backward."""
    logits_forward_bytes: LogitBytes = 4
    """LM head and loss, beyond what is kept at the peak of forward."""
    linear_loss: bool = False
    """The loss multiplies by the head's weights itself, of as many tokens at a time as make logits
    as large as the hidden states, and leaves gradients alone: the bytes above are per element of
    those (Hsu et al. 2024, arXiv 2410.10989, section 3.2)."""
    logits_sharded: bool = True
    """The loss works on logits split over tp; otherwise every rank gathers all of them."""
    embedding_sharded: bool = True
    """The vocabulary's rows are split over tp; otherwise every rank has the whole embedding."""


class TrainingState(Frozen):
    """Bytes per parameter of weights and gradients under mixed precision."""

    input_bytes: TokenBytes = 8
    """Ids and targets of a micro-batch that the training loop holds, per token."""
    weight_bytes: ParameterBytes = 2
    """Weights that the products read."""
    gradient_bytes: ParameterBytes = 4
    """Gradients as they accumulate."""
    master_bytes: ParameterBytes = 4
    """fp32 copy of the weights that the optimizer owns; 0 where the weights themselves are fp32."""
    quantised_copy_bytes: ParameterBytes = 0
    """Quantised copies of a linear layer's weights that stay beside them from one micro-batch to
    the next (Transformer Engine, pytorch/module/base.py, `get_weight_workspace`), whole on every
    rank. None under ZeRO-3."""
    quantised_weights: bool = False
    """Weights of linear layers are quantised themselves (`fp8_param_gather`): the copies take the
    place of the 16-bit ones."""
    zero3_keeps_weight_shard: bool = False
    """ZeRO-3 keeps a sharded low-precision copy beside the master (DeepSpeed), FSDP2 does not."""
    optimizer_state_element_bytes: ParameterBytes = 4
    """Type of the optimizer's moments where it follows the weights (torch's AdamW on bf16
    weights)."""
    extra_gradient_bytes: ParameterBytes = 0
    """A second, unreduced gradient in the compute precision (nanotron, DeepSpeed bf16)."""
    weight_gradient_bytes: ParameterBytes = 0
    """Weight gradients in the compute precision, made by a layer's backward beside the buffer that
    accumulates them (no fused accumulation)."""
    gathered_tensors: Annotated[float, unit("tensors")] = 0
    """Tensor parallelism, in backward: the gathered input, the gathered gradient of the output and
    the gradient of the input before it is reduce-scattered."""
    weighing_bytes: Annotated[Bytes, unit("B/element")] = 0
    """MoE: what backward holds for each element of the routed copies' outputs where torch's own
    operators weigh them in fp32: the cast, the product's gradient, and that in 16 bits."""
    persistent_gradients: bool = False
    """Gradients accumulate in buffers that exist from the first step to the last; otherwise
    backward makes them and the optimizer step frees them."""
    unreduced_gradients: bool = False
    """ZeRO-2 and 3 reduce gradients once a step, after the last micro-batch, and keep them whole
    until then (FSDP without gradient sync while it accumulates)."""
    unreduced_gradient_bytes: ParameterBytes | None = None
    """Such a whole gradient: FSDP1 leaves it as backward made it (torch/distributed/fsdp,
    _runtime_utils.py, _post_backward_hook). None: `gradient_bytes`, as FSDP2, which casts it to the
    type that it reduces in (_fsdp_param.py, to_accumulated_grad_if_needed)."""
    gradients_at_backward: bool = False
    """All gradients exist from the start of a backward pass on, as the textbooks' account has
    it."""
    unfused_backward: bool = False
    """Backward of a feed-forward block in single torch operations: gradients of its product, of
    both factors and of the gate's input live at once. Otherwise: input and output of one
    product."""
    ddp_bucket_copies: float = 0
    """DistributedDataParallel, with whole or divided optimizers: copies of the gradients in its
    buckets."""
    gathered_layers: Annotated[float, unit("layers")] = 2
    """ZeRO-3: how many layers' gathered weights live at the peak."""
    live_parameters: Annotated[float, unit("parameters")] = 0
    """ZeRO-3: so many parameters stay gathered, where the model has them: those that are fetched
    ahead and those that are soon used again. 0: what `gathered_layers` says."""
    reduce_buffer_layers: Annotated[float, unit("layers")] = 1
    """ZeRO-3: how many layers' unsharded gradients live at the peak."""
    root_stays_gathered: bool = True
    """Weights that the root module gathers for the whole forward and backward: embedding, head."""
    optimizer_temporary_bytes: ParameterBytes = 0
    """Optimizer temporaries, in bytes per (sharded) parameter: foreach makes a copy."""
    update_cast_bytes: ParameterBytes = 0
    """fp32 copy of a rank's share of gradients of fewer bits, which the update makes whatever its
    kernel."""
    flat_update_bytes: ParameterBytes = 0
    """Temporaries of an update that joins a rank's share of the gradients in one tensor and casts
    it to fp32: blocks that the allocator keeps beside all others
    (`planner.cost.memory.set_aside_bytes`)."""
    update_group_parameters: Annotated[float, unit("parameters")] = 1e9
    """ZeRO-3: how many parameters of a rank's share are updated at a time (DeepSpeed's
    sub_group_size)."""
    bucket_bytes: Bytes = 0
    """ZeRO-1 and 2: buckets of gradients, and of updated weights, on their way."""
    whole_bucket_bytes: Bytes = 0
    """ZeRO-1 to 3: bucket of gradients that is made whole, however few pass through it."""
