"""The profile of a training framework: the plans it can express, the tensors it keeps for backward,
and the communication it overlaps.

Each framework has one TOML file in this folder; this module defines its type. A *mechanism* (which
copy a norm keeps, which collective hides behind what) belongs here; a *rate* belongs in
`hardware/efficiency`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from constraints.numbers import Capabilities
from hardware.curves import AttentionKernel
from hardware.errors import HardwareError
from hardware.facts import ArchitectureName
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from hardware.schema import Gpu
from hardware.settings import pairs
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.demands import Demand
from planner.job.frameworks.names import framework_names, profile_named
from planner.job.frameworks.tables import (
    ActivationOffload,
    AdapterRules,
    FullMemorySettings,
    Kernels,
    OptimizerRules,
    Outside,
    Overlap,
    SavedTensors,
    TrainingState,
)
from planner.job.frameworks.techniques import Technique, Techniques
from planner.job.objective import ObjectiveKind
from planner.job.recompute import RecomputeForms, RecomputeMode, read_mode
from planner.job.unmodelled import refuse_unmodelled

# Precisions of products that also mean fp32 weights, gradients and activations: products in fp32,
# or in TF32 if torch allows it (torch.backends.cuda.matmul.allow_tf32).
FP32_PRECISIONS = ("fp32", "tf32")
# Name of a profile's table -> values in it.
Tables = Mapping[str, Mapping[str, Any]]

Changes = Annotated[tuple[tuple[str, bool | float], ...], BeforeValidator(pairs)]


DtypeModeName = Literal["bf16", "amp", "fp32"]


class _Mode(Frozen):
    saved: Changes = ()
    state: Changes = ()
    kernels: Changes = ()


class DtypeMode(_Mode):
    """Changes that a dtype mode makes to the tables `saved`, `state` and `kernels`."""

    name: Literal["amp", "fp32"]


class FamilyRule(Frozen):
    """Changes to the table `saved` for some model families, in one dtype mode or in all."""

    names: tuple[str, ...]
    modes: tuple[DtypeModeName, ...] = ("bf16", "amp", "fp32")
    saved: Changes


class PrecisionMode(_Mode):
    """Changes that linear layers in fp8 or fp4 make to the tables `saved`, `state` and `kernels`.

    Transformer Engine keeps the quantised input of each product instead of the 16-bit one, and may
    keep the weights quantised too.
    """

    precisions: tuple[str, ...]


class OlderGpus(_Mode):
    """Changes to the tables `saved`, `state` and `kernels` on GPUs before Ampere."""


class UnmodelledSaving(Frozen):
    """A memory saving of the framework that is not modelled. `terms`: terms of a stage's memory
    (`planner.predict.plan.StageMemory`) that it may remove."""

    words: str
    terms: tuple[Literal["weights", "gradients", "optimizer", "gather_buffers"], ...]


class FusedAttention(Frozen, extra="allow"):
    """Fused attention kernel by GPU architecture, with a field for each architecture that needs
    one.

    `auto` is the vendor's own kernel, as on every architecture that is not named. Transformer
    Engine ships the vendor's (cuDNN, AITER); torch and flash-attn use FlashAttention-2; torch on
    AMD calls the vendor's since 2.9 (AOTriton's before). `special`: replaces cuDNN's for latent
    attention, windows and sinks (`ModelSpec.special_attention`).
    """

    __pydantic_extra__: dict[ArchitectureName, AttentionKernel | Literal["auto"]]
    special: AttentionKernel | Literal["auto"] = "auto"

    def on(self, architecture: str, *, special: bool) -> str:
        """The kernel on an architecture, for a model with or without special attention."""
        usual = str(getattr(self, architecture, "auto"))
        replaced = special and self.special != "auto" and usual == "flash3_or_cudnn"
        return self.special if replaced else usual


class TowerRules(Frozen):
    """Where the framework places a vision tower with its projector, by image rule
    (`planner/job/images.toml`).

    `first_stage`: on the first pipeline stage with the embeddings, not among the layers. There,
    towers in `copied` are complete on every tensor-parallel rank and ignore context parallelism,
    and those in `recomputed` recompute like the language model. `among`: towers that the framework
    does not support, which are planned among the layers.
    """

    first_stage: bool = False
    copied: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    among: tuple[str, ...] = ()

    def place(self, rule: str) -> Literal["layers", "split", "copied"]:
        """The place of a tower with this image rule (`planner.job.vision.VisionSpec.place`)."""
        if not self.first_stage or rule in self.among:
            return "layers"
        return "copied" if rule in self.copied else "split"


class Launched(Frozen):
    """The program that writes a framework's launch files, and the GPUs that it supports."""

    target: str = ""
    """The launch target that writes the framework's plans; empty if there is none."""
    cuda: str = ""
    """Why the release that it writes for starts only on NVIDIA's GPUs; empty if it also runs on
    AMD's too."""
    on_amd: str = ""
    """The profile that replaces this one on AMD's GPUs; empty if there is none."""


