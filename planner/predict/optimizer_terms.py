"""The effect of an optimizer, its kernel and its offload, as numbers for the cost core.

`trained_profile` returns a framework profile whose `state` describes the part that stays on the
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hardware.curves import host_curves
from hardware.schema import Cluster
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.optimizers import ADAMW_STATE_BYTES, OptimizerSetting
from planner.predict.homes import nvme_bytes_per_s, weights_home
from planner.predict.links import link_inputs
from planner.predict.ops.rows import Op

# Bytes per parameter that every optimizer step moves besides the states: the fp32 gradient twice
# (norm, update), the fp32 master weight read and written, the low-precision weight written.
BASE_TRAFFIC_BYTES = 4 + 4 + 4 + 4 + 2
_FP32 = 4.0
# Tensors per parameter that torch's foreach AdamW moves, in the type that it updates: decay 2,
# first moment 3, second 2 + 4, root 2, bias correction 2, epsilon 2, update 4; one fused kernel
# moves 7 of them (torch.optim.adamw, `_multi_tensor_adamw`).
FOREACH_TENSORS = 21 - 7
# Newton-Schulz: iterations, and per iteration X·Xᵀ, A·A and B·X of an m × n matrix, m <= n
# (Jordan et al. 2024, modded-nanogpt).
NEWTON_SCHULZ_STEPS = 5
_HALF = 2.0
# Family of optimizers that use torch's kernels; quantised optimizers and Muon bring their own.
_TORCH = "adamw"


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """Costs of updating the parameters of one row of the op table, beyond the fixed number of bytes
    per parameter: bytes of further optimizer state, bytes of the temporaries of its largest tensor,
    FLOP of its matrix products."""

    state_bytes: float = 0.0
    temporary_bytes: float = 0.0
    flop: float = 0.0


def trained_profile(profile: FrameworkProfile, setting: OptimizerSetting) -> FrameworkProfile:
    """The profile with the optimizer's master weights, gradients and temporaries; offloaded master
    weights have left the GPU. `moment_bytes` gives the moments."""
    optimizer, state, kernels = setting.optimizer, profile.state, profile.kernels
    gradient = optimizer.gradient_bytes
    changes: dict[str, object] = {}
    if gradient is not None:
        changes["gradient_bytes"] = gradient
        kernels = kernels.model_copy(update={"gradient_communication_bytes": gradient})
    if state.master_bytes:
        changes["master_bytes"] = _master_bytes(profile, setting) * (1.0 - setting.on_cpu)
    if setting.on_cpu and profile.optimizer.offload_parameters:
        changes["zero3_keeps_weight_shard"] = False
    temporaries = foreach_temporary_bytes(profile, setting) + _cast_bytes(profile, setting)
    # An update during backward handles one layer's tensors at a time.
    changes["optimizer_temporary_bytes"] = 0.0 if state.updates_in_backward else temporaries
    state = state.model_copy(update=changes)
    return profile.model_copy(update={"state": state, "kernels": kernels})


def _cast_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per parameter of the fp32 copy of gradients that have another type."""
    state, chosen = profile.state, setting.optimizer.gradient_bytes
    gradient = state.gradient_bytes if chosen is None else chosen
    if gradient >= _FP32:
        return 0.0
    return state.update_cast_bytes * (1.0 - setting.on_cpu)


def foreach_temporary_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per parameter of the copy that torch's list (foreach) kernels make of the tensors that
    they update."""
    if setting.kernel != "foreach" or setting.optimizer.family != _TORCH:
        return 0.0
    return profile.state.optimizer_temporary_bytes * (1.0 - setting.on_cpu)


def moment_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes of optimizer state per parameter on the GPU, without the master weight; 0 for a paged
    optimizer, whose states torch does not allocate (`paged_bytes`).

    torch's AdamW makes its moments in the type of the weights by default.
    """
    if setting.optimizer.paged:
        return 0.0
    return state_bytes(profile, setting) * (1.0 - setting.on_cpu)


def state_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes of optimizer state per parameter in any memory, without the master weight."""
    scale = 1.0
    if setting.optimizer.follows_weights:
        scale = profile.state.optimizer_state_element_bytes / _FP32
    return setting.optimizer.state_bytes * scale


def _host_gradient_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes of a gradient in the form that an update on the CPU reads: fp32, or the type of the
    weights if these are updated directly."""
    alone = not profile.state.master_bytes and setting.optimizer.follows_weights
    return profile.state.gradient_bytes if alone else _FP32


