"""Classes of parameters: how tensors are stored, whether they are trained, and which ranks share
them.

Every row of the op table (`planner.predict.ops.rows.Op`) names the class of its parameters;
`parameter_classes.toml` has a table for each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Self

from pydantic import model_validator

from hardware.facts import load_formats
from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.optimizers import ELEMENT_BYTES


class ParameterClass(Named):
    """One class of parameters; see `parameter_classes.toml`.

    `sharers`: the ranks that store the same tensors, over which ZeRO shards them and gradients are
    reduced (`planner.cost.codes.Sharers`). `format`: number format of the tensors
    (`hardware/catalog/formats.toml`); None for the framework's default. `gathered`: whether ZeRO-3
    shards the tensors and gathers them before use; otherwise each rank stores all of them.
    `reduced`: whether the sharers sum their gradients. `only_read`: belongs to another model than
    the trained one, which is only read forward. `gradient`, `states`: types of the gradients, and
    of master weights and optimizer states; None for the defaults of framework and optimizer.
    """

    name: str
    summary: str
    sharers: Literal["data", "expert-data"] = "data"
    trained: bool = True
    format: str | None = None
    gathered: Literal["before-use", "never"] = "before-use"
    reduced: bool = True
    gradient: str | None = None
    states: str | None = None
    only_read: bool = False

    @model_validator(mode="after")
    def _demand_known_types(self) -> Self:
        if self.format is not None and self.format not in load_formats():
            raise ValueError(f"format {self.format!r}; known are {', '.join(load_formats())}")
        for given in (self.gradient, self.states):
            if given is not None and (given not in ELEMENT_BYTES or not self.trained):
                known = ", ".join(ELEMENT_BYTES)
                raise ValueError(f"type {given!r} of a trained class; known are {known}")
        return self

    @property
    def packed(self) -> bool:
        """Whether matrix products need an unpacked copy of the tensors, made before each use."""
        return self.format is not None and load_formats()[self.format].weights_only

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes per parameter with its share of scales; None for the framework's default."""
        return None if self.format is None else load_formats()[self.format].bytes_per_value


@cache
def parameter_classes() -> dict[str, ParameterClass]:
    """The classes by name, in the order in which sums list them."""
    tables = shipped_toml("planner.job", "parameter_classes.toml")
    every = (one for name, entry in tables.items() for one in _variants(name, entry))
    return {one.name: one for one in every}


def class_name(kind: str, held: str | None, *, expert: bool = False) -> str:
    """Name of the class of that kind whose tensors are stored in format `held`; None for the
    framework's default."""
    name = f"{kind}-expert" if expert else kind
    return name if held is None else f"{name}/{held}"


def _variants(name: str, entry: Mapping[str, Any]) -> Iterator[ParameterClass]:
    """A class as its table defines it; with `formats` one for each format, and the same for
    experts."""
    given = dict(entry)
    formats = given.pop("formats", None)
    yield ParameterClass(name=name, **given)
    if formats is None:
        return
    for expert in (False, True):
        shared = given | ({"sharers": "expert-data"} if expert else {})
        if expert:
            yield ParameterClass(name=class_name(name, None, expert=True), **shared)
        for held in formats:
            types = {"gradient": held, "states": held} if given.get("trained", True) else {}
            named = class_name(name, held, expert=expert)
            yield ParameterClass(name=named, **shared, format=held, **types)