class FrameworkProfile(Frozen):
    """One framework at one version."""

    name: str
    # The profile at the root of the `extends` chain. All versions of a framework share its error
    # bars.
    family: str = ""
    version: str
    summary: str
    # Alternative names.
    names: tuple[str, ...] = ()
    launch: Launched = Launched()
    # Whether people would start a run with it today. Other profiles only explain published runs.
    listed: bool = True
    sources: tuple[str, ...]
    precisions: tuple[str, ...]
    attention: Literal["flash", "eager"] = "flash"
    fused_attention: FusedAttention = FusedAttention()
    parallelism: Capabilities
    saved: SavedTensors = SavedTensors()
    state: TrainingState = TrainingState()
    overlap: Overlap = Overlap()
    kernels: Kernels = Kernels()
    outside: Outside = Outside()
    full_memory: FullMemorySettings = FullMemorySettings()
    recompute: tuple[RecomputeMode, ...]
    recomputing: RecomputeForms = RecomputeForms()
    optimizer: OptimizerRules = OptimizerRules()
    adapters: AdapterRules = AdapterRules()
    towers: TowerRules = TowerRules()
    activation_offload: ActivationOffload = ActivationOffload()
    techniques: Techniques = ()
    # Dtype modes besides `bf16`, which the tables above describe; and the mode they are in now.
    modes: tuple[DtypeMode, ...] = ()
    mode: DtypeModeName = "bf16"
    # Model families whose implementation keeps other tensors. Later rules override earlier ones.
    families: tuple[FamilyRule, ...] = ()
    # Multi-token prediction: only on request (Megatron's --mtp-num-layers and torchtitan's
    # num_mtp_layers default to none), as the model has it, or not at all.
    mtp: Literal["asked", "model", "never"] = "asked"
    # Objectives besides next-token prediction that it supports, and the input of their losses: each
    # token's cross-entropy as in pretraining, or all logits in fp32 or 16 bits.
    objectives: tuple[ObjectiveKind, ...] = ()
    loss_logits: Literal["tokens", "fp32", "half"] = "tokens"
    # Objectives among these that it supports only with adapters.
    adapter_objectives: tuple[ObjectiveKind, ...] = ()
    # Tokens per chunk of Mamba-2's scans, if the framework sets its own; 0 for the model's.
    scan_chunk: int = 0
    # Effects of fp8 and fp4. A precision that is not listed changes no tensor.
    low_precision: tuple[PrecisionMode, ...] = ()
    # The default dtype mode.
    usual_mode: DtypeModeName = "bf16"
    # Changes on GPUs before Ampere, where one of its kernels does not run.
    before_ampere: OlderGpus | None = None
    assumptions: tuple[str, ...] = ()
    unmodelled_savings: tuple[UnmodelledSaving, ...] = ()
    # Conditions on the degrees for some models and kinds of training.
    demands: tuple[Demand, ...] = ()

    def in_mode(self, name: str) -> FrameworkProfile:
        """The profile in a dtype mode: `bf16` (16-bit weights), `amp` (autocast over fp32 weights)
        or `fp32`. With `bf16`, or the mode that it is already in, the profile is returned
        unchanged, including the changes that techniques made. UsageError lists the framework's
        modes."""
        if name in ("bf16", self.mode):
            return self
        for mode in self.modes:
            if mode.name == name:
                return _with_mode(self, mode)
        known = ["bf16", *(mode.name for mode in self.modes)]
        raise unknown_name("dtype mode", name, known, f"{self.name} has: {', '.join(known)}")

    def saved_of(self, family: str) -> SavedTensors:
        """Sizes of the tensors kept for backward in a model family, in the profile's dtype mode."""
        return _saved_of(self, family)

    def in_precision(self, name: str) -> FrameworkProfile:
        """The profile as it trains linear layers in precision `name`."""
        for mode in self.low_precision:
            if name in mode.precisions:
                return _with_mode(self, mode)
        return self

    def usual_etp(self, *, experts: bool, tp: int, ep: int) -> int:
        """Default tensor parallelism of experts. Megatron uses that of the other layers
        (parallel_state.py, `expert_tensor_parallel_size is None`). Frameworks without a separate
        degree keep experts whole under expert parallelism and split them like other layers
        otherwise."""
        if not experts:
            return 1
        return tp if self.parallelism.expert_tensor or ep == 1 else 1

    def technique(self, name: str) -> Technique | None:
        """The technique of that name; None if the framework has no such technique."""
        return next((one for one in self.techniques if one.name == name), None)

    def recompute_mode(self, name: str) -> RecomputeMode:
        """The mode that `name` spells (`planner.job.recompute.read_mode`). Raises UsageError."""
        return read_mode(name, self.name, self.recompute, self.recomputing)


@cache
def _saved_of(profile: FrameworkProfile, family: str) -> SavedTensors:
    changes: dict[str, object] = {}
    for rule in profile.families:
        if family in rule.names and profile.mode in rule.modes:
            changes |= dict(rule.saved)
    return with_tables(profile, {"saved": changes}).saved


