"""What a training framework can express, what it keeps for backward, and what it overlaps.

One TOML file a framework in this folder; this module gives the file a type. A *mechanism*
(which copy a norm keeps, which collective hides behind what) belongs here; a *rate* belongs in
`hardware/efficiency`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.errors import UsageError, unknown_name
from planner.recompute import RecomputeForms, RecomputeMode, read_mode

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Bytes = Annotated[float, Field(ge=0.0)]
# What a job with CUDA graphs takes for granted.
CUDA_GRAPHS_NOTE = (
    "CUDA graphs capture the whole step: the CPU costs nothing, and the memory of the graphs' "
    "own pools is not counted"
)
OptimizerKernel = Literal["foreach", "fused", "forloop"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Parallelism(_Frozen):
    """Which degrees exist and the rules tied to them."""

    tensor: bool = True
    pipeline: bool = True
    interleaved: bool = False
    context: bool = False
    expert: bool = False
    expert_tensor: bool = False
    # Stages that the search tries; the first is the usual one.
    zero_stages: tuple[int, ...]
    zero3_with_pipeline: bool = False
    # Gradients sharded at every micro-batch cannot be accumulated by a pipeline schedule.
    zero2_with_pipeline: bool = False
    sequence_parallel: Literal["with-tp", "never"] = "with-tp"
    kv_heads_rule: Literal["multiple-or-divisor", "tp-divides", "none"] = "multiple-or-divisor"
    vocabulary_multiple: int = 1
    vocabulary_padded: bool = True
    # Interleaving: micro-batches per step must be a multiple of pp.
    interleaved_microbatches: Literal["multiple-of-pp", "whole-rounds", "any"] = "multiple-of-pp"
    # Which layer splits over stages the framework can express.
    layouts: Literal["any", "even-or-ends", "even", "greedy"] = "any"
    # `full` recompute of N layers: the same N on every stage, or chosen per stage; mixed: and the
    # other layers may each recompute in another mode.
    recompute_layers: Literal["same-on-every-stage", "any", "mixed", "all-or-none"] = "all-or-none"
    # Parameters sharded over part of the data-parallel ranks, replicas across them (HSDP), from
    # this ZeRO stage on; None: not offered.
    hybrid_least_zero: int | None = None
    needs_microbatches_at_least_pp: bool = False
    # A pipeline whose first and last stage share the embedding's weight.
    tied_pipeline: bool = True
    # Multi-token prediction under pipeline or context parallelism.
    mtp_split: bool = True
    # Parameters are always sharded over the context-parallel ranks: no ZeRO-0 beside cp.
    shards_over_context: bool = False
    # Expert-parallel ranks are taken out of one shard group and its tensor-parallel ranks.
    experts_in_shards: bool = False
    # Pipeline schedules (`planner.schedules`); the first is the usual one. Where that is 1F1B or
    # interleaved, both are usual: the number of chunks decides.
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    # Fewest chunks a stage under zb-h1.
    zero_bubble_chunks: int = 1
    # The optimizer steps before all stages have agreed on norm and overflow, and is validated
    # after (Qi et al. 2024, arXiv 2401.10241, section 4).
    optimizer_post_validation: bool = False


class SavedTensors(_Frozen):
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


class TrainingState(_Frozen):
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


class DataParallelBuckets(_Frozen):
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


class Overlap(_Frozen):
    """What the framework hides: shares of a collective that may run beside compute."""

    gradient_reduction: Share = 1.0
    parameter_gather: Share = 1.0
    fsdp_prefetch: Share = 1.0
    tensor_backward: Share = 1.0
    tensor: Share = 0.0
    expert: Share = 0.0
    context: Share = 1.0
    pipeline: Share = 1.0
    # Slow-down of compute while a collective runs beside it (SMs and HBM shared).
    contention: Share = 0.1


class Kernels(_Frozen):
    """How the framework issues work."""

    # The CPU waits for every kernel before it issues the next (CUDA_LAUNCH_BLOCKING=1).
    blocking_launches: bool = False
    # CPU time to issue one kernel (Python, autograd and launch) of the op table, which lists
    # fused kernels: a framework that splits them further has a larger one. A piece takes at
    # least the time to issue its kernels.
    issue_s: Annotated[float, Field(ge=0.0)] = 4e-5
    issue_evidence: str = ""
    # Flags that capture the step as CUDA graphs; empty where the framework has no such option.
    cuda_graph_flags: str = ""
    # Passes over the routed copies around the dispatch: permute before the exchange and sort by
    # expert after it, or one where the exchange itself writes them in order.
    dispatch_passes: Annotated[float, Field(ge=0.0)] = 2.0
    # A token crosses once to each rank that holds some of its experts (DeepEP, HybridEP), not once
    # for each of its experts.
    dispatch_deduplicates: bool = False
    # A benchmark's balanced gate sends a token to experts that are neighbours, so to few ranks.
    neighbouring_experts: bool = False
    # HBM bytes of casting one 16-bit element of a product's operand to 8 or 4 bits: read once,
    # written row-wise and column-wise.
    cast_traffic_bytes: Bytes = 4.0
    # A pass takes at least this long for each of the tp exchanges around every tensor-parallel
    # product while a pipeline's stages talk between nodes; 0 where nothing of it was seen.
    pipeline_exchange_s: Annotated[float, Field(ge=0.0)] = 0.0
    # Time of a step of a ring over a tensor-parallel group that leaves the scale-up domain,
    # beyond the links' latency: the ring advances at the pace of its slowest exchange.
    outer_tensor_step_s: Annotated[float, Field(ge=0.0)] = 0.0
    # HBM bytes per parameter of a rank, divided by ZeRO or not, of what ends a step beside the
    # optimizer's update: casts, clipping and zeroing of gradients, waiting for their reduction.
    step_traffic_bytes: Bytes = 0.0
    # CPU time of copying one rank's slice of one tensor between flat buffers and weights or
    # gradients under ZeRO-1, where slices are copied one by one.
    slice_copy_s: Annotated[float, Field(ge=0.0)] = 0.0
    # In low precision, activations are cast to 8 bits before they are gathered over tp.
    quantised_gathers: bool = False
    # HBM bytes per 16-bit element of a sequence that is gathered or scattered over tp: collectives
    # that work along the first dimension alone leave a concatenation along the sequence.
    tensor_copy_bytes: Bytes = 0.0
    # Without sequence parallelism a tp rank sends its 1/tp of the activation to the next stage,
    # whose tp ranks gather it; otherwise each sends all of it.
    pipeline_scatters: bool = False
    # HBM bytes per parameter and micro-batch of kernels that add 16-bit weight gradients into
    # another buffer; 0 where the product itself accumulates.
    accumulation_traffic_bytes: Bytes = 0.0
    # The same of one ZeRO-3 gather's copy from the flat buffer into weights, and of the copy of
    # gradients into the buffer that is reduced.
    gather_copy_bytes: Bytes = 0.0
    reduce_copy_bytes: Bytes = 0.0
    # HBM traffic of elementwise rows over that of one fused kernel each.
    memory_traffic: Annotated[float, Field(gt=0.0)] = 1.0
    # The same for norms: written in torch with an fp32 upcast, an RMSNorm reads and writes 36
    # bytes an element where a fused kernel moves 4.
    norm_traffic: Annotated[float, Field(gt=0.0)] = 1.0
    # HBM traffic of the loss over one fused pass: 14 bytes forward and 8 backward a logit.
    loss_traffic: Annotated[float, Field(gt=0.0)] = 1.0
    # Query, key and value (and gate and up) as one product, or one each.
    fused_projections: bool = True
    gradient_communication_bytes: Bytes = 4
    parameter_communication_bytes: Bytes = 2


class Outside(_Frozen):
    """Memory outside live tensors; each with its evidence in the framework's file."""

    # Reserved over allocated, minus one: rounding to segments and fragmentation.
    fragmentation: Share = 0.04
    # NCCL buffers of one communicator. Assumption: a ring of 16 channels, each with a receiving
    # connection of 4 MiB (NCCL_BUFFSIZE, NCCL's documentation), 4.7 MiB (LL128) and 0.5 MiB (LL).
    communicator_bytes: Bytes = 1.5e8
    # cuBLAS workspaces and other library scratch, allocated like tensors.
    workspace_bytes: Bytes = 7e7
    # Time of a step outside kernels and collectives: data loading, logging, scheduler.
    host_step_s: Annotated[float, Field(ge=0.0)] = 0.01
    evidence: str = ""


