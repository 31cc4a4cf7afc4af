"""Which optimizers a framework runs: each refusal names its rule."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile, OptimizerKernel
from planner.job.optimizers import Optimizer

# Shares of the optimizer on the CPU that a search tries, where a framework takes any share. Each
# costs a search of its own; between two of them, time and memory of a layout are linear.
SEARCHED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# What the framework's default is, and needs no flag.
_DEFAULT_TYPE = "fp32"


@dataclass(frozen=True, slots=True)
class OptimizerSetting:
    """An optimizer as a job uses it. `offload`: share of state and update on the CPU, 0..1."""

    optimizer: Optimizer
    kernel: OptimizerKernel
    offload: float = 0.0


def check_optimizer(profile: FrameworkProfile, setting: OptimizerSetting) -> None:
    """UsageError if the framework lacks the optimizer, its types, its kernel or its offload."""
    if refusal := optimizer_refusal(profile, setting):
        raise UsageError(refusal)


def optimizer_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    """Why a framework cannot run an optimizer as it is used; None if it can."""
    return (
        _refusal(profile, setting.optimizer)
        or _kernel_refusal(profile, setting)
        or _offload_refusal(profile, setting)
    )


def _refusal(profile: FrameworkProfile, optimizer: Optimizer) -> str | None:
    rules = profile.optimizer
    if rules.families and optimizer.family not in rules.families:
        return (
            f"--optimizer {optimizer.name}: {profile.name} has no {optimizer.family}; it has "
            f"{', '.join(rules.families)}  [optimizer-offered]"
        )
    master = optimizer.master or optimizer.gradient
    if master and rules.state_types != "all":
        return (
            f"--optimizer {optimizer.name}: {profile.name} cannot choose the type of master "
            "weights or gradients; leave out master= and grad=  [optimizer-types]"
        )
    if not optimizer.is_plain and rules.state_types == "plain":
        return (
            f"--optimizer {optimizer.name}: {profile.name} keeps fp32 moments; give --optimizer "
            f"{optimizer.family}  [optimizer-types]"
        )
    return None


def _kernel_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    kernels = profile.optimizer.kernels
    if setting.kernel in kernels:
        return None
    return (
        f"--optimizer-kernel {setting.kernel}: {profile.name} has {', '.join(kernels)}  "
        "[optimizer-kernel]"
    )


def _offload_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    kind, share = profile.optimizer.offload, setting.offload
    if not 0.0 <= share <= 1.0:
        return f"--optimizer-offload {share:g}: a share lies in 0..1"
    if share and kind == "none":
        return (
            f"--optimizer-offload {share:g}: {profile.name} keeps optimizer states on the GPU; "
            "give 0  [optimizer-offload]"
        )
    if 0.0 < share < 1.0 and kind == "whole":
        return (
            f"--optimizer-offload {share:g}: {profile.name} offloads all or nothing; give 0 or 1  "
            "[optimizer-offload]"
        )
    return None


def searched_shares(profile: FrameworkProfile) -> tuple[float, ...]:
    """Shares of the offload that a search tries, smallest first. UsageError if there is none."""
    kind = profile.optimizer.offload
    if kind == "none":
        raise UsageError(
            f"--optimizer-offload search: {profile.name} keeps optimizer states on the GPU; "
            "leave the option out  [optimizer-offload]"
        )
    return SEARCHED_SHARES if kind == "share" else (0.0, 1.0)


def optimizer_flags(profile: FrameworkProfile, setting: OptimizerSetting) -> str:
    """Flags of the optimizer's types and of its offload, as the framework spells them."""
    rules, optimizer = profile.optimizer, setting.optimizer
    names = dict(rules.type_flags)
    types = [*optimizer.states, ("master", optimizer.master), ("grad", optimizer.gradient)]
    flags = [
        f"{names[key]} {dtype}"
        for key, dtype in types
        if dtype is not None and dtype != _DEFAULT_TYPE and key in names
    ]
    switch = names.get("*")
    if flags and switch:
        flags.insert(0, switch)
    if setting.offload:
        offload = rules.offload_flags.format(share=f"{setting.offload:g}")
        # Types and offload of Megatron share one switch.
        flags.append(offload.removeprefix(f"{switch} ") if flags and switch else offload)
    return " ".join(flags)