@cache
def _with_mode(profile: FrameworkProfile, mode: DtypeMode | PrecisionMode) -> FrameworkProfile:
    tables = {name: dict(getattr(mode, name)) for name in ("saved", "state", "kernels")}
    changed = with_tables(profile, tables)
    if isinstance(mode, PrecisionMode):
        return changed
    return changed.model_copy(update={"mode": mode.name})


def with_tables(profile: FrameworkProfile, tables: Tables) -> FrameworkProfile:
    """The profile with some values of its tables replaced, validated again."""
    changed = {}
    for name, values in tables.items():
        if values:
            table = getattr(profile, name)
            changed[name] = type(table).model_validate(dict(table) | dict(values))
    return profile.model_copy(update=changed)


_BEFORE_AMPERE = ("volta", "turing")


def on_gpu(profile: FrameworkProfile, architecture: str) -> FrameworkProfile:
    """The profile on GPUs of an architecture."""
    older = profile.before_ampere if architecture in _BEFORE_AMPERE else None
    if older is None:
        return profile
    changes = {"saved": older.saved, "state": older.state, "kernels": older.kernels}
    return with_tables(profile, {name: dict(table) for name, table in changes.items()})


def check_precision(profile: FrameworkProfile, precision: str) -> None:
    """Raise UsageError if the framework does not train in a precision; names those it supports."""
    if precision in profile.precisions:
        return
    refuse_unmodelled(precision, f"precision {precision!r}")
    others = frameworks_with(lambda other: precision in other.precisions)
    raise UsageError(
        f"precision {precision!r}: {profile.name} trains in {', '.join(profile.precisions)}; "
        f"give --precision {profile.precisions[0]}"
        + (f", or a framework with {precision}: {', '.join(others)}" if others else "")
    )


def demand_arithmetic(profile: FrameworkProfile, gpu: Gpu, precision: str) -> None:
    """Raise HardwareError if a GPU does not compute in a precision; names the first one that both
    GPU and framework support."""
    try:
        gpu.peak(precision)
    except HardwareError as error:
        shared = (one for one in _PRECISIONS if one in profile.precisions)
        fits = next((one for one in shared if one in gpu.peak_flop_per_s), None)
        having = frameworks_with(lambda one: one.listed and "fp16" in one.precisions)
        fix = f"--precision {fits}" if fits else f"a framework with fp16: {', '.join(having)}"
        raise HardwareError(f"{error}; give {fix}") from None


# The most common precision first.
_PRECISIONS = ("bf16", "fp16", "fp32")


def frameworks_with(has: Callable[[FrameworkProfile], object]) -> tuple[str, ...]:
    """Names of the frameworks for which `has` is true."""
    return tuple(name for name in framework_names() if has(load_framework(name)))


@cache
def load_framework(name: str) -> FrameworkProfile:
    """Profile by any of its names. UsageError shows close matches."""
    wanted = profile_named(name)
    try:
        profile = FrameworkProfile.model_validate(_table(wanted))
    except ValidationError as error:
        raise UsageError(f"frameworks/{wanted}.toml: {error}") from error
    modes = (
        mode.model_copy(update={"flags": mode.flags or profile.recomputing.flags_of(mode.modules)})
        for mode in profile.recompute
    )
    return profile.model_copy(update={"recompute": tuple(modes)})


def _table(name: str) -> dict[str, Any]:
    """A framework's TOML file merged over the file it `extends`: tables merge, other values are
    replaced, and techniques that it `lacks` are removed (`*`: all)."""
    loads = shipped_toml("planner.job.frameworks", f"{name}.toml")
    parent = loads.pop("extends", None)
    if parent is None:
        return loads | {"family": name}
    merged = _table(parent) | {"names": ()}
    for technique in loads.pop("lacks", ()):
        left = {} if technique == "*" else merged["techniques"]
        merged["techniques"] = {name: one for name, one in left.items() if name != technique}
    for key, value in loads.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A table with changes applied; nested tables, such as techniques, are merged too."""
    nested = {
        key: _merged(table[key], value)
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(table.get(key), dict)
    }
    return table | changes | nested


def profile_on(profile: FrameworkProfile, gpu: str, vendor: str) -> FrameworkProfile:
    """The profile that a job uses on a vendor's GPUs: this one, or the one that replaces it there.
    UsageError if the framework has no release for them."""
    launch = profile.launch
    if not (launch.target and launch.cuda and vendor == "amd"):
        return profile
    if launch.on_amd:
        return load_framework(launch.on_amd)
    others = map(load_framework, framework_names())
    fits = (
        one.launch.on_amd or one.name
        for one in others
        if one.listed and one.launch.target and (one.launch.on_amd or not one.launch.cuda)
    )
    raise UsageError(
        f"--framework {profile.name} does not start on {gpu}: {launch.cuda}; give --framework "
        f"{' or '.join(dict.fromkeys(fits))}  [framework-vendor]"
    )
