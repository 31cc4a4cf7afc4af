"""How a framework runs a step: what it overlaps, how it issues work, what it holds outside tensors,
and what it can keep of the activations on the host.

Tables `overlap`, `kernels`, `outside`, `full_memory` and `activation_offload` of its file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from hardware.frozen import Frozen
from planner.job.frameworks.units import (
    Bytes,
    ElementBytes,
    NonNegative,
    ParameterBytes,
    Ratio,
    Seconds,
    Share,
    unit,
)


class Overlap(Frozen):
    """What the framework hides: shares of a collective that may run beside compute."""

    gradient_reduction: Share = 1.0
    """Reduction of gradients beside backward."""
    parameter_gather: Share = 1.0
    """Gather of updated parameters beside forward."""
    fsdp_prefetch: Share = 1.0
    """Gathers and reductions of ZeRO-3, layer by layer."""
    experts_prefetch: Share = 1.0
    """Of that, what is left where layers hold experts."""
    tensor_backward: Share = 1.0
    """Collectives of tensor parallelism that stand beside independent products of backward."""
    tensor: Share = 0.0
    """Other collectives of tensor parallelism, cut into tp pieces: of all but one."""
    expert: Share = 0.0
    """Exchanges of tokens between experts."""
    context: Share = 1.0
    """Exchanges of keys and values of context parallelism."""
    pipeline: Share = 1.0
    """Sends between stages, under interleaving."""
    contention: Share = 0.1
    """Slow-down of compute while a collective runs beside it (SMs and HBM shared)."""
    data_contention: Share = 0.3
    """The same beside the gradients and weights that travel at the ends of a step. Source: what
    four frameworks asked for with whole steps; of those that had 0.1, 21 of 31 sources err less."""


class Kernels(Frozen):
    """How the framework issues work."""

    blocking_launches: bool = False
    """The CPU waits for every kernel before it issues the next (CUDA_LAUNCH_BLOCKING=1)."""
    issue_s: Seconds = 4e-5
    """CPU time to issue one kernel (Python, autograd and launch) of the op table, which lists fused
    kernels: a framework that splits them further has a larger one. A piece takes at least the time
    to issue its kernels. On the reference host (`hardware.schema.Cluster`, `host_speed` 1)."""
    issue_evidence: str = ""
    """What `issue_s` was fitted on."""
    fetch_s: Seconds = 0.0
    """CPU time of hooks that gather weights before each pass and release them after it, under
    ZeRO-3, for each row of products in the op table. On the reference host. Source: DeepSpeed 0.19,
    runtime/zero/parameter_offload.py, partitioned_param_coordinator.py."""
    launch_s: Seconds = 0.0
    """CPU time of one launch from a loop over a rank's experts, beside `issue_s` of the row: their
    products and biases are issued one by one; 0: one launch for all. On the reference host. Source:
    Transformer Engine 2.9, common/gemm/cublaslt_gemm.cu, `multi_stream_cublas_gemm`."""
    captured: bool = False
    """CUDA graphs hold all modules but routed experts, whose tokens the CPU counts first: it issues
    only what stands from their dispatch on to their combine."""
    attention_captured: bool = True
    """Where there are graphs, they hold attention. Source: Megatron-Core 0.17,
    `--cuda-graph-modules`, which names what they hold."""
    state_captured: bool = True
    """The same of state-space layers."""
    router_captured: bool = True
    """The same of routers and shared experts."""
    sequential_experts: bool = False
    """The experts of a rank run one after another, each with products of its own."""
    fused_router: bool = False
    """One kernel goes from logits to routes, two make the loss that balances the load; otherwise
    torch's operators. Source: Megatron-Core 0.14, `--moe-router-fusion`."""
    dispatch_passes: NonNegative = 2.0
    """Passes over the routed copies around the dispatch: permute before the exchange and sort by
    expert after it, or one where the exchange itself writes them in order."""
    local_dispatch_passes: NonNegative = 0.0
    """The same where a rank holds all experts and nothing is exchanged; 0: as `dispatch_passes`."""
    fused_permutation: bool = True
    """Routed copies are put in order and added up by kernels that write each token once; otherwise
    torch's scatter_add adds up each copy in forward, and index_select's backward in backward.
    Source: Megatron-Core 0.15, `--moe-permute-fusion`, transformer/moe/moe_utils.py."""
    counts_on_host: bool = True
    """In forward the CPU reads how many tokens each expert of a layer gets before it issues more;
    the GPU idles for one `issue_s`. Source: Megatron-Core 0.19,
    transformer/moe/token_dispatcher.py, `_maybe_dtoh_and_synchronize`; not where each expert's
    tokens are cut or padded to a fixed number."""
    pads_experts: bool = False
    """Quantised products of experts take their tokens in multiples of 16 or 32: the routed copies
    are copied into padded buffers before them and out of these after them, unless the router pads
    (`--moe-router-padding-for-quantization`, which launch files of Megatron have). Source:
    Megatron-Core 0.15, transformer/moe/experts.py, `fp8_padding`, `fp8_unpadding`."""
    dispatch_deduplicates: bool = False
    """A token crosses once to each rank that holds some of its experts (DeepEP, HybridEP), not once
    for each of its experts."""
    dispatcher: Literal["", "deepep", "hybridep"] = ""
    """Expert-dispatch library. Empty means HybridEP on Blackwell and DeepEP elsewhere."""
    overlap_keeps_chunk: bool = False
    """The forward of one chunk runs beside the backward of another, which gives back what its
    layers keep only as a whole. Source: Megatron-Core before 0.16,
    models/common/model_chunk_schedule_plan.py; pull request 2236 releases each layer."""
    neighbouring_experts: bool = False
    """A benchmark's balanced gate sends a token to experts that are neighbours, so to few ranks."""
    context_balanced: bool = True
    """Context parallelism hands out chunks of a causal sequence so that ranks compute as much;
    otherwise in order, and all wait for the rank with the last. Source: Transformer Engine,
    context_parallel.py (balanced); 2 - 1/cp otherwise: the last chunk's triangle over the mean."""
    pads_products: bool = False
    """Products over rows of a width that loads one by one, as the logits of an odd vocabulary, run
    on padded copies: torch.compile since torch 2.1. Source: pytorch/pytorch pull request 101915
    (`shape_padding`)."""
    softmax_traffic: Ratio = 1.0
    """HBM bytes of unfused attention's passes over its scores, over those of Megatron's fused
    softmax with dropout, which has limits of its own (1). In plain torch, where scaling, masking,
    softmax and two casts are a kernel each, 3.5."""
    score_block: NonNegative = 0.0
    """Unfused attention makes its scores in blocks of so many queries and keys and leaves out those
    above the diagonal; 0: the whole square. Source: Levanter, models/flash_attention.py, what it
    runs on GPUs without Transformer Engine: operations of JAX in a loop."""
    cast_traffic_bytes: ElementBytes = 4.0
    """HBM bytes of casting one 16-bit element of a product's operand to 8 or 4 bits: read once,
    written row-wise and column-wise."""
    quantised_rate: Ratio = 1.0
    """Rate of products in 8 bits over that with one scale for each tensor: scales of blocks are
    multiplied in outside the tensor cores."""
    quantises_linears: bool = True
    """Dense products run in the job's 8 or 4 bits; otherwise in 16, as where a recipe is of the
    experts alone."""
    quantises_experts: bool = True
    """The same of the experts' grouped products."""
    pipeline_exchange_s: Seconds = 0.0
    """A pass takes at least this long for each of the tp exchanges around every tensor-parallel
    product while a pipeline's stages talk between nodes; 0 where nothing of it was seen."""
    outer_tensor_step_s: Seconds = 0.0
    """Time of a step of a ring over a tensor-parallel group that leaves the scale-up domain, beyond
    the links' latency: the ring advances at the pace of its slowest exchange."""
    wide_stage_wait_s: Seconds = 0.0
    """What each send or receive of a pipeline stage waits, whatever its size, where the stage's
    tensor-parallel group spans more than two scale-up domains."""
    step_traffic_bytes: ParameterBytes = 0.0
    """HBM bytes per parameter of a rank, divided by ZeRO or not, of what ends a step beside the
    optimizer's update: casts, clipping and zeroing of gradients, waiting for their reduction."""
    update_traffic_bytes: ParameterBytes = 0.0
    """The same per parameter that a rank updates: passes over its share of gradients and weights
    beside one read for the norm and the optimizer's own kernel."""
    slice_copy_s: Seconds = 0.0
    """CPU time of copying one rank's slice of one tensor between flat buffers and weights or
    gradients under ZeRO-1, where slices are copied one by one."""
    quantised_gathers: bool = False
    """In low precision, activations are cast to 8 bits before they are gathered over tp."""
    tensor_copy_bytes: ElementBytes = 0.0
    """HBM bytes per 16-bit element of a sequence that is gathered or scattered over tp: collectives
    that work along the first dimension alone leave a concatenation along the sequence."""
    tensor_buffer_bytes: ElementBytes = 0.0
    """Bytes per element of a micro-batch's hidden activations in the buffers of tensor-parallel
    exchanges that run beside the products; held where `overlap.tensor` is above 0."""
    pipeline_scatters: bool = False
    """Without sequence parallelism a tp rank sends its 1/tp of the activation to the next stage,
    whose tp ranks gather it; otherwise each sends all of it."""
    accumulation_traffic_bytes: ParameterBytes = 0.0
    """HBM bytes per parameter and micro-batch of kernels that add 16-bit weight gradients into
    another buffer; 0 where the product itself accumulates."""
    gather_copy_bytes: ParameterBytes = 0.0
    """HBM bytes per parameter and micro-batch of one ZeRO-3 gather's copy from the flat buffer into
    weights."""
    reduce_copy_bytes: ParameterBytes = 0.0
    """The same of the copy of gradients into the buffer that is reduced."""
    gather_wait_s: Seconds = 0.0
    """Seconds that the GPU idles at one of ZeRO-3's gathers where the CPU has to wait for that of
    an earlier layer before it issues more (FSDP1's `limit_all_gathers`: torch,
    distributed/fsdp/_runtime_utils.py, `_unshard`). On the reference host."""
    memory_traffic: Ratio = 1.0
    """HBM traffic of elementwise rows over that of one fused kernel each."""
    norm_traffic: Ratio = 1.0
    """The same for norms: written in torch with an fp32 upcast, an RMSNorm reads and writes 36
    bytes an element where a fused kernel moves 4."""
    activation_traffic: Ratio = 1.0
    """The same for the activation between up and down, over `memory_traffic`: under 1 where it is a
    kernel of its own among torch's (Liger, xformers)."""
    rotary_traffic: Ratio = 1.0
    """The same for rotary embeddings."""
    loss_traffic: Ratio = 1.0
    """HBM traffic of the loss over one fused pass: 14 bytes forward and 8 backward a logit."""
    fused_projections: bool = True
    """Query, key and value (and gate and up) as one product, or one each."""
    gradient_communication_bytes: ParameterBytes = 4
    """Bytes of a gradient as it is reduced over data-parallel ranks."""
    parameter_communication_bytes: ParameterBytes = 2
    """Bytes of a parameter as it is gathered over data-parallel ranks."""


