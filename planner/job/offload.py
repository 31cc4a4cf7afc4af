"""Activations that a framework can keep on the host, and what that can be combined with. Each
refusal names its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardware.files import shipped_toml
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.profile import FrameworkProfile, frameworks_with
from planner.job.recompute import Module, RecomputeMode
from planner.job.specs import ModelSpec

Modules = tuple[str, ...]
OPTION = "--activation-offload"
FRACTION_OPTION = "--activation-offload-fraction"
OFFLOAD_MODULES: Mapping[str, Any] = shipped_toml("planner.job", "offload_modules.toml")


def read_offload(text: str, profile: FrameworkProfile, model: ModelSpec) -> Modules:
    """The modules that a text names, in the framework's order. `off`: none; `all`: all that the
    model has. UsageError names the rule of the framework or the model."""
    names = [name.strip() for name in text.replace("+", ",").split(",")]
    if names == ["off"]:
        return ()
    _demand_option(text, profile)
    rules = profile.activation_offload
    if names == ["all"]:
        return _all_modules(profile, model)
    for name in names:
        if name not in rules.modules:
            has = ", ".join(rules.modules)
            if name in OFFLOAD_MODULES:
                raise UsageError(
                    f"{OPTION} {text}: {profile.name} has no module {name}; it has {has}  "
                    "[activation-offload-module]"
                )
            raise unknown_name(
                "module", name, rules.modules, f"{profile.name} offloads: {has}; all, off"
            )
        if not has_module(name, model):
            row = OFFLOAD_MODULES[name]
            raise UsageError(
                f"{OPTION} {text}: {name} needs a model with {row['needs']}, and {model.name} has "
                f"none; {row['instead']}  [activation-offload-module]"
            )
    modules = tuple(name for name in rules.modules if name in names)
    if "attn_proj" in modules and "core_attn" not in modules:
        raise UsageError(
            f"{OPTION} {text}: the input of attn_proj is the output of core_attn, which keeps it "
            "too; offload both: core_attn,attn_proj  [activation-offload-projection]"
        )
    return modules


def _demand_option(text: str, profile: FrameworkProfile) -> None:
    rules = profile.activation_offload
    if rules.modules:
        return
    having = frameworks_with(lambda other: other.activation_offload.modules)
    raise UsageError(
        f"{OPTION} {text}: {profile.name} {rules.refusal}; frameworks that have it: "
        f"{', '.join(having)}  [activation-offload]"
    )


def _all_modules(profile: FrameworkProfile, model: ModelSpec) -> Modules:
    return tuple(name for name in profile.activation_offload.modules if has_module(name, model))


def spelled(modules: Modules, profile: FrameworkProfile, model: ModelSpec) -> str:
    """The text of `--activation-offload` for these modules."""
    if not modules:
        return "off"
    return "all" if modules == _all_modules(profile, model) else ",".join(modules)


def has_module(name: str, model: ModelSpec) -> bool:
    """Whether a model has the part that a module stands for."""
    need = OFFLOAD_MODULES.get(name, {}).get("needs")
    if need is None:
        return True
    return model.moe is not None if need == "experts" else model.mla is not None


def searched_offloads(
    profile: FrameworkProfile, model: ModelSpec, precision: str = "bf16"
) -> tuple[Modules, ...]:
    """Sets of modules that a search tries in a precision, smallest first. UsageError if the
    framework offloads no activations."""
    _demand_option("search", profile)
    rules = profile.activation_offload
    found: list[Modules] = [()]
    for given in rules.searched:
        names = rules.modules if given == ("*",) else given
        low = precision not in rules.precisions
        left = [name for name in names if not low or name in rules.low_precision_modules]
        one_tuple = tuple(name for name in left if has_module(name, model))
        if one_tuple and one_tuple not in found:
            found.append(one_tuple)
    return tuple(found)


def offload_refusal(
    profile: FrameworkProfile,
    modules: Modules,
    mode: RecomputeMode,
    precision: str,
) -> str | None:
    """Why a job cannot keep these modules on the host under a recompute mode; None if it can."""
    rules, named = profile.activation_offload, f"{OPTION} {','.join(modules)}"
    if not modules:
        return None
    if precision not in rules.precisions:
        quantised = [name for name in modules if name not in rules.low_precision_modules]
        if quantised:
            instead = f"--precision {rules.precisions[0]}"
            if rules.low_precision_modules:
                instead += f", or of {', '.join(rules.low_precision_modules)}"
            return (
                f"{named}: the activations of {', '.join(quantised)} in {precision} are not "
                f"modelled; give {instead}  [activation-offload-precision]"
            )
    return _recompute_refusal(rules.recompute, modules, mode, named)


def _recompute_refusal(kind: str, modules: Modules, mode: RecomputeMode, named: str) -> str | None:
    whole = bool(mode.mask & (Module.FULL | Module.SELECTIVE_OP | Module.BUDGET))
    if kind == "full":
        if Module.FULL in mode.mask and mode.every == mode.span == 1:
            return None
        return (
            f"{named} with --recompute {mode.name}: only checkpoints are offloaded; give "
            "--recompute full  [activation-offload-recompute]"
        )
    if whole:
        return (
            f"{named} with --recompute {mode.name}: the whole layer is recomputed, so nothing is "
            "left to offload; recompute single modules or none  [activation-offload-recompute]"
        )
    rerun = {name: OFFLOAD_MODULES[name].get("rerun", "NOTHING") for name in modules}
    clash = [name for name, module in rerun.items() if Module[module] & mode.mask]
    if clash:
        return (
            f"{named} with --recompute {mode.name}: {', '.join(clash)} would be recomputed "
            "anyway; leave it out of one of them  [activation-offload-recompute]"
        )
    return None


def usable_modes(
    profile: FrameworkProfile,
    modules: Modules,
    modes: Sequence[RecomputeMode],
    precision: str,
) -> tuple[RecomputeMode, ...]:
    """The recompute modes that are compatible with the offload."""
    return tuple(
        mode for mode in modes if offload_refusal(profile, modules, mode, precision) is None
    )


def grouped_modules(profile: FrameworkProfile, modules: Modules) -> int:
    """Number of groups per layer that leave one after the other, in frameworks with groups.

    A norm's group stays open until the residual behind its block is added, so it encloses the
    groups of its block (megatron-core 0.19.2, transformer_layer.py).
    """
    if not profile.activation_offload.fraction_flags:
        return 0
    return sum(
        1 if norm in modules else sum(name in modules for name in row["block"])
        for norm, row in OFFLOAD_MODULES.items()
        if "block" in row
    )


def check_fraction(fraction: float, offloads: bool, profile: FrameworkProfile) -> None:
    """Raise UsageError if a share of the activations cannot leave the GPU. `offloads`: whether any
    can."""
    if fraction == 1.0:
        return
    given = f"{FRACTION_OPTION} {fraction}"
    if not 0.0 < fraction <= 1.0:
        instead = f"{OPTION} off" if fraction == 0.0 else "a number above 0 and up to 1"
        raise UsageError(f"{given}: give {instead}  [activation-offload-fraction]")
    if not offloads:
        raise UsageError(
            f"{given}: nothing is offloaded; name modules too, for example {OPTION} search  "
            "[activation-offload-fraction]"
        )
    if not profile.activation_offload.fraction_flags:
        having = frameworks_with(lambda other: other.activation_offload.fraction_flags)
        raise UsageError(
            f"{given}: {profile.name} offloads all layers or none; frameworks that accept a "
            f"fraction: {', '.join(having)}  [activation-offload-fraction]"
        )


def demand_all_leave(fraction: float) -> None:
    """Raise UsageError if a search is asked for a fraction of the activations."""
    if fraction != 1.0:
        raise UsageError(
            f"{FRACTION_OPTION} {fraction:g}: a search offloads all activations of a module or "
            f"none; leave the fraction out, and give {OPTION} search or MODULES, or cost one "
            "configuration with planner evaluate or memory  [activation-offload-fraction]"
        )


def offload_flags(profile: FrameworkProfile, modules: Modules, fraction: float = 1.0) -> str:
    """The framework's flags for the offload."""
    if not modules:
        return ""
    rules = profile.activation_offload
    flags = rules.flags.format(modules=" ".join(modules))
    if fraction == 1.0:
        return flags
    return f"{flags} {rules.fraction_flags.format(fraction=repr(fraction))}"
