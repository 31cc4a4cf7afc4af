"""Arithmetic of the shell: whole numbers of 64 bits, evaluated over Python's syntax tree."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

# Longer expressions are no numbers that a person writes.
_LONGEST = 2_000
_BITS = 64
_NAME = re.compile(r"\$\{?(\w+)\}?")


def evaluate_arithmetic(text: str, values: Mapping[str, str]) -> int | None:
    """The value of `TP * PP + 2` with whole numbers for its names; None if it has none."""
    if len(text) > _LONGEST:
        return None
    # An argument of a function, `$2`, is no number: Python takes it as the name `_2`.
    plain = _NAME.sub(lambda match: _as_name(match[1]), text)
    plain = re.sub(r"(?<!/)/(?!/)", "//", plain)
    plain = plain.replace("&&", " and ").replace("||", " or ")
    plain = re.sub(r"!(?!=)", " not ", plain)
    named = {_as_name(name): value for name, value in values.items()}
    try:
        return int(_number(ast.parse(plain.strip(), mode="eval").body, named))
    except (ArithmeticError, LookupError, SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):  # nested too deep
        return None


def _as_name(name: str) -> str:
    return f"_{name}" if name[:1].isdecimal() else name


def _divided(one: int, two: int) -> int:
    """The shell divides towards zero."""
    return abs(one) // abs(two) * (1 if one * two >= 0 else -1)


def _power(one: int, two: int) -> int:
    if two < 0:
        raise ValueError(f"a power of {two}")
    return pow(one, two, 1 << _BITS)


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: _power,
    ast.FloorDiv: _divided,
    ast.Mod: lambda one, two: abs(one) % abs(two) * (1 if one >= 0 else -1),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def _number(node: ast.expr, values: Mapping[str, str]) -> int:
    """The value of an expression as 64 bits keep it. LookupError and ValueError for anything but
    arithmetic of whole numbers."""
    match node:
        case ast.Constant(value=int(number)):
            found = int(number)
        case ast.Name(id=name):
            found = int(values.get(name) or 0)
        case ast.UnaryOp(op=sign, operand=operand):
            number = _number(operand, values)
            found = -number if isinstance(sign, ast.USub) else int(not number)
        case ast.BoolOp(op=joined, values=parts):
            every = all if isinstance(joined, ast.And) else any
            found = int(every(_number(part, values) for part in parts))
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ):
            found = _OPERATORS[type(sign)](_number(left, values), _number(right, values))
        case _:
            raise ValueError(f"{type(node).__name__} is no arithmetic")
    half = 1 << (_BITS - 1)
    return (found + half) % (2 * half) - half