def paged_bytes(setting: OptimizerSetting) -> float:
    """Bytes per parameter of the optimizer states that are in unified memory and stay on the GPU; 0
    if the optimizer is not paged."""
    optimizer = setting.optimizer
    return optimizer.state_bytes * (1.0 - setting.paged_out) if optimizer.paged else 0.0


def traffic_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per parameter that the GPU's part of an update moves. Without a master weight torch's
    AdamW works in the type of the weights and writes no copy: it reads the gradient twice (norm,
    update), and reads and writes weight and moments."""
    state, optimizer = profile.state, setting.optimizer
    element = _FP32
    if not state.master_bytes and optimizer.follows_weights:
        element = state.weight_bytes
        moments = ADAMW_STATE_BYTES / _FP32 * state.optimizer_state_element_bytes
        whole = 2.0 * (state.gradient_bytes + state.weight_bytes + moments)
    else:
        whole = BASE_TRAFFIC_BYTES + optimizer.traffic_bytes
        for item in (optimizer.gradient_bytes, optimizer.master_bytes):
            if item is not None:
                whole -= 2.0 * (_FP32 - item)
    if setting.kernel != "fused" and optimizer.family == _TORCH:
        whole += FOREACH_TENSORS * element
    return whole * (1.0 - setting.on_cpu)


def offload_seconds_per_parameter(
    profile: FrameworkProfile, setting: OptimizerSetting, cluster: Cluster
) -> float:
    """Seconds that offload adds per parameter of the rank.

    Gradients are copied down and low-precision weights back over the host's link (one GPU, one
    direction); CPU-Adam runs in between. Only copies that the framework sends during backward are
    hidden (Ren et al. 2021, section 4). Weights whose home is off the GPU stay there after an
    update on the CPU, and are moved there after one on the GPU.
    """
    home = weights_home(profile, setting)
    host_bytes_per_s = float(link_inputs(cluster).host_bytes_per_s)
    weights_s = profile.state.weight_bytes / host_bytes_per_s
    on_gpu_s = weights_s * (1.0 - setting.on_cpu) if home != "gpu" else 0.0
    if home == "nvme":
        on_gpu_s += profile.state.weight_bytes / nvme_bytes_per_s(cluster)
    return on_gpu_s + _states_seconds(profile, setting, cluster)


def _states_seconds(
    profile: FrameworkProfile, setting: OptimizerSetting, cluster: Cluster
) -> float:
    """The part of `offload_seconds_per_parameter` for states off the GPU."""
    host_bytes_per_s = float(link_inputs(cluster).host_bytes_per_s)
    if setting.paged_out:
        # Blocks are swapped, so both directions of the link are busy at once.
        return setting.paged_out * setting.optimizer.state_bytes / host_bytes_per_s
    if not setting.on_cpu:
        return 0.0
    state, rules = profile.state, profile.optimizer
    gradient = state.gradient_bytes
    down_s = (1.0 - rules.offload_overlap) * gradient / host_bytes_per_s
    up_s = state.weight_bytes / host_bytes_per_s if weights_home(profile, setting) == "gpu" else 0.0
    updated = state_bytes(profile, setting) + _master_bytes(profile, setting)
    cpu_bytes = _host_gradient_bytes(profile, setting) + 2.0 * updated
    node_bytes_per_s = host_curves().cpu_adam_bytes_per_s_per_node.value
    cpu_s = cpu_bytes * cluster.gpus_per_node / (node_bytes_per_s * rules.offload_host_share)
    drives_s = 0.0
    if state.states_home == "nvme":
        drives_s = 2.0 * updated_bytes(profile, setting) / nvme_bytes_per_s(cluster)
    return setting.on_cpu * (down_s + cpu_s + up_s + drives_s)


def updated_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per parameter of the rank in host memory for an update on the CPU: states, the weight
    that it updates, and the gradient.

    On NVMe a step writes all of them once and reads them once; without `pipeline_read` and
    `pipeline_write` one after the other, overlapping with nothing (DeepSpeed,
    runtime/swap_tensor/partitioned_optimizer_swapper.py).
    """
    held = state_bytes(profile, setting) + _master_bytes(profile, setting)
    return held + _host_gradient_bytes(profile, setting)


