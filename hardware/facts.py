"""Every number of the catalogue with where it comes from, for people to look at."""

from __future__ import annotations

from functools import cache

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from hardware.load import load_cluster_shape, load_gpu_record
from hardware.units import ASSUMPTION, Quantity


class Source(Frozen):
    """One entry of `catalog/sources.toml`.

    `accessed` is empty where the figures were taken from the publication as generally known,
    and it was not opened again while the catalogue was written.
    """

    title: str
    url: str = ""
    accessed: str = ""
    note: str = ""


class Fact(Quantity):
    """A number as the catalogue prints it."""

    name: str

    @property
    def assumption(self) -> bool:
        """Whether nobody published it."""
        return self.source == ASSUMPTION


@cache
def load_sources() -> dict[str, Source]:
    """The bibliography: source id -> entry."""
    entries = shipped_toml("hardware", "catalog/sources.toml")
    return {key: Source.model_validate(entry) for key, entry in entries.items()}


def gpu_facts(name: str) -> tuple[Fact, ...]:
    """All numbers of a GPU with unit and source. HardwareError for an unknown name."""
    return _facts(load_gpu_record(name).quantities())


def cluster_facts(name: str) -> tuple[Fact, ...]:
    """All numbers of a node shape with unit and source. HardwareError for an unknown name."""
    return _facts(load_cluster_shape(name).quantities())


def _facts(quantities: dict[str, Quantity]) -> tuple[Fact, ...]:
    return tuple(Fact(name=name, **dict(one)) for name, one in quantities.items())
