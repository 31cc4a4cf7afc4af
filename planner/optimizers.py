"""Optimizers: bytes of state and of traffic per parameter."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from planner.errors import unknown_name


class Optimizer(BaseModel):
    """Bytes per parameter of one optimizer; see `optimizers.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    state_bytes: float = Field(ge=0)
    traffic_bytes: float = Field(ge=0)
    source: str


@cache
def _catalogue() -> dict[str, Optimizer]:
    text = files("planner").joinpath("optimizers.toml").read_text(encoding="utf-8")
    return {name: Optimizer(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def optimizer_names() -> tuple[str, ...]:
    """Names in the catalogue, the default first."""
    return tuple(_catalogue())


def load_optimizer(name: str) -> Optimizer:
    """Optimizer by name; UsageError with close matches otherwise."""
    catalogue = _catalogue()
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in catalogue:
        raise unknown_name("optimizer", name, catalogue, "known: " + ", ".join(catalogue))
    return catalogue[wanted]
