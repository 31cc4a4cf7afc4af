"""How a rank trains besides its shape: what the timeline is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.frameworks.tensors import DataParallelBuckets

OptimizerKernel = Literal["foreach", "fused", "forloop"]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How a rank trains besides its shape.

    `layers`: index into the model's layers of those on this rank (None: all), in forward order;
    `recomputed`: which of them run again in backward (None: all, in the shape's mode);
    `embedding`, `head`: whether it holds the ends; `mtp`: multi-token-prediction modules on it,
    `mtp_losses`: of how many modules it computes the loss;
    `chunks`: model chunks of a stage (interleaving, a V, two copies of the model); `in_flight`:
    micro-batches whose activations it holds at once, `head_in_flight`: those whose loss is not
    yet differentiated; `split_backward`: gradients of weights are made apart from those of
    inputs, and `deferred`, `head_deferred` micro-batches (of the head) still wait for them;
    `staying`: which of the layers keep on the GPU what could be offloaded (None: a framework
    offloads all layers or none); `late`: (in flight, deferred) when most do; `moment_bytes`:
    optimizer state per parameter beside the master copy; `reduce_every_microbatch` False: FSDP
    without gradient sync while accumulating; `ddp`: the buckets of DistributedDataParallel, None
    without it; `workspace_bytes`: cuBLAS and library scratch, which torch's allocator hands out
    like any tensor; `extra_state_bytes`, `update_bytes`: optimizer state beyond `moment_bytes` and
    temporaries of the largest update; `gradients_on_gpu`: share of the settled gradients that
    an offloaded optimizer leaves there.
    """

    layers: Sequence[int] | None = None
    recomputed: Sequence[bool] | None = None
    staying: Sequence[bool] | None = None
    embedding: bool = True
    head: bool = True
    mtp: int = 0
    mtp_losses: int = 0
    chunks: int = 1
    in_flight: float = 1.0
    head_in_flight: float = 1.0
    split_backward: bool = False
    deferred: float = 0.0
    head_deferred: float = 0.0
    late: tuple[float, float] | None = None
    grad_acc: int = 1
    moment_bytes: float | None = None
    optimizer_kernel: OptimizerKernel = "foreach"
    reduce_every_microbatch: bool = True
    ddp: DataParallelBuckets | None = None
    workspace_bytes: float = 0.0
    extra_state_bytes: float = 0.0
    update_bytes: float = 0.0
    gradients_on_gpu: float = 1.0
