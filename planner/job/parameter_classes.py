"""Classes of parameters: how tensors are held, whether they are trained, which ranks share them.

Every row of the op table (`planner.predict.ops.rows.Op`) names the class of its parameters;
`parameter_classes.toml` has a table for each class.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, Self

from pydantic import model_validator

from hardware.facts import load_formats
from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.optimizers import ELEMENT_BYTES


class ParameterClass(Named):
    """One class of parameters; see `parameter_classes.toml`.

    `sharers`: the ranks that hold the same tensors, over which ZeRO divides them and gradients are
    reduced (`planner.cost.codes.Sharers`). `format`: the number format of the tensors
    (`hardware/catalog/formats.toml`), None as the framework holds weights. `gathered`: under
    ZeRO-3 a rank holds its share and gathers the rest before use, or it holds all. `reduced`:
    whether the sharers add up their gradients. `only_read`: of another model than the one that is
    trained, which a step reads forward. `gradient`, `states`: types of the gradients and of
    master weights and optimizer states, None as framework and optimizer have them.
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
            raise ValueError(f"format {self.format!r}: known are {', '.join(load_formats())}")
        for given in (self.gradient, self.states):
            if given is not None and (given not in ELEMENT_BYTES or not self.trained):
                known = ", ".join(ELEMENT_BYTES)
                raise ValueError(f"type {given!r} of a trained class: known are {known}")
        return self

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes of one parameter with its share of scales; None: as the framework holds it."""
        return None if self.format is None else load_formats()[self.format].bytes_per_value


@cache
def parameter_classes() -> dict[str, ParameterClass]:
    """The classes by name, in the order in which sums take them."""
    tables = shipped_toml("planner.job", "parameter_classes.toml")
    return {name: ParameterClass(name=name, **entry) for name, entry in tables.items()}
