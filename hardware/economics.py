"""What owning a cluster costs, what its nodes draw, and how often they fail: with sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from hardware.files import shipped_toml
from hardware.frozen import Frozen

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