class Outside(Frozen):
    """Memory outside live tensors; each with its evidence in the framework's file."""

    fragmentation: Share = 0.06
    """Reserved over allocated, minus one, of what a step allocates and frees: activations, working
    set, logits, gathered weights. What is held from step to step is made once and leaves no gaps.
    Source: three SimuMax runs on B200 reserve 2.8 to 6.5 % more than they allocate, 23 of
    nanotron 2.3 %."""
    channel_bytes: Bytes = 3.0e7
    """NCCL buffers of one channel of a communicator (`planner.predict.links.channels` counts
    them). Source: 688 MiB for each group of 3 or 4 A100 that has reduced something, 544 for
    those of two (github NVIDIA/nccl, issue 964), and 0.65 GiB for each on MI250X
    (Lumi-supercomputer/LUMI-AI-Guide, issue 111), over 24 channels: about 2.7 connections of a ring
    and a tree with 10 MiB each, the size that issue 1685 traces."""
    kernels_bytes: Bytes = 0
    """Code of kernels that a process holds beyond the GPU's context, which was measured where CUDA
    loads each at its first use: before CUDA 11.7 (2022) it loaded all of torch's at once."""
    exchange_blocks: NonNegative = 0.0
    """Whole activations whose blocks wait, freed, until the GPU has exchanged them over tensor
    parallelism: before torch 2.8 a collective is recorded on NCCL's stream, and the CPU, where no
    stage makes it wait, is ahead by the launches that a stream takes (some 1,000), however many
    layers these are. Nothing waits with TORCH_NCCL_AVOID_RECORD_STREAMS=1. Source: torch, pull
    requests 76861 and 150398."""
    workspace_bytes: Bytes | None = None
    """cuBLAS workspaces and other library scratch, allocated like tensors; None: torch's two, of
    the size that it has on the GPU (`planner.job.frameworks.workspaces`)."""
    host_step_s: Seconds = 0.004
    """Time of a step outside kernels and collectives: data loading, logging, scheduler. On the
    reference host. Source: short steps; vTrain's 641 of 0.05 to 0.6 s and compiled models on one
    H200 err least with it, 2 ms under FSDP1 and Megatron-FSDP, none in llm.c's loops."""
    sample_load_s: Seconds = 0.0
    """Time in which a data-parallel rank reads one sequence, beside compute: a step takes at least
    as long as its batch does. 0 where storage and loaders keep up."""
    evidence: str = ""
    """Where this table's figures come from."""


