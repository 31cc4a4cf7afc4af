"""What the shell makes of a value inside `${...}`, what `printf` prints, and arithmetic, evaluated
over a whitelist of Python's syntax tree."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from planner.launch.languages.text import HOLE, Text, digits, join

# Longer values are data, not settings of a launch.
_LONGEST = 1_000
_LENGTH = re.compile(r"\s*(-?\d{1,9})\s*(?::\s*(\d{1,9})\s*)?")
_FORMATS = re.compile(r"%(?:%|0?(\d{0,3})([sd]))|\\n")


def edited(value: Text, operation: str) -> Text | None:
    """`%.sh`, `##*/`, `//a/b`, `^^`, `:2:3` behind a variable's name; None beyond reading.

    A pattern of a replacement is taken as it stands, without wildcards.
    """
    if len(value.value) > _LONGEST or HOLE in value.value or "$" in operation or "`" in operation:
        return None
    sign, pattern = operation[:1], re.sub(r"[\"'\\]", "", operation[1:])
    if sign in ("%", "#"):
        twice = operation[1:2] == sign
        return _cut(value, pattern[1:] if twice else pattern, at_end=sign == "%", longest=twice)
    if sign == "/":
        return _replaced(value, pattern)
    if operation in ("^^", ",,"):
        changed = value.value.upper() if sign == "^" else value.value.lower()
        return Text.made(changed)
    return _part(value, operation[1:]) if sign == ":" else None


def _cut(value: Text, pattern: str, *, at_end: bool, longest: bool) -> Text:
    """Without the shortest or longest end (or start) that matches."""
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
    """`:2`, `:2:3`, `: -2`."""
    match = _LENGTH.fullmatch(range_)
    if match is None:
        return None
    first, size = int(match[1]), len(value.value)
    first = max(0, size + first) if first < 0 else first
    return value[first : size if match[2] is None else first + int(match[2])]


def formatted(words: Sequence[Text]) -> Text | None:
    """What `printf FORMAT ARGUMENTS` prints; None where reading cannot tell.

    Strings and whole numbers; the format is used once.
    """
    if not words or HOLE in words[0].value or "%" in _FORMATS.sub("", words[0].value):
        return None
    pieces = list(_pieces(words[0], iter(words[1:])))
    known = [piece for piece in pieces if piece is not None]
    return join(known) if len(known) == len(pieces) else None


def _pieces(form: Text, given: Iterator[Text]) -> Iterator[Text | None]:
    places = [(match.start(), match.end()) for match in _FORMATS.finditer(form.value)]
    for (_, end), (start, after) in pairwise([(0, 0), *places, (len(form.value),) * 2]):
        yield form[end:start]
        if after > start:
            yield _piece(form.value[start:after], given)


def _piece(conversion: str, given: Iterator[Text]) -> Text | None:
    if conversion in ("\\n", "%%"):
        return Text.made("\n" if conversion == "\\n" else "%")
    word = next(given, Text(""))
    match = _FORMATS.fullmatch(conversion)
    width = digits(match[1] or "0") if match else 0
    if conversion.endswith("s"):
        return word if not width else None
    number = digits(word.value)
    filled = "0" if conversion.startswith("%0") else " "
    return None if number is None else Text.made(str(number).rjust(width or 0, filled))


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
_LONGEST_SUM = 2_000
_BITS = 64


class _UnreadableError(Exception):
    """Something that is no arithmetic of whole numbers."""


def evaluate_arithmetic(text: str, values: Mapping[str, str]) -> int | None:
    """The value of `TP * PP + 2` with whole numbers for its names; None if it has none.

    Numbers have 64 bits, as the shell's.
    """
    if len(text) > _LONGEST_SUM:
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
