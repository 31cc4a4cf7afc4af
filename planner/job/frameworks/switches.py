"""Options that change how a framework trains, and conditions that its techniques impose on a plan.

The options are torch's and Megatron's own switches. Each says which tables of the profile it
changes; readers of launch files use the same tables (`planner.launch.check.request`). In-network
reduction (SHARP) is one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.job.frameworks.techniques import Site
from planner.job.recompute import RecomputeMode

if TYPE_CHECKING:
    from constraints.condition import UserCondition
    from hardware.schema import Cluster
    from planner.job.specs import ModelSpec
from dataclasses import dataclass
from functools import cache

from hardware.schema import Cluster
from hardware.sharp import with_sharp
from planner.job.errors import UsageError
from planner.job.frameworks.adapters import tuned_profile
from planner.job.frameworks.profile import (
    FrameworkProfile,
    Tables,
    frameworks_with,
    load_framework,
    with_tables,
)
from planner.job.frameworks.techniques import Technique
from planner.job.samples import Samples
from planner.job.tuning import FULL, Tuning

_ONE_TEXT = Samples()
NO_SEQUENCE_PARALLEL: Tables = {"parallelism": {"sequence_parallel": "never"}}
# Gradients are views of DDP's buckets, which live from the first step to the last (torch,
# DistributedDataParallel). DDP shards nothing: ZeRO-0.
BUCKET_VIEW: Tables = {
    "state": {"ddp_bucket_copies": 0.0, "persistent_gradients": True},
    "parallelism": {"zero_stages": (0,)},
}
# Gradients are zeroed in place and never freed (torch, Optimizer.zero_grad).
KEPT_GRADIENTS: Tables = {"state": {"persistent_gradients": True}}


@dataclass(frozen=True, slots=True)
class Switches:
    """Options of a job that change its framework's profile. The defaults change nothing."""

    sequence_parallel: bool = True
    gradient_as_bucket_view: bool = False
    set_to_none: bool = True


@cache
def switched(profile: FrameworkProfile, switches: Switches, world: int) -> FrameworkProfile:
    """The profile with the options applied, for a job on `world` GPUs; equal arguments give the
    same object. UsageError for an option that the framework lacks."""
    if not switches.sequence_parallel:
        profile = _noted(with_tables(profile, NO_SEQUENCE_PARALLEL), "no sequence parallelism")
    if switches.gradient_as_bucket_view:
        _demand_ddp(profile, world)
        profile = _noted(with_tables(profile, BUCKET_VIEW), "gradients are views of DDP's buckets")
    if not switches.set_to_none:
        _demand_freed_gradients(profile)
        profile = _noted(
            with_tables(profile, KEPT_GRADIENTS), "gradients are zeroed in place, not freed"
        )
    return profile


def has_technique(profile: FrameworkProfile, technique: Technique) -> bool:
    """Whether a profile already includes the changes of a technique."""
    return with_tables(profile, technique.changes(used=True)) == profile


@cache
def with_techniques(
    profile: FrameworkProfile, used: tuple[str, ...], unused: tuple[str, ...] = ()
) -> FrameworkProfile:
    """The profile with the techniques `used` and without `unused`; equal arguments give the same
    object."""
    for technique in profile.techniques:
        if technique.name in used and technique.profile:
            other = load_framework(technique.profile).in_mode(profile.mode)
            return _noted(other, _technique_note(technique))
        if technique.name in used:
            profile = with_tables(profile, technique.changes(used=True, mode=profile.mode))
            profile = _without_notes(profile, technique.ends)
            profile = _noted(profile, _technique_note(technique))
        elif technique.name in unused:
            profile = with_tables(profile, technique.changes(used=False))
    return profile


def _technique_note(technique: Technique) -> str:
    flags = f" ({technique.usual_flags})" if technique.flags else ""
    return f"{technique.name}: {technique.words}{flags}"


def _without_notes(profile: FrameworkProfile, ended: tuple[str, ...]) -> FrameworkProfile:
    """The profile without the assumptions that no longer hold."""
    kept = tuple(text for text in profile.assumptions if text not in ended)
    return profile.model_copy(update={"assumptions": kept})


def _noted(profile: FrameworkProfile, note: str) -> FrameworkProfile:
    """The profile with a note about what was switched, shown with answers."""
    return profile.model_copy(update={"assumptions": (*profile.assumptions, note)})


