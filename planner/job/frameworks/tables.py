"""Tables of a framework's profile, whose settings `settings.toml` declares with type, unit,
default, meaning and source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hardware.settings import Settings, declarations, declared

OptimizerKernel = Literal["foreach", "fused", "forloop"]


SETTINGS = "planner.job", "settings.toml"


@declared(*SETTINGS, "saved")
class SavedTensors(Settings):
    """Bytes per element of tensors that autograd keeps, as far as frameworks differ.

    `*_families` name model families (`ModelSpec.family`) whose implementation differs; `*` stands
    for all. Names with `*_per_*` say what they multiply.
    """

    if TYPE_CHECKING:
        fused_qkv_families: tuple[str, ...] = ()
        fused_gate_up_families: tuple[str, ...] = ()
        rotary_concat_families: tuple[str, ...] = ()
        shared_experts_share_input: bool = False
        batched_products_copy: bool = False
        dropout: bool = False
        softmax_in_operators: bool = False


@declared(*SETTINGS, "state")
class TrainingState(Settings):
    """Bytes per parameter of weights and gradients under mixed precision."""

    if TYPE_CHECKING:
        weights_home: Literal["gpu", "host", "nvme"] = "gpu"
        states_home: Literal["host", "nvme"] = "host"


@declared(*SETTINGS, "adapters")
class AdapterRules(Settings):
    """The adapters that the framework can train, and how it stores them and the frozen weights."""

    if TYPE_CHECKING:
        methods: tuple[str, ...] = ()
        bases: tuple[str, ...] = ()
        weight_type: Literal["fp32", "bf16", "fp16", "framework"] = "framework"
        upcasts_norms: bool = False
        upcasts_tables: bool = False
        fused_targets: bool = False
        fused_kernels: bool = False
        quantised_experts: bool = False
        merges_tensors: bool = False
        shares_expert_adapters: bool = False
        quantised_tensor: bool = False
        hooks_inputs: bool = False


@declared(*SETTINGS, "overlap")
class Overlap(Settings):
    """Shares of each collective that the framework can overlap with compute."""


@declared(*SETTINGS, "kernels")
class Kernels(Settings):
    """How the framework launches kernels."""

    if TYPE_CHECKING:
        dispatcher: str = ""
        captured: bool = False
        quantises_linears: bool = False
        quantises_experts: bool = False


@declared(*SETTINGS, "outside")
class Outside(Settings):
    """Memory besides live tensors; the framework's file has the evidence for each."""


@declared(*SETTINGS, "full_memory")
class FullMemorySettings(Settings):
    """Behaviour of runs whose allocator had almost no memory left
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
    """The optimizers that the framework runs, their kernels, and what it can move to the CPU."""

    if TYPE_CHECKING:
        families: tuple[str, ...] = ()
        state_types: Literal["plain", "moments", "all"] = "plain"
        type_flags: tuple[tuple[str, str], ...] = ()
        kernels: tuple[OptimizerKernel, ...] = ("fused",)
        paged: bool = False
        offload: Literal["none", "share", "whole"] = "none"
        offload_flags: str = ""
        offload_gradients: bool = False
        offload_parameters: bool = False
        offload_least_zero: int = 0
        offload_part_least_zero: int = 0
        state_types_least_zero: int = 0


_CAPABILITIES = "constraints", "capabilities.toml"
# Tables of a framework's file that hold settings, in display order.
TABLES = {
    "parallelism": "Parallelism",
    "saved": "Bytes per element kept for backward",
    "state": "Weights, gradients and optimizer",
    "optimizer": "Optimizers: families (none: any), types, kernels, offload",
    "adapters": "Adapters beside frozen weights",
    "activation_offload": "Activations on the host",
    "recomputing": "Further forms of recomputation",
    "kernels": "How work is issued",
    "overlap": "Share of traffic that may hide behind compute",
    "outside": "Memory outside tensors",
    "full_memory": "Runs near full memory",
}


class DeclaredSetting(NamedTuple):
    """One declared setting. `default` is None if a file must give the value, or if None is the
    default."""

    table: str
    name: str
    type: str
    unit: str
    default: Any
    meaning: str
    source: str


@cache
def settings_of(table: str) -> tuple[DeclaredSetting, ...]:
    """The settings of one of TABLES, in order of declaration."""
    file = _CAPABILITIES if table == "parallelism" else SETTINGS
    rows = declarations(*file)[table].items()
    return tuple(_declared(table, name, row) for name, row in rows)


def _declared(table: str, name: str, row: Mapping[str, Any]) -> DeclaredSetting:
    unit = row.get("unit", "1" if row["type"].startswith(("number", "integer")) else "")
    default, source = row.get("default"), row.get("source", "")
    return DeclaredSetting(table, name, row["type"], unit, default, row["meaning"], source)
