"""Which framework a plan can be launched with: writer names, their modules, their profiles."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from planner.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from planner.job import Job
    from planner.launch.contract import Writer


@dataclass(frozen=True, slots=True)
class Target:
    """A writer: `module` below `planner.launch`, and the profile its plans are costed under.

    `variants`: other profiles of the same framework whose plans it writes as they are.
    """

    name: str
    module: str
    profile: str
    summary: str
    variants: tuple[str, ...] = ()

    @property
    def writer(self) -> Writer:
        """The module, imported now."""
        return cast("Writer", importlib.import_module(f"planner.launch.{self.module}"))


# The first with a profile is its usual one.
TARGETS = {
    own.name: own
    for own in (
        Target(
            "megatron-core", "megatron", "megatron-core", "Megatron-LM of core 0.19, flags",
            ("megatron-core-no-overlap", "megatron-local", "megatron-fsdp"),
        ),
        Target(
            "megatron-bridge", "megatron_bridge", "megatron-bridge",
            "Megatron-Bridge 0.6, recipe and overrides",
        ),
        Target("torchtitan", "torchtitan", "torchtitan", "torchtitan 0.3, Python configuration"),
        Target("torchtitan-0.2", "torchtitan_toml", "torchtitan", "torchtitan 0.2.2, TOML"),
        Target("deepspeed", "deepspeed", "deepspeed", "DeepSpeed JSON, Hugging Face Trainer"),
        Target("accelerate", "accelerate", "hf-fsdp2", "accelerate with FSDP2, YAML"),
        Target("nanotron", "nanotron", "nanotron", "nanotron, YAML"),
    )
}  # fmt: skip


def target_named(name: str) -> Target:
    """The writer that `--framework` names. UsageError with close matches."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in TARGETS:
        return TARGETS[wanted]
    known = ", ".join(TARGETS)
    found = _of_profile(wanted)
    if found is not None:
        return found
    raise unknown_name("framework to launch with", name, TARGETS, f"there are: {known}")


def target_of_profile(profile: str) -> Target:
    """The usual writer of plans costed under a profile. UsageError if there is none."""
    found = _of_profile(profile)
    if found is None:
        raise UsageError(
            f"plans costed for {profile} cannot be launched: give --framework, one of "
            + ", ".join(TARGETS)
        )
    return found


def demand_launchable(job: Job) -> None:
    """UsageError if the framework's writer could launch no plan of the job.

    A profile without a writer (`nanogpt`) is for its figures alone: nothing is demanded.
    """
    target = _of_profile(job.framework.name)
    refusals = () if target is None else target.writer.job_refusals(job)
    if target is None or not refusals:
        return
    lines = [f"no plan of this job could be launched with {target.name}:"]
    lines += [f"  - {own.reason} (nearest: {own.nearest})" for own in refusals]
    lines.append("planner evaluate and planner memory cost it all the same  [job-launchable]")
    raise UsageError("\n".join(lines))


def _of_profile(profile: str) -> Target | None:
    own = (target for target in TARGETS.values() if profile in (target.profile, *target.variants))
    return next(own, None)