def _demand_ddp(profile: FrameworkProfile, world: int) -> None:
    if not _has_ddp(profile):
        raise UsageError(
            f"--gradient-as-bucket-view: {profile.name} does not train under torch's "
            f"DistributedDataParallel; these do: {', '.join(frameworks_with(_has_ddp))}"
        )
    if world == 1:
        raise UsageError(
            "--gradient-as-bucket-view: one GPU trains without DistributedDataParallel; leave the "
            "option out, or give more GPUs"
        )


def _demand_freed_gradients(profile: FrameworkProfile) -> None:
    state = profile.state
    if state.gradients_at_backward or (state.persistent_gradients and state.ddp_bucket_copies == 0):
        raise UsageError(
            f"--no-set-to-none: gradients of {profile.name} are kept in buffers that live for all "
            "steps anyway; leave the option out"
        )


def _has_ddp(profile: FrameworkProfile) -> bool:
    return profile.state.ddp_bucket_copies > 0 and 0 in profile.parallelism.zero_stages


def framework_sharp(cluster: Cluster, profile: FrameworkProfile, asked: bool) -> Cluster:
    """The cluster with the in-network reductions that the framework can use.

    `asked`: the user asked for SHARP (`--sharp`); UsageError or HardwareError then says why it is
    impossible. A framework that cannot name a communicator trains without SHARP on a cluster that
    has it.
    """
    if profile.parallelism.sharp_groups:
        return with_sharp(cluster, cluster.sharp) if asked else cluster
    if asked:
        having = ", ".join(frameworks_with(lambda other: other.parallelism.sharp_groups))
        raise UsageError(
            f"--sharp: {profile.name} cannot name the communicator that the switches reduce for "
            f"(NCCL takes the first that is made); frameworks that can: {having}"
        )
    return cluster.model_copy(update={"sharp": ""}) if cluster.sharp else cluster


def technique_conditions(
    profile: FrameworkProfile, names: Iterable[str]
) -> tuple[UserCondition, ...]:
    """Conditions on the degrees that the required techniques impose."""
    from constraints.condition import user_condition

    found = (profile.technique(name) for name in names)
    return tuple(
        replace(user_condition("require", one.when), of=f"--with {one.name}")
        for one in found
        if one is not None and one.when
    )


def technique_refusal(
    profile: FrameworkProfile, names: Iterable[str], mode: RecomputeMode
) -> str | None:
    """Why a recompute mode cannot be combined with the techniques in use; None if it can."""
    for name in names:
        technique = profile.technique(name)
        if technique is None:
            continue
        both = [module.lower() for module in mode.modules if module in technique.refuses]
        if both:
            return (
                f"--with {name} and --recompute {mode.name}: {profile.name} does not recompute "
                f"{' or '.join(both)} together with it; leave one of them out"
            )
    return None


def site_of(
    profile: FrameworkProfile, model: ModelSpec, cluster: Cluster, *, inside: bool,
    tuning: Tuning = FULL, samples: Samples = _ONE_TEXT,
) -> Site:  # fmt: skip
    """The properties of a job that decide which techniques apply. `inside`: tensor parallelism
    stays inside a scale-up domain."""
    linked = cluster.scale_up_domain_gpus >= cluster.gpus_per_node
    linked = linked and cluster.gpu.traits.kernels_send
    split = profile.parallelism.sequence_parallel == "with-tp"
    separate = any(kind.attention == "none" for kind in model.kinds)
    usual = load_framework(profile.name).in_mode(profile.mode)
    altered = profile not in (usual, tuned_profile(usual, tuning, model))
    return Site(
        model.moe is not None,
        linked and split and inside,
        model.family,
        separate,
        altered,
        cluster.gpu.vendor,
        tuning,
        samples.differ,
    )


def kept_techniques(
    offered: FrameworkProfile, profile: FrameworkProfile, names: Iterable[str]
) -> tuple[str, ...]:
    """Techniques in use, in the order of the profile `offered`, given that `profile` already
    includes some."""
    used = tuple(names)
    return tuple(
        one.name
        for one in offered.techniques
        if one.name in used and (one.profile or profile.technique(one.name) is not None)
    )


def refuses_offload(profile: FrameworkProfile, names: Iterable[str]) -> str:
    """The first technique that excludes activation offload; empty if none does."""
    found = (profile.technique(name) for name in names)
    return next((one.name for one in found if one and "OFFLOAD" in one.refuses), "")


def unrefused_modes(
    profile: FrameworkProfile, names: Iterable[str], modes: Iterable[RecomputeMode]
) -> tuple[RecomputeMode, ...]:
    """The recompute modes that all techniques in use allow."""
    used = tuple(names)
    return tuple(mode for mode in modes if technique_refusal(profile, used, mode) is None)
