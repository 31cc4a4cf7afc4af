"""Parts of a transformer layer that recomputation may name."""

from __future__ import annotations

from enum import IntFlag


class Module(IntFlag):
    """Parts of a layer; a recompute mode is a union of these.

    The names follow Megatron-core's `--recompute-modules`; FULL is `--recompute-granularity
    full` (torch: checkpointing the whole block), SELECTIVE_OP is torchtitan's per-op policy
    that keeps the output of every second matmul and of attention, BUDGET torch's memory budget,
    which drops what `planner.predict.ops.budget` chooses.
    """

    NOTHING = 0
    CORE_ATTENTION = 1
    LAYERNORM = 2
    ACTIVATION = 4
    MLA_UP_PROJ = 8
    MLP = 16
    MOE = 32
    SHARED_EXPERTS = 64
    FULL = 128
    SELECTIVE_OP = 256
    BUDGET = 512
