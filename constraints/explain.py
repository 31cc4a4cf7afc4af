"""Why no shape is legal: a minimal set of rules that together exclude every one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask
from constraints.rule import ShapeRule


def minimal_conflict(
    columns: Columns, ctx: RuleContext, rules: Sequence[ShapeRule]
) -> tuple[ShapeRule, ...]:
    """Rules that together reject every shape, none of which could be left out; () if one passes.
    `columns` must be the unmasked enumeration."""
    return conflict_of(rejections(columns, ctx, rules), rules)


def rejections(columns: Columns, ctx: RuleContext, rules: Sequence[ShapeRule]) -> Mask:
    """Whether each rule (a row) rejects each shape (a column)."""
    return np.stack([~rule.mask(columns, ctx) for rule in rules])


def conflict_of(rejects: Mask, rules: Sequence[ShapeRule]) -> tuple[ShapeRule, ...]:
    """`minimal_conflict` of the shapes whose `rejections` are given.

    Deletion filter (Chinneck and Dravnieks 1991, ORSA J. Computing 3, p. 157): drop a rule
    whenever the others still reject everything. It goes from the last rule to the first, so of
    two that could each explain the conflict the earlier is named.
    """
    times_rejected = rejects.sum(axis=0)
    if not times_rejected.all():
        return ()
    kept: list[ShapeRule] = []
    for rule, rejected in zip(reversed(rules), rejects[::-1], strict=True):
        without = times_rejected - rejected
        if without.all():
            times_rejected = without
        else:
            kept.append(rule)
    return tuple(reversed(kept))
