"""Optimizers: what each stores per parameter, how it is spelled, and which frameworks run it.

`adamw`, `muon`, ... are entries of `optimizers.toml`. `adamw:exp_avg=fp8,master=fp16` changes the
types of its states, of the master weights and of the gradients. Each refusal names its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import Field

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks.profile import FrameworkProfile, frameworks_with
from planner.job.frameworks.tables import OptimizerKernel

# Bytes of an element; quantised types add one fp32 scale per block.
ELEMENT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "none": 0.0,
}
_QUANTISED = ("int8", "int4")
_SCALE_BYTES = 4.0
# Types that a user may write for a state, the master weights and the gradients: those of
# Megatron-LM's --exp-avg-dtype, --main-params-dtype and --main-grads-dtype.
_STATE_TYPES = ("fp32", "bf16", "fp16", "fp8")
_MASTER_TYPES = ("fp32", "fp16")
_GRADIENT_TYPES = ("fp32", "bf16")
# AdamW's two fp32 moments, for the parameters that Muon does not handle.
ADAMW_STATE_BYTES = 8.0


class Optimizer(Named):
    """One optimizer with its settings; see `optimizers.toml`.

    `states`: type of each state tensor. `master`, `gradient`: types of master weights and
    gradients; None for the framework's default. `name`: as the user spelled it. `scope`: a row of
    `planner.predict.optimizer_terms.UPDATES`. `paged`: states are in unified memory.
    """

    name: str
    summary: str
    family: str
    states: tuple[tuple[str, str], ...]
    block: int = Field(default=1, ge=1)
    scope: str = "all"
    optional: tuple[str, ...] = ()
    extra_traffic_bytes: float = Field(default=0.0, ge=0)
    paged: bool = False
    master: str | None = None
    gradient: str | None = None
    source: str
    aliases: tuple[str, ...] = ()

    @property
    def state_bytes(self) -> float:
        """Bytes of state per parameter in its scope, without the master weight."""
        return sum(self._bytes(dtype) for _, dtype in self.states)

    @property
    def traffic_bytes(self) -> float:
        """Bytes of state per parameter that a step reads and writes."""
        return 2.0 * self.state_bytes + self.extra_traffic_bytes

    @property
    def master_bytes(self) -> float | None:
        """Bytes of a master weight; None for the framework's default."""
        return None if self.master is None else ELEMENT_BYTES[self.master]

    @property
    def gradient_bytes(self) -> float | None:
        """Bytes of a gradient; None for the framework's default."""
        return None if self.gradient is None else ELEMENT_BYTES[self.gradient]

    @property
    def is_plain(self) -> bool:
        """Whether all types are the defaults: fp32 states (or the optimizer's own quantised ones),
        and the framework's own master weights and gradients."""
        item = self.master is None and self.gradient is None
        return item and all(dtype in ("fp32", *_QUANTISED) for _, dtype in self.states)

    @property
    def follows_weights(self) -> bool:
        """Whether torch creates the states in the type of the weights: AdamW with default
        settings."""
        return self.name == "adamw"

    def _bytes(self, dtype: str) -> float:
        scale = _SCALE_BYTES / self.block if dtype in _QUANTISED else 0.0
        return ELEMENT_BYTES[dtype] + scale


@cache
def _catalogue() -> dict[str, Optimizer]:
    return {
        name: Optimizer(name=name, **entry | {"states": tuple(entry["states"].items())})
        for name, entry in shipped_toml("planner.job", "optimizers.toml").items()
    }


@cache
def _aliases() -> dict[str, str]:
    """Alternative name -> catalogue name."""
    return {alias: name for name, one in _catalogue().items() for alias in one.aliases}


def optimizer_names() -> tuple[str, ...]:
    """Names in the catalogue, the default first."""
    return tuple(_catalogue())


def load_optimizer(spelling: str) -> Optimizer:
    """The optimizer that a text describes: `NAME` or `NAME:KEY=TYPE,...`.

    Keys: the names of its states, `master`, `grad`. UsageError lists what is possible.
    """
    name, colon, changes = spelling.strip().lower().partition(":")
    base = _base(name.strip().replace("_", "-"), spelling)
    if not colon:
        return base
    return _changed(base, changes, spelling)


