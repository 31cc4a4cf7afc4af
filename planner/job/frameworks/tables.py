"""Tables of a framework's profile whose settings `settings.toml` declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hardware.settings import Settings, declared

OptimizerKernel = Literal["foreach", "fused", "forloop"]


SETTINGS = "planner.job", "settings.toml"


@declared(*SETTINGS, "saved")
class SavedTensors(Settings):
    """Bytes per element of what autograd keeps, where frameworks differ.

    `*_families` name model families (`ModelSpec.family`) whose implementation there differs;
    `*` stands for all. Sizes called `*_per_*` say what they multiply.
    """

    if TYPE_CHECKING:
        fused_qkv_families: tuple[str, ...] = ()
        fused_gate_up_families: tuple[str, ...] = ()
        rotary_concat_families: tuple[str, ...] = ()
        shared_experts_share_input: bool = False
        batched_products_copy: bool = False
        dropout: bool = False


@declared(*SETTINGS, "state")
class TrainingState(Settings):
    """Bytes per parameter of weights and gradients under mixed precision."""


@declared(*SETTINGS, "overlap")
class Overlap(Settings):
    """What the framework hides: shares of a collective that may run beside compute."""


@declared(*SETTINGS, "kernels")
class Kernels(Settings):
    """How the framework issues work."""

    if TYPE_CHECKING:
        dispatcher: str = ""
        captured: bool = False
        quantises_linears: bool = False
        quantises_experts: bool = False


@declared(*SETTINGS, "outside")
class Outside(Settings):
    """Memory outside live tensors; each with its evidence in the framework's file."""


@declared(*SETTINGS, "full_memory")
class FullMemorySettings(Settings):
    """What runs did whose allocator had next to nothing left
    (`planner.predict.uncertainty.full_memory`)."""

    if TYPE_CHECKING:
        allocator: str = ""


@declared(*SETTINGS, "activation_offload")
class ActivationOffload(Settings):
    """Activations that leave the GPU between forward and backward."""

    if TYPE_CHECKING:
        modules: tuple[str, ...] = ()
        refusal: str = ""
        flags: str = ""
        fraction_flags: str = ""
        searched: tuple[tuple[str, ...], ...] = ()
        recompute: Literal["selective", "full"] = "selective"
        precisions: tuple[str, ...] = ()
        low_precision_modules: tuple[str, ...] = ()


@declared(*SETTINGS, "optimizer")
class OptimizerRules(Settings):
    """Which optimizers the framework runs, with which kernels, and what it moves to the CPU."""

    if TYPE_CHECKING:
        families: tuple[str, ...] = ()
        state_types: Literal["plain", "moments", "all"] = "plain"
        type_flags: tuple[tuple[str, str], ...] = ()
        kernels: tuple[OptimizerKernel, ...] = ("fused",)
        offload: Literal["none", "share", "whole"] = "none"
        offload_flags: str = ""
        offload_gradients: bool = False
        offload_parameters: bool = False
        offload_least_zero: int = 0
        offload_part_least_zero: int = 0
        state_types_least_zero: int = 0
