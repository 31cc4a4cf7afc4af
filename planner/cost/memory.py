"""Memory of one pipeline stage, phase by phase; pure functions, bytes in and out.

Sources: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5), 1F1B and interleaving
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2), activations (Korthikanti et al. 2022).
"""

from __future__ import annotations

from planner.cost._jit import jit
from planner.cost.tables import FrameworkInputs


@jit
def weight_bytes(
    dense: float, expert: float, zero: int, shards: float, expert_shards: float,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Low-precision weights that stay on the rank.

    All of them below ZeRO-3, unless fp32 shards are the parameters (FSDP): there ZeRO-2 and 3
    gather them for each pass.
    """
    if zero > 1 and shards > 1.0 and framework.zero3_keeps_weight_shard == 0.0:
        return 0.0
    if zero < 3:
        return framework.weight_bytes * (dense + expert)
    return framework.weight_bytes * (dense / shards + expert / expert_shards)


@jit
def gradient_bytes(
    dense: float, expert: float, zero: int, shards: float, expert_shards: float,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Gradients that stay on the rank: sharded from ZeRO-2 on."""
    per_parameter = framework.gradient_bytes + framework.extra_gradient_bytes
    if zero < 2 or shards <= 1.0:
        return per_parameter * (dense + expert)
    resident = framework.gradients_on_gpu * framework.gradient_bytes
    return resident * (dense / shards + expert / expert_shards)


@jit
def optimizer_bytes(
    dense: float, expert: float, zero: int, shards: float, expert_shards: float,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Master weights and moments: sharded from ZeRO-1 on."""
    per_parameter = framework.master_bytes + framework.optimizer_bytes
    if zero < 1:
        return per_parameter * (dense + expert)
    return per_parameter * (dense / shards + expert / expert_shards)


@jit
def optimizer_temporary_bytes(
    dense: float, expert: float, zero: int, shards: float, expert_shards: float,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Temporaries of the optimizer step, per parameter that the rank updates."""
    share = framework.optimizer_temporary_bytes
    if zero < 1:
        return share * (dense + expert)
    return share * (dense / shards + expert / expert_shards)


@jit
def communicator_bytes(
    tp: float, cp: float, dp: float, pp: float, ep: float, framework: FrameworkInputs
) -> float:
    """NCCL buffers: one set per communicator that the rank is a member of."""
    count = 0.0
    for degree in (tp, cp, dp * cp, pp, ep):
        if degree > 1.0:
            count += 1.0
    if pp > 1.0:
        # A pipeline rank talks to two neighbours, and first and last share embedding gradients.
        count += 1.0
    return count * framework.communicator_bytes