def _pairs(table: object) -> object:
    """A table as sorted pairs: profiles are hashable."""
    return tuple(sorted(table.items())) if isinstance(table, dict) else table


Changes = Annotated[tuple[tuple[str, bool | float], ...], BeforeValidator(_pairs)]


DtypeModeName = Literal["bf16", "amp", "fp32"]


class DtypeMode(_Frozen):
    """What a dtype mode changes in the tables `saved` and `state`."""

    name: Literal["amp", "fp32"]
    saved: Changes = ()
    state: Changes = ()


class PrecisionMode(_Frozen):
    """What linear layers in fp8 or fp4 change in the tables `saved` and `state`.

    Transformer Engine keeps the quantised input of each product instead of the 16-bit one, and
    may keep the weights quantised too.
    """

    precisions: tuple[str, ...]
    saved: Changes = ()
    state: Changes = ()


class OptimizerRules(_Frozen):
    """Which optimizers the framework runs, with which kernels, and what it moves to the CPU."""

    # Families of `planner/optimizers.toml`; empty: any, the user hands over the object.
    families: tuple[str, ...] = ()
    # Which types are options: none (fp32), the moments' (a library's optimizer: torchao), or also
    # those of master weights and gradients (Megatron's precision-aware optimizer).
    state_types: Literal["plain", "moments", "all"] = "plain"
    # Flags of these types, `*` for all of them together.
    type_flags: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()
    # How torch updates the parameters, the usual first: in lists, in one kernel, one by one.
    kernels: tuple[OptimizerKernel, ...] = ("fused",)
    # Optimizer state and update on the CPU: not at all, any share of it, or all of it.
    offload: Literal["none", "share", "whole"] = "none"
    offload_flags: str = ""
    # Gradients of offloaded parameters leave the GPU as soon as they are reduced.
    offload_gradients: bool = False
    # Share of their way to the host that runs beside backward.
    offload_overlap: Share = 0.0
    # Lowest ZeRO stage that offload, and that other types than fp32, work with.
    offload_least_zero: int = 0
    # Lowest ZeRO stage with which only a part of the optimizer can be offloaded.
    offload_part_least_zero: int = 0
    state_types_least_zero: int = 0


