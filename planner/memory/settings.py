"""How a rank trains besides its shape: what the timeline is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.frameworks.profile import DataParallelBuckets

OptimizerKernel = Literal["foreach", "fused", "forloop"]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How a rank trains besides its shape.

    `layers`: index into the model's layers of those on this rank (None: all), in forward order;
    `recomputed`: which of them run again in backward (None: all, in the shape's mode);
    `embedding`, `head`: whether it holds the ends; `mtp`: multi-token-prediction modules on it;
    `chunks`: model chunks of a stage (interleaving); `in_flight`: micro-batches whose activations
    it holds at once; `moment_bytes`: optimizer state per parameter beside the master copy;
    `reduce_every_microbatch` False: FSDP without gradient sync while accumulating; `ddp`: the
    buckets of DistributedDataParallel, None without it; `workspace_bytes`: cuBLAS and library
    scratch, which torch's allocator hands out like any tensor.
    """

    layers: Sequence[int] | None = None
    recomputed: Sequence[bool] | None = None
    embedding: bool = True
    head: bool = True
    mtp: int = 0
    chunks: int = 1
    in_flight: float = 1.0
    grad_acc: int = 1
    moment_bytes: float | None = None
    optimizer_kernel: OptimizerKernel = "foreach"
    reduce_every_microbatch: bool = True
    ddp: DataParallelBuckets | None = None
    workspace_bytes: float = 0.0