class FullMemorySettings(Frozen):
    """What runs did whose allocator had next to nothing left
    (`planner.predict.uncertainty.full_memory`)."""

    allocator: Literal["torch", "other"] = "torch"
    """Torch's caching allocator frees its cache and asks again before it gives up; others do
    not."""
    exchange_s: Seconds = 0.0
    """Seconds that each send or receive of a pipeline stage then takes more; 0: no such runs."""
    evidence: str = ""
    """Where this table's figures come from."""


class ActivationOffload(Frozen):
    """Activations that leave the GPU between forward and backward."""

    modules: tuple[str, ...] = ()
    """Names of what can be offloaded, in the framework's order (`planner.predict.ops.offload` says
    which tensors each stands for); empty: there is no such option, or none that is modelled."""
    refusal: str = "has no option for it"
    """Why nothing can be offloaded, where `modules` is empty."""
    flags: str = ""
    """How the framework spells it: a template with `{modules}`."""
    fraction_flags: str = ""
    """How it spells that a share of the layers' tensors leaves: a template with `{fraction}`; none:
    all do. `constraints.offload` says which stay."""
    searched: tuple[tuple[str, ...], ...] = ()
    """Sets of modules that a search tries, `*` for all that the model has."""
    least_offload_bytes: Bytes = 0
    """Smaller tensors stay on the GPU."""
    resident_layers: Annotated[NonNegative, unit("layers")] = 2.0
    """Layers whose offloaded tensors are on the GPU all the same: those on their way to the host,
    and those that backward reads or fetches ahead."""
    recompute: Literal["selective", "full"] = "selective"
    """Recompute modes that it works with: what they leave in a layer, or only the checkpoints."""
    precisions: tuple[str, ...] = ("bf16", "fp16")
    """Precisions that it works with."""
    low_precision_modules: tuple[str, ...] = ()
    """Modules that keep 16-bit tensors in any precision: others keep quantised inputs of
    products."""
    evidence: str = ""
    """Where this table's figures come from."""