class FrameworkProfile(_Frozen):
    """One framework at one version."""

    name: str
    # The profile at the root of those it extends: its versions share their error bars.
    family: str = ""
    version: str
    summary: str
    sources: tuple[str, ...]
    precisions: tuple[str, ...]
    attention: Literal["flash", "eager"] = "flash"
    parallelism: Parallelism
    saved: SavedTensors = SavedTensors()
    state: TrainingState = TrainingState()
    overlap: Overlap = Overlap()
    kernels: Kernels = Kernels()
    outside: Outside = Outside()
    recompute: tuple[RecomputeMode, ...]
    recomputing: RecomputeForms = RecomputeForms()
    optimizer: OptimizerRules = OptimizerRules()
    # Dtype modes besides `bf16`, which the tables above describe.
    modes: tuple[DtypeMode, ...] = ()
    # What fp8 and fp4 change; a precision that is not listed changes no tensor.
    low_precision: tuple[PrecisionMode, ...] = ()
    # The one that people train in unless they say otherwise.
    usual_mode: DtypeModeName = "bf16"
    assumptions: tuple[str, ...] = ()

    def in_mode(self, name: str) -> FrameworkProfile:
        """The profile under a dtype mode: `bf16` (16-bit weights), `amp` (autocast over fp32
        weights) or `fp32`; UsageError lists the framework's modes otherwise."""
        if name == "bf16":
            return self
        for mode in self.modes:
            if mode.name == name:
                return _with_mode(self, mode)
        known = ["bf16", *(mode.name for mode in self.modes)]
        raise unknown_name("dtype mode", name, known, f"{self.name} has: {', '.join(known)}")

    def in_precision(self, name: str) -> FrameworkProfile:
        """The profile as it trains with linear layers in precision `name`."""
        for mode in self.low_precision:
            if name in mode.precisions:
                return _with_mode(self, mode)
        return self

    def with_cuda_graphs(self) -> FrameworkProfile:
        """The profile with its step captured as CUDA graphs: the CPU issues no kernels one by one.

        UsageError if the framework has no such option.
        """
        if not self.kernels.cuda_graph_flags:
            having = [own for own in framework_names() if _has_cuda_graphs(own)]
            raise UsageError(
                f"--cuda-graphs: {self.name} has no such option; it is there in "
                + ", ".join(having)
            )
        return _captured(self)

    def recompute_mode(self, name: str) -> RecomputeMode:
        """The mode that `name` spells (`planner.recompute.read_mode`); UsageError otherwise."""
        return read_mode(name, self.name, self.recompute, self.recomputing)


