"""What makes a plan legal: one rule = a name, a sentence, a source and a mask over shapes.

`RULES` (in `constraints.registry`) is the only registry. Names are imported when first used:
`planner --help` asks for none of them, and the rules need numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constraints.condition import UserCondition, user_condition
    from constraints.context import RuleContext
    from constraints.errors import ConstraintError
    from constraints.explain import conflict_of, minimal_conflict, rejections
    from constraints.numbers import (
        BatchGoal,
        Capabilities,
        ClusterNumbers,
        DegreeLimit,
        ModelNumbers,
    )
    from constraints.registry import RULES, rules_of
    from constraints.rule import Layout, LayoutRule, ShapeRule
    from constraints.user import parse_degree_limit

# Read by planner/__init__.py: other distributions ship a package of this name too.
__distribution__ = "trainplan"

__all__ = [
    "RULES",
    "BatchGoal",
    "Capabilities",
    "ClusterNumbers",
    "ConstraintError",
    "DegreeLimit",
    "Layout",
    "LayoutRule",
    "ModelNumbers",
    "RuleContext",
    "ShapeRule",
    "UserCondition",
    "conflict_of",
    "minimal_conflict",
    "parse_degree_limit",
    "rejections",
    "rules_of",
    "user_condition",
]

_HOMES = {
    "RULES": "registry",
    "BatchGoal": "numbers",
    "Capabilities": "numbers",
    "ClusterNumbers": "numbers",
    "ConstraintError": "errors",
    "DegreeLimit": "numbers",
    "Layout": "rule",
    "LayoutRule": "rule",
    "ModelNumbers": "numbers",
    "RuleContext": "context",
    "ShapeRule": "rule",
    "UserCondition": "condition",
    "conflict_of": "explain",
    "minimal_conflict": "explain",
    "parse_degree_limit": "user",
    "rejections": "explain",
    "rules_of": "registry",
    "user_condition": "condition",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'constraints' has no attribute {name!r}")
    value = getattr(import_module(f"constraints.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
