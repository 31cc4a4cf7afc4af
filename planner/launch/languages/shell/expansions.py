"""The shell's operations on a variable's value, such as `${NAME%.sh}`, and its arithmetic: whole
numbers of 64 bits, evaluated through Python's syntax tree."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping

from planner.launch.languages.text import HOLE, Text

# Longer values are data, not names.
_LONGEST_NAME = 1_000
_PART = re.compile(r"\s*(-?\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")


def edited(value: Text, operation: str) -> Text | None:
    """The value after an operation such as `%.sh`, `##*/`, `//a/b`, `^^` or `:2:3`; None if it is
    not supported.

    Replacement patterns are taken literally; wildcards are not supported in them.
    """
    if (
        len(value.value) > _LONGEST_NAME
        or HOLE in value.value
        or "$" in operation
        or "`" in operation
    ):
        return None
    sign, pattern = operation[:1], re.sub(r"[\"'\\]", "", operation[1:])
    if sign in ("%", "#"):
        twice = operation[1:2] == sign
        return _cut(value, pattern[twice:], at_end=sign == "%", longest=twice)
    if sign == "/":
        return _replaced(value, pattern)
    if operation in ("^^", ",,"):
        return Text.made(value.value.upper() if sign == "^" else value.value.lower())
    return _part(value, operation[1:]) if sign == ":" else None


def _cut(value: Text, pattern: str, *, at_end: bool, longest: bool) -> Text:
    """The value without its shortest or longest beginning, or end, that matches the pattern."""
    size = len(value.value)
    ends = range(size + 1) if longest == at_end else range(size, -1, -1)
    for at in ends:
        part = value.value[at:] if at_end else value.value[:at]
        if fnmatch.fnmatchcase(part, pattern):
            return value[:at] if at_end else value[at:]
    return value


def _replaced(value: Text, pattern: str) -> Text | None:
    every = pattern.startswith("/")
    old, _, new = pattern[every:].partition("/")
    if not old or re.search(r"[*?\[\]#%]", old):
        return None
    return Text.made(value.value.replace(old, new, -1 if every else 1))


def _part(value: Text, range_: str) -> Text | None:
    """The part of a value that `:2`, `:2:3` or `: -2` selects."""
    match = _PART.fullmatch(range_)
    if match is None:
        return None
    first, size = int(match[1]), len(value.value)
    first = max(0, size + first) if first < 0 else first
    return value[first : size if match[2] is None else first + int(match[2])]


# --- arithmetic -----------------------------------------------------------------------------------

# Longer expressions are not arithmetic that a person writes.
_LONGEST = 2_000
_BITS = 64
_NAME = re.compile(r"\$\{?(\w+)\}?")


def evaluate_arithmetic(text: str, values: Mapping[str, str]) -> int | None:
    """The value of an expression such as `TP * PP + 2`, with whole numbers for its names; None if
    it cannot be evaluated."""
    if len(text) > _LONGEST:
        return None
    # `$2` is an argument of a function, not the number 2: rename it `_2` for Python.
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
    """Division as in the shell, rounded towards zero."""
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
    """The value of an expression, wrapped to 64 bits. LookupError or ValueError if it is not
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
