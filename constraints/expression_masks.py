"""Which rows of some columns obey a condition: as Python would say of each row by itself."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from constraints.expression import LARGEST_INTEGER, Condition, names_in, power_value
from constraints.numbers import IntArray, Mask

_COMPARE: dict[type[ast.cmpop], Callable[[IntArray, IntArray], Mask]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPUTE: dict[type[ast.operator], Callable[[IntArray, IntArray], IntArray]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def condition_mask(condition: Condition, values: Mapping[str, IntArray]) -> Mask:
    """True in the rows that obey `condition`; `values`: int64, equally long, name to column.

    `and`, `or` and chains stop early in each row as Python does, so that `pp > 1 and
    layers % (pp - 1) == 0` never divides by zero. ExpressionError if a row that is computed
    divides by zero or leaves the 64-bit integers.
    """
    rows = len(next(iter(values.values())))
    return _Rows(condition, values).condition(condition.tree, np.arange(rows))


def number_values(condition: Condition, node: ast.expr, values: Mapping[str, IntArray]) -> IntArray:
    """One part of a condition that is a number, in every row."""
    rows = len(next(iter(values.values())))
    return _Rows(condition, values).number(node, np.arange(rows))


class _Rows:
    """Evaluates parts of one condition on some of the rows (`rows`: their indices)."""

    def __init__(self, condition: Condition, values: Mapping[str, IntArray]) -> None:
        self.whole, self.values = condition, values

    def condition(self, node: ast.expr, rows: IntArray) -> Mask:
        """Truth in each of the rows."""
        match node:
            case ast.UnaryOp():
                return np.logical_not(self.condition(node.operand, rows))
            case ast.BoolOp():
                return self._joined(node, rows)
            case ast.Compare():
                return self._compared(node, rows)
        raise TypeError(f"{type(node).__name__} is no condition")

    def _joined(self, node: ast.BoolOp, rows: IntArray) -> Mask:
        """and, or: later parts only where the earlier ones leave it open."""
        open_value = isinstance(node.op, ast.And)
        mask = np.full(len(rows), open_value)
        for part in node.values:
            undecided = np.flatnonzero(mask == open_value)
            mask[undecided] = self.condition(part, rows[undecided])
        return mask

    def _compared(self, node: ast.Compare, rows: IntArray) -> Mask:
        """A chain: later comparisons only where the earlier ones hold."""
        holds = np.arange(len(rows))
        left = self.number(node.left, rows)
        for compare, side in zip(node.ops, node.comparators, strict=True):
            row = rows[holds]
            if isinstance(compare, ast.In | ast.NotIn):
                right, obeyed = left, self._within(left, side, row)
                obeyed = obeyed if isinstance(compare, ast.In) else ~obeyed
            else:
                right = self.number(side, row)
                obeyed = _COMPARE[type(compare)](left, right)
            holds, left = holds[obeyed], right[obeyed]
        mask = np.zeros(len(rows), dtype=np.bool_)
        mask[holds] = True
        return mask

    def _within(self, left: IntArray, side: ast.expr, rows: IntArray) -> Mask:
        elements = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else []
        mask = np.zeros(len(rows), dtype=np.bool_)
        for element in elements:
            mask |= left == self.number(element, rows)
        return mask

    def number(self, node: ast.expr, rows: IntArray) -> IntArray:
        """Value in each of the rows."""
        match node:
            case ast.Constant(value=int(written)):
                return np.full(len(rows), written, dtype=np.int64)
            case ast.Name():
                return self.values[node.id][rows]
            case ast.UnaryOp():
                value = self.number(node.operand, rows)
                return -value if isinstance(node.op, ast.USub) else value
            case ast.BinOp(op=ast.Pow()):
                return np.full(len(rows), power_value(node), dtype=np.int64)
            case ast.BinOp():
                return self._computed(node, rows)
        raise TypeError(f"{type(node).__name__} is no number")

    def _computed(self, node: ast.BinOp, rows: IntArray) -> IntArray:
        left, right = self.number(node.left, rows), self.number(node.right, rows)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            self._demand_divisor(node.right, right, rows)
            return _COMPUTE[type(node.op)](left, right)
        compute = _COMPUTE[type(node.op)]
        if _stays_small(left, right, node.op):
            return compute(left, right)
        exact: Any = compute(left.astype(object), right.astype(object))
        if max(abs(value) for value in exact) > LARGEST_INTEGER:
            raise self.whole.error(
                node, "this exceeds 64-bit integers in some configuration; compare smaller numbers"
            )
        return np.array(exact, dtype=np.int64)

    def _demand_divisor(self, node: ast.expr, divisor: IntArray, rows: IntArray) -> None:
        zero = np.flatnonzero(divisor == 0)
        if not len(zero):
            return
        row = int(rows[zero[0]])
        where = ", ".join(f"{name} = {self.values[name][row]}" for name in names_in(node))
        part = ast.unparse(node)
        guard = f"; guard it: {part} != 0 and ..." if where else ""
        raise self.whole.error(
            node, "divides by zero" + (f" where {where}" if where else "") + guard
        )


def _stays_small(left: IntArray, right: IntArray, operation: ast.operator) -> bool:
    """Whether no combination of the extremes can leave the 64-bit integers."""
    if not len(left):
        return True
    sizes = [max(abs(int(item.min())), abs(int(item.max()))) for item in (left, right)]
    largest = sizes[0] * sizes[1] if isinstance(operation, ast.Mult) else sum(sizes)
    return largest <= LARGEST_INTEGER
