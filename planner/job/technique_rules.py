"""What techniques of a framework demand of a plan: of its degrees, and of what it recomputes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.job.frameworks import FrameworkProfile, RecomputeMode, load_framework
from planner.job.frameworks.techniques import Site

if TYPE_CHECKING:
    from constraints.condition import UserCondition
    from hardware.schema import Cluster
    from planner.job.specs import ModelSpec


def technique_conditions(
    profile: FrameworkProfile, names: Iterable[str]
) -> tuple[UserCondition, ...]:
    """What techniques that a plan must use demand of its degrees."""
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
    """Why a recompute mode does not go with techniques in use; None if it does."""
    for name in names:
        technique = profile.technique(name)
        if technique is None:
            continue
        both = [module.lower() for module in mode.modules if module in technique.refuses]
        if both:
            return (
                f"--with {name} and --recompute {mode.name}: {profile.name} does not recompute "
                f"{' or '.join(both)} beside it; leave one of them out"
            )
    return None


def site_of(profile: FrameworkProfile, model: ModelSpec, cluster: Cluster, *, inside: bool) -> Site:
    """Where a job trains, as techniques ask. `inside`: tensor parallelism stays inside a scale-up
    domain."""
    linked = cluster.scale_up_domain_gpus >= cluster.gpus_per_node
    linked = linked and cluster.gpu.traits.kernels_send
    split = profile.parallelism.sequence_parallel == "with-tp"
    separate = any(kind.attention == "none" for kind in model.kinds)
    altered = profile != load_framework(profile.name).in_mode(profile.mode)
    return Site(
        model.moe is not None,
        linked and split and inside,
        model.family,
        separate,
        altered,
        cluster.gpu.vendor,
    )


def kept_techniques(
    offered: FrameworkProfile, profile: FrameworkProfile, names: Iterable[str]
) -> tuple[str, ...]:
    """Techniques in use, in the order of the profile that `offered` them, once some have made it
    `profile`."""
    used = tuple(names)
    return tuple(
        one.name
        for one in offered.techniques
        if one.name in used and (one.profile or profile.technique(one.name) is not None)
    )


def refuses_offload(profile: FrameworkProfile, names: Iterable[str]) -> str:
    """The technique among some beside which no activations are offloaded; empty if none is."""
    found = (profile.technique(name) for name in names)
    return next((one.name for one in found if one and "OFFLOAD" in one.refuses), "")


def unrefused_modes(
    profile: FrameworkProfile, names: Iterable[str], modes: Iterable[RecomputeMode]
) -> tuple[RecomputeMode, ...]:
    """The modes that go with all techniques in use."""
    used = tuple(names)
    return tuple(mode for mode in modes if technique_refusal(profile, used, mode) is None)
