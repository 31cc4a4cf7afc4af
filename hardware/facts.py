"""Catalogue entries that are not machines: GPU generations, number formats, costs of ownership, and
sources."""

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
    """The tables of a catalogue file by name."""
    entries = shipped_toml("hardware", f"catalog/{file}").items()
    return {name: kind.model_validate(entry) for name, entry in entries}


class Architecture(Frozen):
    """One GPU generation. `catalog/architectures.toml` explains each trait and gives its source."""

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
    """Every GPU generation of the catalogue by name."""
    return records(Architecture, "architectures.toml")


def architecture_named(name: str) -> Architecture:
    """A GPU generation by name. HardwareError lists the known ones."""
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
"""Name of a GPU generation in the catalogue."""


class NumberFormat(Frozen):
    """One number format of `catalog/formats.toml`.

    `bits` includes the sign; `largest` is the largest finite number. Block-scaled formats store one
    scale of `scale_bits` for every `block` values; both are 0 otherwise. `weights_only`: weights
    may be stored in the format, but no matrix product runs in it.
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
        """Bytes of one value, including its share of the block's scale."""
        scale = self.scale_bits / self.block if self.block else 0.0
        return (self.bits + scale) / 8


@cache
def load_formats() -> dict[str, NumberFormat]:
    """The number formats by name, as the catalogue's peak rates name them."""
    return records(NumberFormat, "formats.toml")


CapexScope = Literal["card", "node", "cluster"]


class Figure(Frozen):
    """A number with its unit, its source and the date it applies to.

    `source`: an id of `catalog/sources.toml`, `assumption`, or the option that supplied it.
    """

    value: float
    unit: str
    source: str
    date: str = ""
    note: str = ""


class Capex(Frozen):
    """Purchase price per GPU. `scope`: for the card alone, as part of a node, or of a whole
    cluster."""

    price: Figure
    scope: CapexScope


class Account(Frozen):
    """A published training run: how often it was interrupted, and what share of its time was
    useful.

    `interruptions`, `effective`: the lowest and highest values consistent with the publication.
    `state_bytes`: size of a checkpoint. `interval_s`: time between checkpoints, if published.
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
    """The content of `catalog/economics.toml`, keyed by catalogue names of GPUs and runs.

    `around`: cost per GPU of everything around a card, or around a node. `node_height`: rack units
    per node.
    """

    figures: Mapping[str, Figure]
    capex: Mapping[str, Capex]
    around: Mapping[str, Figure]
    node_power: Mapping[str, Figure]
    node_height: Mapping[str, Figure]
    accounts: Mapping[str, Account]


@cache
def load_economics() -> Economics:
    """The economic figures of the catalogue."""
    return Economics.model_validate(shipped_toml("hardware", "catalog/economics.toml"))


class CatalogSource(Frozen):
    """One entry of `catalog/sources.toml`. `accessed` is empty if the publication was not reopened
    while the catalogue was written."""

    title: str
    url: str = ""
    accessed: str = ""
    note: str = ""


@cache
def load_sources() -> dict[str, CatalogSource]:
    """The bibliography: source id -> entry."""
    return records(CatalogSource, "sources.toml")
