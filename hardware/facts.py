"""Facts of the catalogue that are no machines: GPU generations, number formats, what owning costs,
and where figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator

from hardware.errors import HardwareError, did_you_mean
from hardware.files import shipped_toml
from hardware.frozen import Frozen

_Record = TypeVar("_Record", bound=Frozen)


def records(kind: type[_Record], file: str) -> dict[str, _Record]:
    """The tables of a file of the catalogue by name."""
    entries = shipped_toml("hardware", f"catalog/{file}").items()
    return {name: kind.model_validate(entry) for name, entry in entries}


class Architecture(Frozen):
    """One generation; `catalog/architectures.toml` says what each trait is, with its source."""

    title: str
    cublas_workspace: str = ":4096:2:16:8"
    prefers_cudnn: bool = False
    kernels_send: bool = False
    switches_reduce: bool = False
    launches_in_order: bool = False
    fp8_along_either_axis: bool = False
    dispatcher: Literal["deepep", "hybridep"] = "deepep"


@cache
def architectures() -> dict[str, Architecture]:
    """Every generation of the catalogue by name."""
    return records(Architecture, "architectures.toml")


def architecture_named(name: str) -> Architecture:
    """A generation by name. HardwareError lists them otherwise."""
    known = architectures()
    if name not in known:
        raise HardwareError(
            f"architecture {name!r} is not one of {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return known[name]


def _known(name: str) -> str:
    architecture_named(name)
    return name


ArchitectureName = Annotated[str, AfterValidator(_known)]
"""The name of a generation that the catalogue has."""


class NumberFormat(Frozen):
    """One format, as `catalog/formats.toml` has it.

    `bits` includes the sign. `largest` is the largest finite number. Formats that scale blocks of
    values have `block` values to a scale of `scale_bits`; elsewhere both are 0. `weights_only`:
    weights are held in it, and no product is made in it.
    """

    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    source: str
    block: int = 0
    scale_bits: int | float = 0
    weights_only: bool = False
    note: str = ""

    @property
    def bytes_per_value(self) -> float:
        """Bytes of one value with its share of the scale."""
        scale = self.scale_bits / self.block if self.block else 0.0
        return (self.bits + scale) / 8


@cache
def load_formats() -> dict[str, NumberFormat]:
    """The formats by name; the names are those of the catalogue's peak rates."""
    return records(NumberFormat, "formats.toml")


CapexScope = Literal["card", "node", "cluster"]


class Figure(Frozen):
    """A number with its unit, where it comes from and the time that it holds for.

    `source`: an id of `catalog/sources.toml`, `assumption`, or the option that gave it.
    """

    value: float
    unit: str
    source: str
    date: str = ""
    note: str = ""


class Capex(Frozen):
    """Purchase price a GPU. `scope`: of the card alone, of a node, or of the whole cluster."""

    price: Figure
    scope: CapexScope


class Account(Frozen):
    """A published run: how often it was interrupted, and what share of the time was useful.

    `interruptions`, `effective`: lowest and highest that the account allows. `state_bytes`: of a
    checkpoint. `interval_s` between two: where it was published.
    """

    gpus: int
    node_gpus: int
    days: float
    state_bytes: float
    interruptions: tuple[float, float]
    effective: tuple[float, float] | None = None
    interval_s: float | None = None
    source: str
    note: str


class Economics(Frozen):
    """The content of `catalog/economics.toml`; GPUs by their catalogue names, accounts by theirs.

    `around`: what a cluster costs a GPU beside a card, and beside a node. `node_height`: rack
    units of a node.
    """

    figures: Mapping[str, Figure]
    capex: Mapping[str, Capex]
    around: Mapping[str, Figure]
    node_power: Mapping[str, Figure]
    node_height: Mapping[str, Figure]
    accounts: Mapping[str, Account]


@cache
def load_economics() -> Economics:
    """The economics of the catalogue."""
    return Economics.model_validate(shipped_toml("hardware", "catalog/economics.toml"))


class CatalogSource(Frozen):
    """One entry of `catalog/sources.toml`.

    `accessed` is empty where the figures were taken from the publication as generally known,
    and it was not opened again while the catalogue was written.
    """

    title: str
    url: str = ""
    accessed: str = ""
    note: str = ""


@cache
def load_sources() -> dict[str, CatalogSource]:
    """The bibliography: source id -> entry."""
    return records(CatalogSource, "sources.toml")
