"""Parts of a transformer layer that recomputation or activation offload may name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Literal, NamedTuple


class Module(IntFlag):
    """Parts of a layer; a recompute mode is a union of these.

    The names follow Megatron-core's `--recompute-modules`; FULL is `--recompute-granularity
    full` (torch: checkpointing the whole block), SELECTIVE_OP is torchtitan's per-op policy
    that keeps the output of every second matmul and of attention, BUDGET torch's memory budget,
    which drops what `planner.predict.ops.checkpoint` chooses. MLP_UP and MLP_ACT are what JAX's
    policies by name run again: gate, up and activation of a dense feed-forward block, or the
    activation alone of any, but not the last product, whose output backward does not read.
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
    MLP_UP = 1024
    MLP_ACT = 2048


Applies = Literal["always", "moe", "mla", "eager-attention", "dense", "shared-experts"]


class RecomputedModule(NamedTuple):
    """A part that may recompute by itself, and what a model must have for it: `words` says it."""

    part: Module
    needs: Applies = "always"
    words: str = ""


# Megatron-LM's names (--recompute-modules) -> parts of the op table.
RECOMPUTED: Mapping[str, RecomputedModule] = {
    "core_attn": RecomputedModule(Module.CORE_ATTENTION),
    "moe_act": RecomputedModule(Module.ACTIVATION, "moe", "experts"),
    "layernorm": RecomputedModule(Module.LAYERNORM),
    "mla_up_proj": RecomputedModule(Module.MLA_UP_PROJ, "mla", "multi-head latent attention"),
    "mlp": RecomputedModule(Module.MLP, "dense", "dense feed-forward layers"),
    "moe": RecomputedModule(Module.MOE, "moe", "experts"),
    "shared_experts": RecomputedModule(Module.SHARED_EXPERTS, "shared-experts", "shared experts"),
}

OFFLOAD_MODULES = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "checkpoints",
)  # fmt: skip
"""What some framework can keep the activations of on the host; their tensors:
`planner.predict.ops.offload`."""