def host_bytes_per_parameter(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Host memory that offload takes per parameter of the rank: states, master weight, gradient, or
    the states of a paged optimizer; 0 if they are on NVMe."""
    if setting.paged_out:
        return setting.paged_out * setting.optimizer.state_bytes
    if profile.state.states_home == "nvme":
        return 0.0
    return setting.on_cpu * updated_bytes(profile, setting)


def _master_bytes(profile: FrameworkProfile, setting: OptimizerSetting) -> float:
    """Bytes per parameter of the copy of the weight that the update reads and writes: the master
    weight, or the weight itself if there is no master."""
    state, master_bytes = profile.state, setting.optimizer.master_bytes
    if master_bytes is not None and state.master_bytes:
        return master_bytes
    return state.master_bytes or state.weight_bytes


@dataclass(frozen=True, slots=True)
class _Updated:
    """The parameters of one row of the op table, and the optimizer that updates them. `count`:
    number of parameters; `hidden`: width of the model."""

    op: Op
    count: float
    setting: OptimizerSetting
    profile: FrameworkProfile
    hidden: float

    @property
    def on_gpu(self) -> float:
        """Share of the optimizer that stays on the GPU."""
        return 1.0 - self.setting.on_cpu

    @property
    def matrix(self) -> tuple[float, float, float]:
        """(matrices, rows, columns) of a product's parameters; zeros for other rows. A bias counts
        as one more column of its matrix; by itself it is not a matrix."""
        op = self.op
        for rows in (op.out_width, op.kv_out_width) if op.is_product else ():
            for columns in (op.in_width, op.in_width + 1.0):
                if rows > 0.0 and self.count == op.groups * rows * columns:
                    return op.groups, rows, op.in_width
        return 0.0, 0.0, 0.0


def parameter_update(
    op: Op, count: float, setting: OptimizerSetting, profile: FrameworkProfile, hidden: float
) -> ParameterUpdate:
    """Costs of updating `count` parameters of a row beyond the fixed bytes of each."""
    return UPDATES[setting.optimizer.scope](_Updated(op, count, setting, profile, hidden))


def _elementwise(one: _Updated) -> ParameterUpdate:
    """Temporaries of an update that torch runs tensor by tensor: square root and quotient of the
    second moment, two copies of the largest tensor. Nothing for fused or list kernels or for other
    optimizers."""
    if one.setting.kernel != "forloop" or one.setting.optimizer.family != _TORCH:
        return ParameterUpdate()
    largest = one.count / one.op.groups
    temporaries = 2.0 * one.profile.state.optimizer_temporary_bytes * largest
    return ParameterUpdate(temporary_bytes=temporaries)


def _muon(one: _Updated) -> ParameterUpdate:
    """Muon's costs. It keeps a momentum for matrices and AdamW's two moments for the other
    parameters, including the LM head; only the second moment of these others counts as further
    state. The FLOP are those of the Newton-Schulz iteration.

    Temporaries, in bf16: the matrix X, its product with B, A = X·Xᵀ, and B.
    """
    number, rows, columns = (0.0, 0.0, 0.0) if one.op.pads_vocabulary else one.matrix
    others = one.count - number * rows * columns
    more = max(0.0, ADAMW_STATE_BYTES - one.setting.optimizer.state_bytes)
    state_bytes = more * others * one.on_gpu
    if not number:
        return ParameterUpdate(state_bytes)
    low, high = sorted((rows, columns))
    flop = NEWTON_SCHULZ_STEPS * (4.0 * low * low * high + 2.0 * low**3)
    temporary = _HALF * (2.0 * low * high + 2.0 * low * low)
    return ParameterUpdate(state_bytes, temporary, number * flop * one.on_gpu)


def _factored(one: _Updated) -> ParameterUpdate:
    """State of an optimizer that factors the second moment, in fp32: for each matrix one sum per
    row and one per column; for a vector one value per entry."""
    number, rows, columns = one.matrix
    sums = one.count
    if number:
        sums = number * (rows + columns) + one.count - number * rows * columns
    elif one.op.pads_vocabulary and one.count > one.hidden:
        sums = one.count / one.hidden + one.hidden
    return ParameterUpdate(_FP32 * sums * one.on_gpu)


Update = Callable[[_Updated], ParameterUpdate]
# The update of each scope of optimizers (`planner/job/optimizers.toml`).
UPDATES: Mapping[str, Update] = {"all": _elementwise, "matrices": _muon, "factored": _factored}
