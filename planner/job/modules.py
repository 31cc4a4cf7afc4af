"""Parts of a transformer layer that recomputation or activation offload may name."""

from __future__ import annotations

from enum import IntFlag


class Module(IntFlag):
    """Parts of a layer; a recompute mode is a union of these.

    The names follow Megatron-core's `--recompute-modules`; FULL is `--recompute-granularity
    full` (torch: checkpointing the whole block), SELECTIVE_OP is torchtitan's per-op policy
    that keeps the output of every second matmul and of attention, BUDGET torch's memory budget,
    which drops what `planner.predict.ops.checkpoint` chooses.
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


OFFLOAD_MODULES = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "checkpoints",
)  # fmt: skip
"""What some framework can keep the activations of on the host; their tensors:
`planner.predict.ops.offload`."""
