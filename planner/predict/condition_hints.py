"""What to do about the user's own conditions when no configuration obeys all rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from constraints.condition import UserCondition
from constraints.context import RuleContext
from constraints.numbers import Columns
from constraints.rule import ShapeRule
from planner.predict.space import Shapes, enumerate_shapes, legal_shapes


def condition_hints(
    ctx: RuleContext, shapes: Shapes, conflict: Sequence[ShapeRule]
) -> Iterator[str]:
    """For each condition in a conflict: what there is to choose from, and what leaving it gives.

    Counts are of configurations that were enumerated and obey every other rule.
    """
    names = {rule.name for rule in conflict}
    for condition in ctx.conditions:
        if condition.option not in names:
            continue
        count, legal = without(ctx, condition)
        if len(conflict) == 1:
            tried = condition.values_tried(legal if count else shapes.columns, ctx)
            what = f"{count:,} legal" if count else f"{shapes.considered:,}"
            yield f"none of the {what} configurations that are tried obeys it" + (
                f"; {tried}" if tried else ""
            )
        if count:
            noun = "configuration is" if count == 1 else "configurations are"
            yield f"without {condition.option}: {count:,} {noun} legal"


def without(ctx: RuleContext, dropped: UserCondition) -> tuple[int, Columns]:
    """How many configurations are legal without one condition, and their columns."""
    others = tuple(condition for condition in ctx.conditions if condition is not dropped)
    freed = replace(ctx, conditions=others)
    columns, report = legal_shapes(freed, enumerate_shapes(freed))
    return report.legal, columns