@cache
def _with_mode(profile: FrameworkProfile, mode: DtypeMode | PrecisionMode) -> FrameworkProfile:
    """The profile with a mode's values in place, validated again."""
    saved = SavedTensors.model_validate(profile.saved.model_dump() | dict(mode.saved))
    state = TrainingState.model_validate(profile.state.model_dump() | dict(mode.state))
    return profile.model_copy(update={"saved": saved, "state": state})


@cache
def _captured(profile: FrameworkProfile) -> FrameworkProfile:
    """One object per profile, so that jobs which share it are costed together."""
    kernels = profile.kernels.model_copy(update={"issue_s": 0.0})
    note = f"{CUDA_GRAPHS_NOTE} ({profile.kernels.cuda_graph_flags})"
    assumptions = (*profile.assumptions, note)
    return profile.model_copy(update={"kernels": kernels, "assumptions": assumptions})


def _has_cuda_graphs(name: str) -> bool:
    return bool(load_framework(name).kernels.cuda_graph_flags)


def framework_names() -> tuple[str, ...]:
    """Names of the profiles that ship, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in files("planner.frameworks").iterdir()
            if entry.name.endswith(".toml")
        )
    )


def with_schedule(schedule: str) -> tuple[str, ...]:
    """Frameworks that have a pipeline schedule."""
    profiles = (load_framework(name) for name in framework_names())
    return tuple(own.name for own in profiles if schedule in own.parallelism.schedules)


@cache
def load_framework(name: str) -> FrameworkProfile:
    """Profile by name, case and `_`/`-` ignored. Raises UsageError with close matches."""
    wanted = name.strip().lower().replace("_", "-")
    names = framework_names()
    if wanted not in names:
        raise _unknown_framework(name, wanted, names)
    try:
        return FrameworkProfile.model_validate(_table(wanted))
    except ValidationError as error:
        raise UsageError(f"frameworks/{wanted}.toml: {error}") from error


def _unknown_framework(name: str, wanted: str, names: tuple[str, ...]) -> UsageError:
    """UsageError; what plans are launched with may have another name than what they cost as."""
    from planner.launch.registry import TARGETS

    target = TARGETS.get(wanted)
    if target is None:
        return unknown_name("framework", name, names, "list them with: planner frameworks")
    return UsageError(
        f"plans for {target.name} are costed under {target.profile}: give --framework "
        f"{target.profile} here, and --framework {target.name} to planner launch"
    )


def _table(name: str) -> dict[str, Any]:
    """A framework's TOML file, on top of the one it `extends`: tables merge, the rest replaces."""
    text = files("planner.frameworks").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    own: dict[str, Any] = tomllib.loads(text)
    parent = own.pop("extends", None)
    if parent is None:
        return own | {"family": name}
    merged = _table(parent)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merged[key] | value if both else value
    return merged
