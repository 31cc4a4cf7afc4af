"""What plans are launched with: names, the modules that write for them, their profiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A writer: `module` below `planner.launch`, and the profile its plans are costed under.

    `variants`: other profiles of the same framework whose plans it writes as they are. `cuda`: why
    the release that it writes for starts on NVIDIA's GPUs alone; empty where it runs on AMD's too.
    `on_amd`: the profile of the framework that takes its place there.
    """

    name: str
    module: str
    profile: str
    summary: str
    variants: tuple[str, ...] = ()
    cuda: str = ""
    on_amd: str = ""

    @property
    def family(self) -> str:
        """That of its files, as the readers of `planner.launch.read` call it: the first word of
        the module that writes them."""
        return self.module.partition("_")[0]


# AMD-AGI/Primus, third_party/Megatron-LM in August 2026.
_MEGATRON_ON_AMD = (
    "this release needs NVIDIA's Transformer Engine; on AMD GPUs Megatron runs in AMD's Primus, "
    "which pins Megatron-LM of core 0.16, and launch has no writer for Primus"
)
# The first with a profile is its usual one.
TARGETS = {
    item.name: item
    for item in (
        Target(
            "megatron-core", "megatron", "megatron-core", "Megatron-LM of core 0.19, flags",
            ("megatron-core-no-overlap", "megatron-local", "megatron-fsdp"),
            _MEGATRON_ON_AMD, "primus",
        ),
        Target(
            "megatron-bridge", "megatron_bridge", "megatron-bridge",
            "Megatron-Bridge 0.6, recipe and overrides", cuda=_MEGATRON_ON_AMD,
        ),
        Target("torchtitan", "torchtitan", "torchtitan", "torchtitan 0.3, Python configuration"),
        Target("deepspeed", "deepspeed", "deepspeed", "DeepSpeed JSON, Hugging Face Trainer"),
        Target("accelerate", "accelerate", "hf-fsdp2", "accelerate with FSDP2, YAML"),
        Target(
            "nanotron", "nanotron", "nanotron", "nanotron, YAML",
            cuda="nanotron has no release for ROCm",
        ),
    )
}  # fmt: skip


def targets_by_profile() -> dict[str, list[str]]:
    """Names of the writers for each profile's plans."""
    found: dict[str, list[str]] = {}
    for target in TARGETS.values():
        for profile in (target.profile, *target.variants):
            found.setdefault(profile, []).append(target.name)
    return found
