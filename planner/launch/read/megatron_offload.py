"""Activations that Megatron keeps on the host: --fine-grained-activation-offloading."""

from __future__ import annotations

from dataclasses import dataclass

from planner.launch.read.found import Problem
from planner.launch.read.megatron_arguments import Arguments, choices_of_many

FINE_GRAINED, MODULES = "fine-grained-activation-offloading", "offload-modules"
FRACTION = "activation-offload-fraction"
# Modules of --offload-modules (transformer_config.py).
_OFFLOADED = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "fused_group_mlp",
)  # fmt: skip


@dataclass(frozen=True)
class Offload:
    """`modules`: joined by commas, or `off`; `fraction`: of the groups that leave the GPU."""

    modules: str = "off"
    fraction: float = 1.0
    problems: tuple[Problem, ...] = ()


def read_offload(arguments: Arguments) -> Offload:
    """What is offloaded; without the fraction, or out of its range, all."""
    if not arguments.has(FINE_GRAINED):
        return Offload()
    modules = choices_of_many(arguments, MODULES, _OFFLOADED)
    problems: tuple[Problem, ...] = ()
    if "fused_group_mlp" in modules:
        text = f"--{MODULES} fused_group_mlp: less memory than predicted"
        problems = (arguments.unpredictable(text, MODULES),)
    given = arguments.real(FRACTION)
    fraction = given if 0.0 <= given <= 1.0 else 1.0
    kept = ",".join(name for name in modules if name != "fused_group_mlp") or "off"
    return Offload(kept if fraction else "off", fraction, problems)
