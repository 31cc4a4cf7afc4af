"""The degrees of a configuration in one table, from which every list of degrees is derived.

Plain data without imports of this program, so that the compiled core can read it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import tomli

# Kinds of exchange in context parallelism (Megatron's --cp-comm-type).
ContextKind = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
# Products of three such numbers stay exact in float64 tables.
LARGEST_DEGREE = 2**20


@dataclass(frozen=True)
class Cut:
    """A number of the model that an axis must divide.

    `number` is a field of `constraints.numbers.ModelNumbers`; `wording` is its name in the rule's
    text.
    """

    rule: str
    number: str
    sentence: str
    source: str
    wording: str


@dataclass(frozen=True)
class Axis:
    """One degree of a configuration.

    `words` describe it; `divides` is what it splits into parts. `letter` precedes the number in the
    short text of a configuration (default: the name). That text shows the degree `always`, only if
    it is not `least` (`changed`), or `never`.
    """

    name: str
    words: str
    divides: str
    unit: str = ""
    letter: str = ""
    shown: Literal["always", "changed", "never"] = "changed"
    least: int = 1
    largest: int = LARGEST_DEGREE
    of_layer: bool = False
    """Whether a layer's cost depends on it; other axes say how many layers there are, and where."""
    communicates: bool = False
    """Whether collectives of a layer run over it."""
    option: str = ""
    """Name of its option, if it differs from the axis's name."""
    default: int | None = None
    """Default of its option; None if the framework or the cluster decides."""
    given_help: str = ""
    """Help of the option that sets it, in addition to `words`."""
    limit_help: str = ""
    """Help of the option that limits it in a search, instead of `words`."""
    limited: bool = True
    """Whether a search accepts limits on it."""
    capability: str = ""
    """The field of `constraints.numbers.Capabilities` without which it must be 1."""
    needs: str = ""
    """The missing ability in the rule's text; empty if another rule says it."""
    cuts: tuple[Cut, ...] = ()

    @property
    def spelled(self) -> str:
        """The option's name without the leading dashes."""
        return self.option or self.name.replace("_", "-")

    @property
    def sentence(self) -> str:
        """`words` and the unit as one sentence."""
        unit = f", {self.unit}" if self.unit else ""
        return f"{self.words[0].upper()}{self.words[1:]}{unit}."

    def text(self, degree: int) -> str:
        """`tp8`; empty if the short text of a configuration omits it."""
        if self.shown == "never" or (self.shown == "changed" and degree == self.least):
            return ""
        return f"{self.letter or self.name}{degree}"


def _axis(row: Mapping[str, Any]) -> Axis:
    return Axis(**{**row, "cuts": tuple(Cut(**cut) for cut in row.get("cuts", ()))})


TABLE_FILE = Path(__file__).with_suffix(".toml")
_TABLE = tomli.loads(TABLE_FILE.read_text(encoding="utf-8"))
AXES: Mapping[str, Axis] = {row["name"]: _axis(row) for row in _TABLE["axes"]}
# Axes of ranks, the fastest first.
WORLD: Sequence[str] = tuple(_TABLE["grids"]["world"])
EXPERTS: Sequence[str] = tuple(_TABLE["grids"]["experts"])
# Axes that the cost of a layer depends on, the others, and those over which layers communicate.
OF_LAYER = tuple(name for name, axis in AXES.items() if axis.of_layer)
OF_STEP = tuple(name for name, axis in AXES.items() if not axis.of_layer)
GROUPS = tuple(name for name, axis in AXES.items() if axis.communicates)


def product_of(names: Iterable[str], degrees: Mapping[str, Any]) -> Any:
    """The product of some degrees, as numbers or as columns of numbers."""
    return prod(degrees[name] for name in names)


def within(axis: str) -> tuple[str, ...]:
    """The axes that vary faster than `axis`: their product is the rank distance of its
    neighbours."""
    grid = EXPERTS if axis in EXPERTS else WORLD
    return tuple(grid[: grid.index(axis)])
