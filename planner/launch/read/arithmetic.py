"""Arithmetic of the shell, evaluated over a whitelist of Python's syntax tree."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # The shell divides towards zero.
    ast.FloorDiv: lambda one, two: abs(one) // abs(two) * (1 if one * two >= 0 else -1),
    ast.Mod: lambda one, two: abs(one) % abs(two) * (1 if one >= 0 else -1),
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
# Longer expressions are no sizes of a launch.
_LONGEST = 2_000
_BITS = 64


class _UnreadableError(Exception):
    """Something that is no arithmetic of whole numbers."""


def evaluate_arithmetic(text: str, values: Mapping[str, str]) -> int | None:
    """The value of `TP * PP + 2` with whole numbers for its names; None if it has none.

    Numbers have 64 bits, as the shell's.
    """
    if len(text) > _LONGEST:
        return None
    # An argument of a function, `$2`, is no number: Python takes it as the name `_2`.
    plain = re.sub(r"\$\{?(\w+)\}?", lambda match: re.sub(r"^(?=\d)", "_", match[1]), text)
    values = {re.sub(r"^(?=\d)", "_", name): value for name, value in values.items()}
    plain = re.sub(r"(?<![/])/(?![/])", "//", plain)
    plain = plain.replace("&&", " and ").replace("||", " or ")
    plain = re.sub(r"!(?!=)", " not ", plain)
    try:
        return int(_number(ast.parse(plain.strip(), mode="eval").body, values))
    except (_UnreadableError, ArithmeticError, SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):  # nested too deep
        return None


def _wrapped(number: int) -> int:
    """What 64 bits keep of a number."""
    half = 1 << (_BITS - 1)
    return (number + half) % (2 * half) - half


def _number(node: ast.expr, values: Mapping[str, str]) -> int:
    """The value of an expression whose operators are of the whitelist."""
    match node:
        case ast.Constant(value=int(number)):
            found = int(number)
        case ast.Name(id=name):
            found = int(values.get(name) or 0)
        case ast.UnaryOp(op=operator, operand=operand):
            number = _number(operand, values)
            found = -number if isinstance(operator, ast.USub) else int(not number)
        case ast.BoolOp(op=operator, values=parts):
            every = all if isinstance(operator, ast.And) else any
            found = int(every(_number(part, values) for part in parts))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            one, two = _number(left, values), _number(right, values)
            if two < 0:
                raise _UnreadableError
            found = pow(one, two, 1 << _BITS)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            found = _BINARY[type(operator)](_number(left, values), _number(right, values))
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _COMPARISONS
        ):
            found = _COMPARISONS[type(operator)](_number(left, values), _number(right, values))
        case _:
            raise _UnreadableError
    return _wrapped(found)