def _base(wanted: str, spelling: str) -> Optimizer:
    catalogue = _catalogue()
    wanted = _aliases().get(wanted, wanted)
    if wanted not in catalogue:
        raise unknown_name("optimizer", spelling, catalogue, "known: " + ", ".join(catalogue))
    return catalogue[wanted]


def _changed(base: Optimizer, changes: str, spelling: str) -> Optimizer:
    states = dict(base.states)
    others: dict[str, str] = {}
    for item in changes.split(","):
        key, equals, dtype = (part.strip() for part in item.partition("="))
        allowed = _allowed(base, key)
        if not allowed or not equals or dtype not in allowed:
            raise UsageError(_cannot_read(base, spelling, item.strip()))
        (states if key in states else others)[key] = dtype
    known = dict(base.states)
    written = [f"{k}={v}" for k, v in (*states.items(), *others.items()) if known.get(k) != v]
    return base.model_copy(
        update={
            "name": base.name + (":" + ",".join(written) if written else ""),
            "states": tuple(states.items()),
            "master": others.get("master"),
            "gradient": others.get("grad"),
        }
    )


def _allowed(base: Optimizer, key: str) -> tuple[str, ...]:
    """Types that a key may take; empty if there is no such key."""
    types = {"master": _MASTER_TYPES, "grad": _GRADIENT_TYPES}
    quantised = any(dtype in _QUANTISED for _, dtype in base.states)
    if key in dict(base.states) and not quantised:
        return _STATE_TYPES + (("none",) if key in base.optional else ())
    return types.get(key, ())


def _cannot_read(base: Optimizer, spelling: str, item: str) -> str:
    keys = [key for key in (*dict(base.states), "master", "grad") if _allowed(base, key)]
    options = "; ".join(f"{key} = {', '.join(_allowed(base, key))}" for key in keys)
    example = f"{base.name}:{keys[0]}={_allowed(base, keys[0])[1]}"
    return f"--optimizer {spelling!r}: cannot read {item!r}; {options}; for example {example}"


# Shares of the optimizer on the CPU that a search tries, in frameworks that accept any share. Each
# one is a separate search; between two of them, a layout's time and memory are linear.
SEARCHED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Shares for states in unified memory: all of them fit on the GPU, or all are swapped.
PAGED_SHARES = (0.0, 1.0)
# The framework's default, which needs no flag.
_DEFAULT_TYPE = "fp32"


@dataclass(frozen=True, slots=True)
class OptimizerSetting:
    """An optimizer as a job uses it. `offload`: share of its states on the host, 0..1, and of its
    update on the CPU unless the states are paged."""

    optimizer: Optimizer
    kernel: OptimizerKernel
    offload: float = 0.0

    @property
    def on_cpu(self) -> float:
        """Share of states and update on the CPU."""
        return 0.0 if self.optimizer.paged else self.offload

    @property
    def paged_out(self) -> float:
        """Share of the states in unified memory that each update has to fetch from the host."""
        return self.offload if self.optimizer.paged else 0.0


def check_optimizer(profile: FrameworkProfile, setting: OptimizerSetting) -> None:
    """Raise UsageError if the framework lacks the optimizer, its types, its kernel or its
    offload."""
    if refusal := optimizer_refusal(profile, setting):
        raise UsageError(refusal)


def optimizer_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    """Why a framework cannot run an optimizer with these settings; None if it can."""
    return (
        _refusal(profile, setting.optimizer)
        or _kernel_refusal(profile, setting)
        or _offload_refusal(profile, setting)
        or _home_refusal(profile, setting)
    )


def _refusal(profile: FrameworkProfile, optimizer: Optimizer) -> str | None:
    rules = profile.optimizer
    if optimizer.paged and not rules.paged:
        having = ", ".join(frameworks_with(lambda other: other.optimizer.paged))
        return (
            f"--optimizer {optimizer.name}: {profile.name} does not run bitsandbytes' paged "
            f"optimizers; give {optimizer.name.removeprefix('paged-')}, or a framework that does: "
            f"{having}  [optimizer-offered]"
        )
    if rules.families and optimizer.family not in rules.families:
        return (
            f"--optimizer {optimizer.name}: {profile.name} does not support {optimizer.family}; "
            f"it has {', '.join(rules.families)}  [optimizer-offered]"
        )
    master = optimizer.master or optimizer.gradient
    if master and rules.state_types != "all":
        return (
            f"--optimizer {optimizer.name}: {profile.name} cannot choose the type of master "
            "weights or gradients; leave out master= and grad=  [optimizer-types]"
        )
    if not optimizer.is_plain and rules.state_types == "plain":
        return (
            f"--optimizer {optimizer.name}: {profile.name} keeps fp32 moments; give --optimizer "
            f"{optimizer.family}  [optimizer-types]"
        )
    return None


