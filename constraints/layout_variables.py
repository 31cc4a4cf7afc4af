"""Solver variables of a layout, tied to the model's sequence of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from constraints.layout_context import LayoutContext

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, Constraint, CpModel, IntVar, LinearExpr

    # Type of sums of decision variables; narrower than the solver's own alias, which admits every
    # numpy integer.
    Expression = LinearExpr | int


@dataclass(frozen=True)
class LayoutVariables:
    """Solver variables of a layout. Index b is a block, k a kind of layer.

    `kind_layers[b][k]` and `kind_recomputed[b][k]` follow from `layers[b]`, `recomputed[b]` and the
    model's sequence of kinds. `recomputed` is empty if no layer may recompute. The solver never
    mixes modes. `assumed`: literals by rule name that switch rules on when a conflict is explained;
    None otherwise.
    """

    layers: list[IntVar]
    recomputed: list[IntVar]
    kind_layers: list[list[Expression]]
    kind_recomputed: list[list[Expression]]
    assumed: dict[str, BoolVarT] | None = field(default=None)
    _present: dict[tuple[str, int, int], BoolVarT] = field(default_factory=dict)

    def stage(
        self, per_block: list[list[Expression]], stage: int, ctx: LayoutContext
    ) -> list[Expression]:
        """Sums by kind over the chunks of a stage."""
        items = [per_block[block] for block in ctx.stage_blocks(stage)]
        return [sum(chunk) for chunk in zip(*items, strict=True)]

    def present(
        self, model: CpModel, what: str, stage: int, kind: int, count: Expression, most: int
    ) -> BoolVarT:
        """A literal that is true if `count` is positive: the stage has layers of this kind. Created
        once."""
        key = (what, stage, kind)
        if key not in self._present:
            self._present[key] = model.new_bool_var("")
            model.add(count <= most * self._present[key])
        return self._present[key]

    def hold(self, model: CpModel, constraint: Constraint, name: str) -> None:
        """Make a constraint depend on a literal with the rule's name, so that it can be switched
        off when conflicts are explained."""
        if self.assumed is None:
            return
        if name not in self.assumed:
            self.assumed[name] = model.new_bool_var(name)
        constraint.only_enforce_if(self.assumed[name])


def make_variables(model: CpModel, ctx: LayoutContext, explain: bool = False) -> LayoutVariables:
    """Create the variables, and tie kinds to positions in the model's sequence of layers."""
    layers = _counts(model, ctx, "layers")
    recomputed = _counts(model, ctx, "recompute") if ctx.modes else []
    sequence = _sequence(model, layers, ctx)
    kind_layers = kind_recomputed = sequence.layers()
    if ctx.recomputation != "all":
        kind_recomputed = sequence.first(recomputed) if recomputed else []
    assumed: dict[str, BoolVarT] | None = {} if explain else None
    return LayoutVariables(layers, recomputed, kind_layers, kind_recomputed, assumed)


def _counts(model: CpModel, ctx: LayoutContext, name: str) -> list[IntVar]:
    return [model.new_int_var(0, ctx.layers, f"{name}[{b}]") for b in range(ctx.blocks)]


def _difference(more: Sequence[Expression], less: Sequence[Expression]) -> list[Expression]:
    return [one - other for one, other in zip(more, less, strict=True)]


def _sequence(
    model: CpModel, layers: list[IntVar], ctx: LayoutContext
) -> _OneKind | _KindRuns | _Positions:
    if ctx.kind_count == 1:
        return _OneKind(layers)
    return _KindRuns(model, layers, ctx) if ctx.in_order else _Positions(model, layers, ctx)


class _OneKind:
    """Models whose layers are all alike."""

    def __init__(self, layers: list[IntVar]) -> None:
        self.counts: list[list[Expression]] = [[layer] for layer in layers]

    def layers(self) -> list[list[Expression]]:
        return self.counts

    def first(self, taken: Sequence[Expression]) -> list[list[Expression]]:
        return [[expression] for expression in taken]


