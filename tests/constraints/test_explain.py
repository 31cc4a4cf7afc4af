"""The deletion filter: enough rules to exclude everything, none too many."""

from __future__ import annotations

import numpy as np
import pytest

from constraints.context import RuleContext
from constraints.numbers import BatchGoal, Columns
from constraints.registry import RULES, rules_of
from constraints.rule import ShapeRule, minimal_conflict
from planner.predict.space import enumerate_shapes
from tests.constraints.shapes import context

CONFLICTS = {
    "tp=5 against 12 heads": (
        context(gpus=8, limits={"tp": "5"}),
        ("user-tp", "heads-by-tp"),
    ),
    "degrees that need more GPUs": (
        context(gpus=8, limits={"tp": "4", "pp": "4"}),
        ("user-tp", "user-pp", "world-size"),
    ),
    "ragged node": (context(gpus=65, batch=BatchGoal(520)), ("whole-nodes",)),
    "experts in a dense model": (
        context(gpus=8, limits={"ep": "2"}),
        ("user-ep", "experts-needed"),
    ),
    "batch out of reach": (
        context(gpus=8, batch=BatchGoal(8, exact=True), limits={"dp": "8", "mbs": "2"}),
        ("user-dp", "user-mbs", "batch-size"),
    ),
    "conditions that contradict each other": (
        context(
            gpus=8,
            conditions=[("require", "pp<=2"), ("require", "tp>=1"), ("require", "pp >= 8")],
        ),
        ('--require "pp<=2"', '--require "pp >= 8"'),
    ),
    "a condition against what is fixed and a limit": (
        context(
            gpus=8,
            limits={"cp": "2"},
            conditions=[("require", "tp*cp <= 4"), ("fix", "tp=4"), ("forbid", "zero == 3")],
        ),
        ('--require "tp*cp <= 4"', "--fix tp=4", "user-cp"),
    ),
    "a condition that contradicts itself": (
        context(gpus=8, conditions=[("require", "pp<=2 and pp>=8"), ("forbid", "mbs == 32")]),
        ('--require "pp<=2 and pp>=8"',),
    ),
}


def passes(rules: tuple[ShapeRule, ...], columns: Columns, ctx: RuleContext) -> int:
    everything = np.ones(columns["tp"].shape, dtype=bool)
    return int(np.logical_and.reduce([everything, *(r.mask(columns, ctx) for r in rules)]).sum())


@pytest.mark.parametrize(("ctx", "names"), CONFLICTS.values(), ids=CONFLICTS.keys())
def test_conflict_is_minimal(ctx: RuleContext, names: tuple[str, ...]) -> None:
    columns = enumerate_shapes(ctx).columns
    conflict = minimal_conflict(columns, ctx, rules_of(ctx))
    assert tuple(rule.name for rule in conflict) == names
    assert passes(conflict, columns, ctx) == 0
    for left_out in conflict:
        others = tuple(rule for rule in conflict if rule is not left_out)
        assert passes(others, columns, ctx) > 0


def test_no_conflict_where_a_shape_is_legal() -> None:
    ctx = context(gpus=8)
    assert minimal_conflict(enumerate_shapes(ctx).columns, ctx, RULES) == ()


def test_earlier_of_two_guilty_rules_is_named() -> None:
    ctx = context(gpus=8, limits={"tp": "5"})
    columns = enumerate_shapes(ctx).columns
    backwards = minimal_conflict(columns, ctx, tuple(reversed(RULES)))
    assert {rule.name for rule in backwards} == {"user-tp", "world-size"}
