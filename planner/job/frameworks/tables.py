"""Tables of a framework's profile whose settings `settings.toml` declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from hardware.files import shipped_toml
from hardware.frozen import Frozen

Kind = TypeVar("Kind", bound=Frozen)
Share = Annotated[float, Field(ge=0.0, le=1.0)]
_TYPES: Mapping[str, Any] = {
    "boolean": bool,
    "string": str,
    "list of string": tuple[str, ...],
    "table of string": tuple[tuple[str, ...], ...],
    "number": float,
    "number ≥ 0": Annotated[float, Field(ge=0.0)],
    "number > 0": Annotated[float, Field(gt=0.0)],
    "number 0..1": Share,
}


@cache
def declarations() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Table -> setting -> its declaration."""
    return shipped_toml("planner.job", "settings.toml")


def _type(words: str) -> Any:
    """The type that a declaration names."""
    if words.startswith("`"):
        return Literal[tuple(word.strip("`") for word in words.split(" or "))]
    kind = _TYPES[words.removesuffix(" or none")]
    return kind | None if words.endswith(" or none") else kind


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def declared(table: str) -> Callable[[type[Kind]], type[Kind]]:
    """Gives a class a field for each setting of a table."""
    fields: dict[str, Any] = {
        name: (_type(row["type"]), _frozen(row.get("default")))
        for name, row in declarations()[table].items()
    }

    def made(kind: type[Kind]) -> type[Kind]:
        return create_model(
            kind.__name__, __base__=kind, __doc__=kind.__doc__, __module__=kind.__module__, **fields
        )

    return made


class Settings(Frozen):
    """A table of settings: numbers and switches, where it says nothing else to a type checker."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, setting: str) -> float: ...


@declared("saved")
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


@declared("state")
class TrainingState(Settings):
    """Bytes per parameter of weights and gradients under mixed precision."""


@declared("overlap")
class Overlap(Settings):
    """What the framework hides: shares of a collective that may run beside compute."""


@declared("kernels")
class Kernels(Settings):
    """How the framework issues work."""

    if TYPE_CHECKING:
        dispatcher: str = ""
        captured: bool = False
        quantises_linears: bool = False
        quantises_experts: bool = False


@declared("outside")
class Outside(Settings):
    """Memory outside live tensors; each with its evidence in the framework's file."""


@declared("full_memory")
class FullMemorySettings(Settings):
    """What runs did whose allocator had next to nothing left
    (`planner.predict.uncertainty.full_memory`)."""

    if TYPE_CHECKING:
        allocator: str = ""


@declared("activation_offload")
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
