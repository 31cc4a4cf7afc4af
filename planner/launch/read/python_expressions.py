"""Expressions of Python configuration code: literals, lists, tables, calculations."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from typing import Any

from planner.launch.read.limits import Limits
from planner.launch.read.python_records import (
    UNKNOWN,
    calculated,
    compared,
    is_key,
    is_short,
    item_of,
    truth,
)


class Expressions(ABC):
    """The values of expressions; names, fields and calls are a subclass's. `_of_NODE` gives that of
    a node of the syntax tree."""

    limits: Limits

    @abstractmethod
    def assign(self, target: ast.expr, value: Any) -> None:
        """Give a value to a name, a field or an entry."""

    @abstractmethod
    def inner(self) -> Expressions:
        """The same names, for others within."""

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; a Record where it is not known."""
        self.limits.step()
        with self.limits.deeper():
            return self._value(node)

    def _value(self, node: ast.expr) -> Any:
        handler = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        return UNKNOWN if handler is None else handler(node)

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        return [self.value(part) for part in node.elts if not isinstance(part, ast.Starred)]

    _of_set = _of_list

    def _of_tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._of_list(node))

    def _of_dict(self, node: ast.Dict) -> Any:
        return self._table(node.keys, node.values)

    def _of_listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        one = len(node.generators) == 1
        return self._listed(node.elt, node.generators[0]) if one else UNKNOWN

    _of_generatorexp = _of_listcomp

    def _of_ifexp(self, node: ast.IfExp) -> Any:
        met = truth(self.value(node.test))
        return UNKNOWN if met is None else self.value(node.body if met else node.orelse)

    def _of_subscript(self, node: ast.Subscript) -> Any:
        return item_of(self.value(node.value), self.value(node.slice))

    def _of_binop(self, node: ast.BinOp) -> Any:
        return calculated(type(node.op), self.value(node.left), self.value(node.right))

    def _of_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            met = truth(value)
            return UNKNOWN if met is None else not met
        is_number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return -value if is_number else UNKNOWN

    def _of_compare(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            return UNKNOWN
        right = self.value(node.comparators[0])
        return compared(type(node.ops[0]), self.value(node.left), right)

    def _of_boolop(self, node: ast.BoolOp) -> Any:
        is_or = isinstance(node.op, ast.Or)
        result: Any = UNKNOWN
        for part in node.values:
            result = self.value(part)
            met = truth(result)
            if met is None or met == is_or:
                return result
        return result

    def _listed(self, element: ast.expr, made: ast.comprehension) -> Any:
        """`[f(x) for x in listed if test]`."""
        source = self.value(made.iter)
        if not is_short(source):
            return UNKNOWN
        inner, found = self.inner(), []
        for item in source:
            inner.assign(made.target, item)
            met = [truth(inner.value(test)) for test in made.ifs]
            if None in met:
                return UNKNOWN
            if all(met):
                found.append(inner.value(element))
        return found

    def _table(self, keys: list[ast.expr | None], values: list[ast.expr]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            result = self.value(value)
            if key is None:
                found |= result if isinstance(result, dict) else {}
                continue
            name = self.value(key)
            if isinstance(name, str | int) or is_key(name):
                found[name] = result
        return found
