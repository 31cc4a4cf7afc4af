"""Bytes on a rank besides the tensors of its layers: gradients, buffers, allocator blocks.

Sources: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5), 1F1B and interleaving
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2), activations (Korthikanti et al. 2022).
"""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.codes import GROUP_CP, GROUP_EP
from planner.cost.placement import touched_domains
from planner.cost.tables import FrameworkInputs, JobInputs

# Names of the communicators, in the order of `communicator_sizes`.
COMMUNICATORS = ("tp", "cp", "dp", "pp", "ep", "embedding")


@jit
def divided_gradient_bytes(share: float, framework: FrameworkInputs) -> float:
    """Bytes of gradients on the GPU that ZeRO divides. `share`: number of parameters
    (`ClassShare.trained_share`)."""
    return framework.gradients_on_gpu * framework.gradient_bytes * share


@jit
def gradient_bytes(trained: float, share: float, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of gradients that stay on the rank. From ZeRO-2 on they are divided, and perhaps
    offloaded; there are none if the optimizer updates in backward.

    `trained`, `share`: trained parameters before and after ZeRO divides them.
    """
    if framework.updates_in_backward > 0.0:
        return 0.0
    if grid.zero < 2 or (grid.shards <= 1.0 and framework.gradients_on_gpu >= 1.0):
        return (framework.gradient_bytes + framework.extra_gradient_bytes) * trained
    return divided_gradient_bytes(share, framework)


@jit
def communicator_sizes(
    tp: float, cp: float, dp: float, pp: float, ep: float
) -> tuple[float, float, float, float, float, float]:
    """Number of ranks of each communicator that may have buffers, in the order of `COMMUNICATORS`:
    (tp, cp, dp·cp, pp, ep, pp). A pipeline rank talks to two neighbours; the first and the last
    stage share embedding gradients."""
    return tp, cp, dp * cp, pp, ep, pp


@jit
def outside_bytes(key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs) -> float:
    """Bytes besides live tensors in every phase. Outside torch's allocator: context, communication
    and paged states; inside it: blocks that it keeps for the update."""
    outside = framework.context_bytes + communication_bytes(key, grid, job, framework)
    return outside + set_aside_bytes(key, grid, framework) + paged_state_bytes(key, grid, framework)


@jit
def paged_state_bytes(key: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of optimizer states in unified memory that stay on the GPU, for the parameters of an
    even stage.

    b·P/(tp·pp·shards). Source: bitsandbytes, functional.py, get_paged.
    """
    if framework.paged_bytes == 0.0:
        return 0.0
    share = framework.model_parameters / (key.tp * grid.pp)
    return framework.paged_bytes * (share / grid.shards if grid.zero > 0 else share)


@jit
def set_aside_bytes(key: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of allocator blocks for an update that works on a rank's whole share of an even stage's
    parameters as one tensor (ZeRO-3: on a group of them at a time).

    b·min(P/(tp·pp·shards), group). No block that backward frees is as large, and the allocator does
    not join segments: it asks for new ones in the first step and keeps them, so they are added to
    all memory that the passes use. Source: DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py,
    step; torch, c10/cuda/CUDACachingAllocator.cpp. (If there is no room for both, DeepSpeed warns
    of "cache flushes since last step".)
    """
    share = framework.model_parameters / (key.tp * grid.pp)
    if grid.zero > 0:
        share /= grid.shards
    if grid.zero > 2:
        share = min(share, framework.update_group_parameters)
    return framework.flat_update_bytes * share


@jit
def recorded_bytes(
    layers: float, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Bytes of activations that are freed but that the allocator cannot reuse yet, because the GPU
    still exchanges them over tensor parallelism while the CPU already issues later work. 0 without
    tensor parallelism.

    min(b, 2·layers·min(2, m))·a·mbs·seq/cp·hidden, with b `exchange_blocks`, m micro-batches in a
    step and a the bytes of an activation's element. Each layer has two exchanges in each pass. The
    first of the m backward passes meets blocks of its own forward, and the next one meets blocks of
    the pass before it. 0 with several stages, because a stage waits for the tensors that it sends.
    An allocation that fails waits for these blocks, so they never prevent a configuration from
    fitting. Source: as for `exchange_blocks`, and torch, c10/cuda/CUDACachingAllocator.cpp,
    process_events and release_cached_blocks.
    """
    if key.tp <= 1.0 or grid.pp > 1.0:
        return 0.0
    issued = 2.0 * layers * min(2.0, grid.grad_acc)
    activation = framework.activation_bytes * key.mbs * job.seq / key.cp * job.hidden
    return min(framework.exchange_blocks, issued) * activation


@jit
def communication_bytes(key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs) -> float:
    """Bytes of buffers for communicators, for all-to-alls, and for overlapped tensor-parallel
    exchanges."""
    communicators = communicator_bytes(key.tp, key.cp, grid.dp, grid.pp, key.ep, framework)
    communicators += world_bytes(key.tp * key.cp * grid.dp * grid.pp, framework)
    buffers = tensor_buffer_bytes(key.tp, key.cp, key.mbs, job, framework)
    return communicators + exchange_buffer_bytes(key, framework) + buffers


@jit
def world_bytes(ranks: float, framework: FrameworkInputs) -> float:
    """Bytes of NCCL buffers of the communicators over all ranks (`world_communicators`)."""
    return framework.world_communicators * framework.communicator_bytes if ranks > 1.0 else 0.0


@jit
def exchange_buffer_bytes(key: Row, framework: FrameworkInputs) -> float:
    """Bytes of NCCL buffers for the all-to-alls of experts and of attention heads.

    (ranks - 1) * peer bytes for each group: an all-to-all sends to and receives from every other
    rank of its group. NCCL connects each pair by as many channels as their links can use, up to 32
    over NVLink, but by only two for all pairs once the group leaves its scale-up domain. So 32
    ranks inside a rack use 14 GB, and 16 ranks of two nodes 0.4. A fused dispatcher sends tokens
    another way; its buffers are ignored. Source: NCCL 2.29, src/graph/paths.cc,
    ncclTopoComputeP2pChannelsPerPeer; github NVIDIA/nccl, issue 1685.
    """
    # A ring or a gather of keys and values connects only neighbours.
    held = peer_bytes(key.exchange, key.stride[GROUP_CP], framework)
    if framework.dispatch_deduplicates > 0.0:
        return held
    return held + peer_bytes(key.ep, key.stride[GROUP_EP], framework)


@jit
def peer_bytes(size: float, stride: float, framework: FrameworkInputs) -> float:
    """Bytes of NCCL buffers that a rank has for all its peers in a group that runs all-to-alls:
    `size` ranks that are `stride` apart. 0 for one rank; fewer bytes for each peer if the group
    leaves its scale-up domain."""
    if size <= 1.0:
        return 0.0
    domain, world = int(framework.domain_gpus), int(framework.job_gpus)
    near = touched_domains(int(size), int(stride), domain, world) == 1
    return (size - 1.0) * (framework.near_peer_bytes if near else framework.far_peer_bytes)


@jit
def tensor_buffer_bytes(
    tp: float, cp: float, mbs: float, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Bytes of the buffers (userbuffers) for tensor-parallel exchanges that overlap with products.

    b·mbs·seq/cp·hidden, with b the bytes per element over all buffers: each contains a whole
    activation, at any tp, and lives from the first step to the last. Source: Transformer Engine,
    pytorch/module/base.py, initialize_ub; Megatron-LM, training/initialize.py.
    """
    if tp <= 1.0 or framework.hide_tensor <= 0.0:
        return 0.0
    return framework.tensor_buffer_bytes * mbs * job.seq / cp * job.hidden


@jit
def communicator_bytes(
    tp: float, cp: float, dp: float, pp: float, ep: float, framework: FrameworkInputs
) -> float:
    """Bytes of NCCL buffers: one set for each communicator of several ranks that the rank belongs
    to."""
    count = 0.0
    for size in communicator_sizes(tp, cp, dp, pp, ep):
        if size > 1.0:
            count += 1.0
    return count * framework.communicator_bytes
