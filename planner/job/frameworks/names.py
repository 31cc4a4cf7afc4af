"""What people call frameworks: the one list of names that every command takes.

A name is a profile, a launch target, or a word for one of them. What a command needs of it, the
profile to cost with, the target that writes or the reader of its files, follows from it; where
there is none, the command says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.targets import TARGETS, Target
from planner.job.unmodelled import refuse_unmodelled

# Word -> the launch target or profile that it names.
ALIASES: Mapping[str, str] = {
    "megatron": "megatron-core",
    "megatron-lm": "megatron-core",
    "mcore": "megatron-core",
    "bridge": "megatron-bridge",
    "nemo": "megatron-bridge",
    "titan": "torchtitan",
    "torchtitan-0.3": "torchtitan",
    "fsdp": "hf-fsdp2",
    "fsdp2": "hf-fsdp2",
    "huggingface-accelerate": "accelerate",
    "hf-accelerate": "accelerate",
    "hf": "hf-transformers",
    "huggingface": "hf-transformers",
    "hf-trainer": "hf-transformers",
    "transformers": "hf-transformers",
    "trainer": "hf-transformers",
    "megatron-ds": "megatron-deepspeed",
    "ds": "deepspeed",
    "maxtext": "jax-xla",
    "paxml": "jax-xla",
    "jax": "jax-xla",
    "mosaicml": "llm-foundry",
    "composer": "llm-foundry",
}
# Profiles that nothing writes for, and whose files are read: of which family.
_ALSO_READ: Mapping[str, str] = {
    "megatron-deepspeed": "megatron",
    "megatron-lm-2022": "megatron",
    "primus": "megatron",
    "hf-transformers": "accelerate",
    "fsdp1": "accelerate",
}
PLAN_FILES = "plan"


@cache
def framework_names() -> tuple[str, ...]:
    """Names of the profiles that ship, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in files("planner.job.frameworks").iterdir()
            if entry.name.endswith(".toml")
        )
    )


@cache
def known_names() -> tuple[str, ...]:
    """Every name that a command takes: profiles, launch targets, and other words for them."""
    return tuple(dict.fromkeys((*framework_names(), *TARGETS, *ALIASES)))


def names_of(profile: str) -> tuple[str, ...]:
    """The other names of a profile."""
    return tuple(
        name for name in known_names() if name != profile and profile_named(name) == profile
    )


def canonical_name(name: str) -> str:
    """The launch target or profile that a name means: case and `_`/`-` ignored. UsageError."""
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted not in known_names():
        refuse_unmodelled(name, f"framework {name!r}")
        raise unknown_name("framework", name, known_names(), "list them with: planner frameworks")
    return ALIASES.get(wanted, wanted)


def profile_named(name: str) -> str:
    """The profile that plans of a framework are costed under. UsageError for an unknown name."""
    canonical = canonical_name(name)
    return TARGETS[canonical].profile if canonical in TARGETS else canonical


def target_named(name: str) -> Target:
    """The writer of a framework's launch files. UsageError where there is none."""
    canonical = canonical_name(name)
    target = TARGETS.get(canonical) or target_of_profile(canonical)
    if target is None:
        raise UsageError(
            f"nothing writes launch files for {_spoken(name, canonical)}: give --framework, one of "
            + ", ".join(TARGETS)
        )
    return target


def target_of_profile(profile: str) -> Target | None:
    """The usual writer of plans that are costed under a profile; None if there is none."""
    targets = (item for item in TARGETS.values() if profile in (item.profile, *item.variants))
    return next(targets, None)


def profile_on(profile: str, gpu: str, vendor: str) -> str:
    """The profile that a job of one takes on a vendor's GPUs: itself, or that of the framework in
    its place. UsageError where the framework has no release for them."""
    target = target_of_profile(profile)
    if target is None or not target.cuda or vendor != "amd":
        return profile
    if target.on_amd:
        return target.on_amd
    raise UsageError(
        f"--framework {profile} does not start on {gpu}: {target.cuda}; give --framework primus, "
        "torchtitan, deepspeed or accelerate  [framework-vendor]"
    )


def family_named(name: str) -> str:
    """The family of files that a framework is launched with. UsageError where none is read."""
    if name.strip().lower() == PLAN_FILES:
        return PLAN_FILES
    canonical = canonical_name(name)
    target = TARGETS.get(canonical) or target_of_profile(canonical)
    family = _ALSO_READ.get(canonical) or (target.family if target else None)
    if family is None:
        read = dict.fromkeys((*TARGETS, *_ALSO_READ))
        raise UsageError(
            f"files of {_spoken(name, canonical)} are not read; those of {', '.join(read)} are, "
            "and plan files (plan)"
        )
    return family


def _spoken(name: str, canonical: str) -> str:
    return canonical if name == canonical else f"{name} ({canonical})"
