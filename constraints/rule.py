"""The two kinds of rule: over shapes (a mask) and over layouts (solver constraints + a check)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from constraints.context import Columns, ConstraintError, Mask, RuleContext

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

ShapeTest = Callable[[Columns, RuleContext], Mask | bool]
Wording = Callable[[RuleContext], str]


@dataclass(frozen=True)
class ShapeRule:
    """A rule over shapes.

    `sentence` says what the rule demands, `source` where that comes from. `test` answers for
    all shapes at once, or with one bool where the answer does not depend on the shape.
    `wording` is the sentence with the numbers of a context in it.
    """

    name: str
    sentence: str
    source: str
    test: ShapeTest
    wording: Wording

    def mask(self, columns: Columns, ctx: RuleContext) -> Mask:
        """True where a shape obeys the rule; one bool a row."""
        obeyed = np.asarray(self.test(columns, ctx), dtype=np.bool_)
        return np.broadcast_to(obeyed, columns["tp"].shape)

    def explain(self, ctx: RuleContext) -> str:
        """What the rule demands here, with its numbers."""
        return self.wording(ctx)


def shape_rule(
    name: str, sentence: str, *, source: str, wording: Wording
) -> Callable[[ShapeTest], ShapeRule]:
    """Decorator: the function under it is the test of a rule."""

    def build(test: ShapeTest) -> ShapeRule:
        return ShapeRule(name, sentence, source, test, wording)

    return build


@dataclass(frozen=True)
class Layout:
    """Which layers sit where: `block_layers` in pipeline order, `recomputed` one a stage.

    Block b lives on stage b % pp and is that stage's chunk b // pp. `recomputed` counts the
    layers of each stage that run again in backward.
    """

    pp: int
    vpp: int
    block_layers: tuple[int, ...]
    recomputed: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.block_layers) != self.pp * self.vpp:
            raise ConstraintError(
                f"block_layers has {len(self.block_layers)} entries; "
                f"pp={self.pp} times vpp={self.vpp} makes {self.pp * self.vpp} blocks"
            )
        if len(self.recomputed) != self.pp:
            raise ConstraintError(
                f"recomputed has {len(self.recomputed)} entries; one for each of {self.pp} stages"
            )

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each stage, its chunks summed."""
        return tuple(sum(self.block_layers[stage :: self.pp]) for stage in range(self.pp))


VariablesT_contra = TypeVar("VariablesT_contra", contravariant=True)
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)


class LayoutRule(Protocol[VariablesT_contra, ContextT_contra]):
    """A rule over layouts, said twice: to the solver, and as a check that knows no solver.

    The check *is* the specification: tests hold `add` against it over small exhaustive spaces.
    The first type holds the model's decision variables, the second the numbers of one shape.
    """

    @property
    def name(self) -> str:
        """Kebab-case, unique."""

    @property
    def sentence(self) -> str:
        """What the rule demands, in plain English."""

    @property
    def source(self) -> str:
        """Where the demand comes from."""

    def add(self, model: CpModel, variables: VariablesT_contra, ctx: ContextT_contra) -> None:
        """Constrain the solver's model."""

    def check(self, layout: Layout, ctx: ContextT_contra) -> bool:
        """Whether a finished layout obeys the rule."""
        ...
