"""Optimizers: what each keeps per parameter, and how a spelling names one.

`adamw`, `muon`, ... are entries of `optimizers.toml`; `adamw:exp_avg=fp8,master=fp16` changes the
types of its states, of the master weights and of the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import Field

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.job.errors import UsageError, unknown_name

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
# What a user may write for a state, for the master weights and for the gradients: the types of
# Megatron-LM's --exp-avg-dtype, --main-params-dtype and --main-grads-dtype.
_STATE_TYPES = ("fp32", "bf16", "fp16", "fp8")
_MASTER_TYPES = ("fp32", "fp16")
_GRADIENT_TYPES = ("fp32", "bf16")
# AdamW's two fp32 moments, for the parameters that Muon leaves to it.
ADAMW_STATE_BYTES = 8.0

Scope = Literal["all", "matrices", "factored"]


class Optimizer(Frozen):
    """One optimizer as it is used; see `optimizers.toml`.

    `states`: type of each tensor of state; `master`, `gradient`: types of the master weights and
    of the gradients, None as the framework has them. `name`: how it was spelled.
    """

    name: str
    summary: str
    family: str
    states: tuple[tuple[str, str], ...]
    block: int = Field(default=1, ge=1)
    scope: Scope = "all"
    optional: tuple[str, ...] = ()
    extra_traffic_bytes: float = Field(default=0.0, ge=0)
    master: str | None = None
    gradient: str | None = None
    source: str

    @property
    def state_bytes(self) -> float:
        """Bytes of state of a parameter in its scope, master weight apart."""
        return sum(self._bytes(dtype) for _, dtype in self.states)

    @property
    def traffic_bytes(self) -> float:
        """Bytes per parameter that a step reads and writes of the states."""
        return 2.0 * self.state_bytes + self.extra_traffic_bytes

    @property
    def master_bytes(self) -> float | None:
        """Bytes of a master weight; None: as the framework has it."""
        return None if self.master is None else ELEMENT_BYTES[self.master]

    @property
    def gradient_bytes(self) -> float | None:
        """Bytes of a gradient; None: as the framework has it."""
        return None if self.gradient is None else ELEMENT_BYTES[self.gradient]

    @property
    def is_plain(self) -> bool:
        """Whether all types are those that any framework has: fp32 states, its own weights."""
        item = self.master is None and self.gradient is None
        return item and all(dtype in ("fp32", *_QUANTISED) for _, dtype in self.states)

    @property
    def follows_weights(self) -> bool:
        """Whether torch makes the states in the type of the weights: AdamW as it comes."""
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


def optimizer_names() -> tuple[str, ...]:
    """Names in the catalogue, the default first."""
    return tuple(_catalogue())


def load_optimizer(spelling: str) -> Optimizer:
    """The optimizer that a spelling names: `NAME` or `NAME:KEY=TYPE,...`.

    Keys: the names of its states, `master`, `grad`. UsageError with what is possible otherwise.
    """
    name, colon, changes = spelling.strip().lower().partition(":")
    base = _base(name.strip().replace("_", "-"), spelling)
    if not colon:
        return base
    return _changed(base, changes, spelling)


def _base(wanted: str, spelling: str) -> Optimizer:
    catalogue = _catalogue()
    if wanted not in catalogue:
        raise unknown_name("optimizer", spelling, catalogue, "known: " + ", ".join(catalogue))
    return catalogue[wanted]


def _changed(base: Optimizer, changes: str, spelling: str) -> Optimizer:
    """The optimizer with the types that `changes` names."""
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
    """Types that a key may take; none if there is no such key."""
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