def _kernel_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    kernels = profile.optimizer.kernels
    if setting.kernel in kernels:
        return None
    return (
        f"--optimizer-kernel {setting.kernel}: {profile.name} has {', '.join(kernels)}  "
        "[optimizer-kernel]"
    )


def _offload_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    kind, share = profile.optimizer.offload, setting.offload
    if not 0.0 <= share <= 1.0:
        return f"--optimizer-offload {share:g}: give a share between 0 and 1"
    if setting.optimizer.paged:
        return _paged_refusal(setting)
    if share and kind == "none":
        return (
            f"--optimizer-offload {share:g}: {profile.name} keeps optimizer states on the GPU; "
            "give 0  [optimizer-offload]"
        )
    if 0.0 < share < 1.0 and kind == "whole":
        return (
            f"--optimizer-offload {share:g}: {profile.name} offloads all or nothing; give 0 or 1  "
            "[optimizer-offload]"
        )
    return None


def _home_refusal(profile: FrameworkProfile, setting: OptimizerSetting) -> str | None:
    if profile.state.states_home == "host" or setting.on_cpu == 1.0:
        return None
    return (
        f"--optimizer-offload {setting.on_cpu:g} with states on NVMe: the CPU updates all of them; "
        "give --optimizer-offload 1, or leave optimizer-nvme out  [optimizer-offload]"
    )


def _paged_refusal(setting: OptimizerSetting) -> str | None:
    """Why a paged optimizer cannot be partly on the host.

    The driver evicts the least recently used block, and every update uses all blocks in the same
    order. If they do not all fit, each one is gone when its turn comes.
    """
    if setting.offload in (0.0, 1.0):
        return None
    return (
        f"--optimizer-offload {setting.offload:g}: states of {setting.optimizer.name} are all on "
        "the GPU, or all come from the host in each step; leave the option out, or give 1  "
        "[optimizer-offload]"
    )


def searched_shares(profile: FrameworkProfile) -> tuple[float, ...]:
    """Offloaded shares that a search tries, smallest first. UsageError if the framework offloads no
    optimizer."""
    kind = profile.optimizer.offload
    if kind == "none":
        raise UsageError(
            f"--optimizer-offload search: {profile.name} keeps optimizer states on the GPU; "
            "leave the option out  [optimizer-offload]"
        )
    return SEARCHED_SHARES if kind == "share" else (0.0, 1.0)


def shares_of(
    given: float | str, profile: FrameworkProfile, optimizer: Optimizer
) -> tuple[float, tuple[float, ...]]:
    """The share of the optimizer that is on the host, and the shares that are still open: for a
    paged optimizer all or nothing, depending on the room."""
    if optimizer.paged and given in (0.0, "search"):
        return 0.0, PAGED_SHARES
    if isinstance(given, str):
        return 0.0, searched_shares(profile)
    return given, ()


def optimizer_flags(profile: FrameworkProfile, setting: OptimizerSetting) -> str:
    """The framework's flags for the optimizer's types and its offload."""
    rules, optimizer = profile.optimizer, setting.optimizer
    names = dict(rules.type_flags)
    types = [*optimizer.states, ("master", optimizer.master), ("grad", optimizer.gradient)]
    flags = [
        f"{names[key]} {dtype}"
        for key, dtype in types
        if dtype is not None and dtype != _DEFAULT_TYPE and key in names
    ]
    switch = names.get("*")
    if flags and switch:
        flags.insert(0, switch)
    if setting.on_cpu:
        offload = rules.offload_flags.format(share=f"{setting.on_cpu:g}")
        # Megatron has one switch for both types and offload.
        flags.append(offload.removeprefix(f"{switch} ") if flags and switch else offload)
    return " ".join(flags)