class _KindRuns:
    """Models with one run of layers per kind (dense, then MoE): each kind starts where the last
    ended."""

    def __init__(self, model: CpModel, layers: list[IntVar], ctx: LayoutContext) -> None:
        self.model, self.ctx = model, ctx
        totals = ctx.totals
        self.counts = [[model.new_int_var(0, most, "") for most in totals] for _ in layers]
        for count, block in zip(self.counts, layers, strict=True):
            model.add(sum(count) == block)
        for kind, total in enumerate(totals):
            model.add(sum(count[kind] for count in self.counts) <= total)
        for kind in range(ctx.kind_count - 1):
            self._follow(kind)

    def _follow(self, kind: int) -> None:
        """The next kind appears in a block only after all layers of this one are placed."""
        model, total, after = self.model, self.ctx.totals[kind], self.ctx.totals[kind + 1]
        placed: Expression = 0
        over = None
        for count in self.counts:
            placed = placed + count[kind]
            before, over = over, model.new_bool_var("")
            model.add(placed >= total * over)
            model.add(count[kind + 1] <= after * over)
            if before is not None:
                model.add_implication(before, over)

    def layers(self) -> list[list[Expression]]:
        return [list(count) for count in self.counts]

    def first(self, taken: Sequence[Expression]) -> list[list[Expression]]:
        return [
            self._first(one_count, count)
            for one_count, count in zip(self.counts, taken, strict=True)
        ]

    def _first(self, int_vars: list[IntVar], count: Expression) -> list[Expression]:
        """Kinds among the first `count` layers of a block; a kind starts after the previous one is
        used up."""
        model, totals = self.model, self.ctx.totals
        part = [model.new_int_var(0, most, "") for most in totals]
        model.add(sum(part) == count)
        for taken, there in zip(part, int_vars, strict=True):
            model.add(taken <= there)
        for kind in range(len(part) - 1):
            used_up = model.new_bool_var("")
            model.add(part[kind + 1] <= totals[kind + 1] * used_up)
            model.add(int_vars[kind] - part[kind] <= totals[kind] * (1 - used_up))
        return list(part)


class _Positions:
    """Models with kinds in any order: look up the prefix counts at the ends of blocks."""

    def __init__(self, model: CpModel, layers: list[IntVar], ctx: LayoutContext) -> None:
        self.model, self.ctx = model, ctx
        self.starts = [model.new_constant(0)]
        for layer in layers:
            self.starts.append(self._position(self.starts[-1] + layer))
        self.before = [self._before(start) for start in self.starts]

    def _position(self, expression: Expression) -> IntVar:
        position = self.model.new_int_var(0, self.ctx.layers, "")
        self.model.add(position == expression)
        return position

    def _before(self, position: IntVar) -> list[Expression]:
        """Layers of each kind before a position; the last kind is the remainder.

        If the kinds repeat (sliding and full attention in turn), whole periods count linearly and
        only the rest is looked up, which gives a far tighter relaxation than one long table.
        """
        ctx, model = self.ctx, self.model
        periods, rest = self._whole_periods(position)
        counts: list[Expression] = []
        for kind in range(ctx.kind_count - 1):
            table = list(ctx.prefix[kind][: ctx.period + 1])
            count = model.new_int_var(0, table[-1], "")
            model.add_element(rest, table, count)
            counts.append(periods * table[-1] + count)
        return [*counts, position - sum(counts)]

    def _whole_periods(self, position: IntVar) -> tuple[Expression, IntVar]:
        """(q, r) with position = q·period + r."""
        period, layers = self.ctx.period, self.ctx.layers
        if period == layers:
            return 0, position
        whole = self.model.new_int_var(0, layers // period, "")
        rest = self.model.new_int_var(0, period - 1, "")
        self.model.add(position == whole * period + rest)
        return whole, rest

    def layers(self) -> list[list[Expression]]:
        return [_difference(stop, start) for start, stop in pairwise(self.before)]

    def first(self, taken: Sequence[Expression]) -> list[list[Expression]]:
        rows = zip(self.starts, self.before, taken, strict=False)
        return [
            _difference(self._before(self._position(start + count)), before)
            for start, before, count in rows
        ]
