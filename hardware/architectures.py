"""Generations of GPUs, and the traits of each that software depends on."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from hardware.errors import HardwareError, did_you_mean
from hardware.files import shipped_toml
from hardware.frozen import Frozen


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
    entries = shipped_toml("hardware", "catalog/architectures.toml")
    return {name: Architecture.model_validate(entry) for name, entry in entries.items()}


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
