"""What single settings change in a framework's profile: overlap left out, gradients in bf16, …

A profile describes the framework as its users launch it; a file that says otherwise brings
variations, each a change of the profile's tables. Those that published runs state as well are
shared with `planner.evidence.runs.software`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from planner.job.frameworks import FrameworkProfile, load_framework
from planner.job.frameworks.execution import Overlap
from planner.job.frameworks.switches import NO_SEQUENCE_PARALLEL, Tables, with_tables


@dataclass(frozen=True, slots=True)
class Variation:
    """`words`: what the setting does; `tables`: what it changes in the profile."""

    words: str
    tables: Tables


_VARIATIONS: Mapping[str, Variation] = {
    "no-sequence-parallel": Variation(
        "tensor parallelism without sequence parallelism",
        NO_SEQUENCE_PARALLEL,
    ),
    "gradient-reduction-exposed": Variation(
        "gradient reduction after backward instead of beside it",
        {"overlap": {"gradient_reduction": 0.0}},
    ),
    "parameter-gather-exposed": Variation(
        "parameter gather before forward instead of beside it",
        {"overlap": {"parameter_gather": 0.0}},
    ),
    "pipeline-exposed": Variation(
        "pipeline exchanges not overlapped", {"overlap": {"pipeline": 0.0}}
    ),
    "prefetch-exposed": Variation(
        "weight gathers not prefetched", {"overlap": {"fsdp_prefetch": 0.0}}
    ),
    "tensor-exposed": Variation(
        "tensor-parallel exchanges of backward not overlapped",
        {"overlap": {"tensor_backward": 0.0}},
    ),
    # The gradient is read in bf16, its fp32 sum read and written (frameworks/
    # megatron-core-no-overlap.toml).
    "unfused-accumulation": Variation(
        "weight gradients added by kernels of their own",
        {"kernels": {"accumulation_traffic_bytes": 10.0}},
    ),
    # FSDP2 shards what the model has, and torch's AdamW makes its state like that.
    "bf16-parameters": Variation(
        "parameters, gradients and optimizer state in bf16, without fp32 copies",
        {
            "state": {
                "master_bytes": 0.0,
                "zero3_keeps_weight_shard": True,
                "gradient_bytes": 2.0,
                "optimizer_state_element_bytes": 2.0,
            }
        },
    ),
    "bf16-reduction": Variation(
        "gradients reduced in bf16", {"kernels": {"gradient_communication_bytes": 2.0}}
    ),
    "bf16-gradients": Variation(
        "gradients kept and reduced in bf16",
        {"state": {"gradient_bytes": 2.0}, "kernels": {"gradient_communication_bytes": 2.0}},
    ),
}
# Name here -> the variant of measured runs that is the same mechanism.
_SHARED: Mapping[str, tuple[str, str]] = {
    "cuda-graphs": ("CUDA graphs", "kernels issued as CUDA graphs"),
    "fused-dispatch": ("fused dispatch", "experts' exchange fused with permutation"),
    "fused-cross-entropy": ("fused cross-entropy", "cross-entropy fused by torch's compiler"),
    "fused-linear-loss": ("fused linear cross-entropy", "head and loss in one kernel (Liger)"),
    "deterministic": ("deterministic", "deterministic mode"),
    "sequential-experts": ("sequential experts", "experts issued one by one, not grouped"),
    "eager-blocks": ("eager blocks", "blocks run without torch.compile"),
    "uncompiled-loss": ("uncompiled loss", "loss in plain torch, on fp32 copies of the logits"),
}


def variation(name: str, profile: str) -> Variation:
    """A variation by name, for a profile: of a technique that the profile offers only the words,
    for the request has it itself. KeyError for a name that no reader gives."""
    technique = load_framework(profile).technique(name.removeprefix("no-"))
    if technique is not None:
        without = "without: " if name.startswith("no-") else ""
        return Variation(f"{name.removeprefix('no-')}: {without}{technique.words}", {})
    if name in _SHARED:
        from planner.evidence.runs.software import tables_of

        variant, words = _SHARED[name]
        return Variation(words, tables_of(variant, profile))
    if name not in _VARIATIONS and (
        technique := load_framework("megatron-core").technique(name.removeprefix("no-"))
    ):
        # A profile of the same family that lacks it: Primus, Megatron-FSDP.
        return Variation(f"{technique.words}: not counted on under {profile}", {})
    return _VARIATIONS[name]


@cache
def varied_framework(name: str, variations: Sequence[str]) -> FrameworkProfile:
    """The profile with variations applied; one object for equal arguments."""
    profile = load_framework(name)
    for one_variation in variations:
        profile = with_tables(profile, variation(one_variation, name).tables)
    return profile


def nothing_overlapped(profile: FrameworkProfile) -> FrameworkProfile:
    """The profile with every collective exposed."""
    shares = {name: 0.0 for name in Overlap.model_fields if name != "contention"}
    return with_tables(profile, {"overlap": shares})
