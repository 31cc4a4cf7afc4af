"""What a person changes of how a framework trains, one option each: a profile with it in place; and
what techniques of the framework demand of a plan.

The options are torch's and Megatron's own switches, so each says which tables of the profile it
is; readers of launch files use the same tables (`planner.launch.check.request`). The switches of a
cluster's network are among them: whether they reduce for a framework (SHARP).
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
# DistributedDataParallel). DDP divides nothing: ZeRO-0.
BUCKET_VIEW: Tables = {
    "state": {"ddp_bucket_copies": 0.0, "persistent_gradients": True},
    "parallelism": {"zero_stages": (0,)},
}
# Gradients are zeroed in place and never freed (torch, Optimizer.zero_grad).
KEPT_GRADIENTS: Tables = {"state": {"persistent_gradients": True}}


@dataclass(frozen=True, slots=True)
class Switches:
    """Options of a job that change its framework's profile; each as the framework has it unless
    given."""

    sequence_parallel: bool = True
    gradient_as_bucket_view: bool = False
    set_to_none: bool = True


@cache
def switched(profile: FrameworkProfile, switches: Switches, world: int) -> FrameworkProfile:
    """The profile as the options change it, for a job of `world` GPUs; one object for equal
    arguments. UsageError for an option that the framework has not."""
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
    """Whether a profile is already as a technique makes it."""
    return with_tables(profile, technique.changes(used=True)) == profile


@cache
def with_techniques(
    profile: FrameworkProfile, used: tuple[str, ...], unused: tuple[str, ...] = ()
) -> FrameworkProfile:
    """The profile with some of its techniques, and without others; one object for equal
    arguments."""
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
    """The profile without assumptions that no longer hold."""
    kept = tuple(text for text in profile.assumptions if text not in ended)
    return profile.model_copy(update={"assumptions": kept})


def _noted(profile: FrameworkProfile, note: str) -> FrameworkProfile:
    """The profile, saying beside its answers what was switched."""
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
            "option out or give more GPUs"
        )


def _demand_freed_gradients(profile: FrameworkProfile) -> None:
    state = profile.state
    if state.gradients_at_backward or (state.persistent_gradients and state.ddp_bucket_copies == 0):
        raise UsageError(
            f"--no-set-to-none: gradients of {profile.name} lie in buffers that live for all "
            "steps anyway; leave the option out"
        )


def _has_ddp(profile: FrameworkProfile) -> bool:
    return profile.state.ddp_bucket_copies > 0 and 0 in profile.parallelism.zero_stages


def framework_sharp(cluster: Cluster, profile: FrameworkProfile, asked: bool) -> Cluster:
    """The cluster with what its switches do for a framework.

    `asked`: the user wants SHARP (`--sharp`); then UsageError or HardwareError say why it cannot
    be. A cluster that has it, under a framework that cannot name a communicator, goes without.
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


def site_of(
    profile: FrameworkProfile, model: ModelSpec, cluster: Cluster, *, inside: bool,
    tuning: Tuning = FULL, samples: Samples = _ONE_TEXT,
) -> Site:  # fmt: skip
    """Where a job trains, as techniques ask. `inside`: tensor parallelism stays inside a scale-up
    domain."""
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
