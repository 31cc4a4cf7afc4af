"""Operations on values as LLVM instructions, which `planner.cost._translate` puts together."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from planner.cost._types import (
    FLOAT,
    INFINITY,
    TRUTH,
    WHOLE,
    Array,
    Group,
    Type,
    UnplannedError,
    Value,
    float_text,
    grouped,
    items_of,
    known_number,
    parts_of,
    sizes_of,
    unified,
)

_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_WHOLES = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and"}
_COMPARED = {
    ast.Eq: ("oeq", "eq"), ast.NotEq: ("une", "ne"), ast.Lt: ("olt", "slt"),
    ast.LtE: ("ole", "sle"), ast.Gt: ("ogt", "sgt"), ast.GtE: ("oge", "sge"),
}  # fmt: skip
_CONVERSIONS = {float: FLOAT, int: WHOLE, bool: TRUTH}
# Functions of one number, with LLVM's names for them.
_INTRINSICS = {
    math.exp: "exp", math.log: "log", math.log2: "log2", math.sqrt: "sqrt", abs: "fabs",
    np.floor: "floor", math.floor: "floor", math.ceil: "ceil",
}  # fmt: skip
DECLARED = "\n".join(
    [
        *sorted(f"declare double @llvm.{name}.f64(double)" for name in {*_INTRINSICS.values()}),
        "declare double @llvm.pow.f64(double, double)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare ptr @calloc(i64, i64)",
        "declare void @free(ptr)",
    ]
)
"""Declarations of the functions that instructions call."""


class Operations:
    """Collects the lines of a function, and writes instructions on values."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again with an empty function."""
        self.entry: list[str] = []
        self.lines: list[str] = []
        self._number = 0
        self.at, self.open = "body", True
        # Names of whole numbers that are known to be 0 or more.
        self.counts: set[str] = set()

    # --- lines ------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def make(self, line: str) -> str:
        """Add a line that makes a value, and return the value's name."""
        self._number += 1
        self.lines.append(f"%v{self._number} = {line}")
        return f"%v{self._number}"

    def room(self, kind: str) -> str:
        """Reserve memory for a value until the function ends, and return its address."""
        self._number += 1
        self.entry.append(f"%p{self._number} = alloca {kind}")
        return f"%p{self._number}"

    def labels(self, *names: str) -> list[str]:
        """New labels that start with these names."""
        self._number += 1
        return [f"{name}{self._number}" for name in names]

    def start(self, label: str) -> None:
        """Continue at a label."""
        self.lines.append(f"{label}:")
        self.at, self.open = label, True

    def end(self, line: str) -> None:
        """Add the last line of a block."""
        self.lines.append(line)
        self.open = False

    def go_on(self, label: str) -> None:
        """Jump to a label, unless the block has already ended."""
        if self.open:
            self.end(f"br label %{label}")

    # --- numbers ----------------------------------------------------------------------------

    def converted(self, value: Value, kind: Type) -> Value:
        """A value converted to a wider type, or to its truth."""
        if value.type == kind:
            return value
        if isinstance(value.type, Array) and isinstance(kind, Array):
            sizes = zip(sizes_of(value), kind.sizes, strict=True)
            return Value(kind, (value.parts[0], *(size for size, known in sizes if known is None)))
        if isinstance(value.type, Group) and isinstance(kind, Group):
            pairs = zip(items_of(value), kind.items, strict=True)
            return grouped([self.converted(item, to) for item, to in pairs], kind.names)
        if not isinstance(value.type, str) or not isinstance(kind, str):
            raise UnplannedError(f"{value.type} cannot be converted to {kind}")
        return Value(kind, (self._number_as(value.type, value.parts[0], kind),))

    def _number_as(self, held: str, part: str, kind: str) -> str:
        known = known_number(part)
        if known is not None:
            if kind == FLOAT:
                return float_text(float(known))
            return str(int(known != 0)) if kind == TRUTH else str(int(known))
        if kind == TRUTH:
            if held == FLOAT:
                return self.make(f"fcmp une double {part}, {float_text(0.0)}")
            return self.make(f"icmp ne i64 {part}, 0")
        steps = {
            (TRUTH, WHOLE): "zext", (TRUTH, FLOAT): "uitofp", (WHOLE, FLOAT): "sitofp",
            (FLOAT, WHOLE): "fptosi",
        }  # fmt: skip
        return self.make(f"{steps[held, kind]} {held} {part} to {kind}")

    def alike(self, *values: Value) -> tuple[str, list[str]]:
        """(type, operands) of numbers converted to their common type: int64 or float64."""
        kind: Type = WHOLE
        for value in values:
            kind = unified(kind, value.type)
        return str(kind), [self.converted(value, kind).parts[0] for value in values]

    def whole(self, operation: str, one: str, other: str) -> str:
        """Sum or product of integers, for addresses."""
        a, b = known_number(one), known_number(other)
        if a is not None and b is not None:
            return str(int(a + b if operation == "add" else a * b))
        neutral = 0 if operation == "add" else 1
        if neutral in (a, b):
            return other if a == neutral else one
        if operation == "mul" and 0 in (a, b):
            return "0"
        found = self.make(f"{operation} nsw i64 {one}, {other}")
        if self.is_count(one) and self.is_count(other):
            self.counts.add(found)
        return found

    def is_count(self, part: str) -> bool:
        """Whether an integer is known to be 0 or more."""
        known = known_number(part)
        return part in self.counts or (known is not None and known >= 0)

    def from_start(self, index: str, size: str) -> str:
        """An index counted from the start; a negative one counts from the end, as in Python."""
        if self.is_count(index):
            return index
        from_end = self.whole("add", index, size)
        if known_number(index) is not None:
            return from_end
        below = self.make(f"icmp slt i64 {index}, 0")
        return self.make(f"select i1 {below}, i64 {from_end}, i64 {index}")

    def within(self, number: str, most: str) -> str:
        """An integer limited to the range 0 to `most`."""
        limits = Value(WHOLE, ("0",)), Value(WHOLE, (most,))
        (found,) = self._extreme("olt", [Value(WHOLE, (number,)), limits[1]]).parts
        if not self.is_count(number):
            (found,) = self._extreme("ogt", [Value(WHOLE, (found,)), limits[0]]).parts
        self.counts.add(found)
        return found

    def binary(self, operator: ast.operator, left: Value, right: Value) -> Value:
        """An operation on two numbers."""
        which = type(operator)
        if which is ast.Div:
            left, right = self.converted(left, FLOAT), self.converted(right, FLOAT)
        kind, (a, b) = self.alike(left, right)
        if which in (ast.Mod, ast.FloorDiv):
            return Value(kind, (self._divided(kind, a, b)[which is ast.Mod],))
        if kind == WHOLE and which in _WHOLES:
            return Value(kind, (self._of_wholes(_WHOLES[which], a, b),))
        if kind == FLOAT and which in _FLOATS:
            return Value(kind, (self.make(f"{_FLOATS[which]} double {a}, {b}"),))
        if kind == FLOAT and which is ast.Pow and right.type == FLOAT:
            call = f"call double @llvm.pow.f64(double {a}, double {b})"
            return Value(kind, (self.make(call),))
        raise UnplannedError(f"{which.__name__} of {left.type} and {right.type} is unknown")

    def _of_wholes(self, operation: str, a: str, b: str) -> str:
        if operation in ("add", "mul"):
            return self.whole(operation, a, b)
        known = known_number(a), known_number(b)
        if operation == "sub" and None not in known:
            return str(int(a) - int(b))
        return self.make(f"{operation} i64 {a}, {b}")

    def _divided(self, kind: str, a: str, b: str) -> tuple[str, str]:
        """(quotient rounded down, remainder with the sign of the divisor)."""
        if kind == WHOLE:
            rest = self.make(f"srem i64 {a}, {b}")
            signs = self.make(f"xor i64 {rest}, {b}")
            apart = self.make(f"icmp slt i64 {signs}, 0")
            odd = self.both(apart, self.make(f"icmp ne i64 {rest}, 0"))
            quotient = self.make(f"sdiv i64 {a}, {b}")
            less = self.make(f"sub i64 {quotient}, {self.make(f'zext i1 {odd} to i64')}")
            more = self.make(f"add i64 {rest}, {b}")
            return less, self.make(f"select i1 {odd}, i64 {more}, i64 {rest}")
        zero = float_text(0.0)
        rest = self.make(f"frem double {a}, {b}")
        apart = self.make(f"icmp ne i1 {self._below(rest)}, {self._below(b)}")
        odd = self.both(apart, self.make(f"fcmp une double {rest}, {zero}"))
        whole = self.make(f"fsub double {a}, {rest}")
        quotient = self.make(f"fdiv double {whole}, {b}")
        less = self.make(f"fsub double {quotient}, {float_text(1.0)}")
        quotient = self.make(f"select i1 {odd}, double {less}, double {quotient}")
        near = self.make(f"fadd double {quotient}, {float_text(0.5)}")
        floor = self.make(f"call double @llvm.floor.f64(double {near})")
        more = self.make(f"fadd double {rest}, {b}")
        return floor, self.make(f"select i1 {odd}, double {more}, double {rest}")

    def _below(self, part: str) -> str:
        return self.make(f"fcmp olt double {part}, {float_text(0.0)}")

    def minus(self, value: Value) -> Value:
        """A number with the opposite sign."""
        kind, (part,) = self.alike(value)
        known = known_number(part)
        if known is not None:
            return Value(kind, (float_text(-known) if kind == FLOAT else str(int(-known)),))
        line = f"fneg double {part}" if kind == FLOAT else f"sub i64 0, {part}"
        return Value(kind, (self.make(line),))

    # --- truth ------------------------------------------------------------------------------

    def compared(self, operator: ast.cmpop, left: Value, right: Value) -> str:
        """Whether a comparison is true."""
        kind, (a, b) = self.alike(left, right)
        if type(operator) not in _COMPARED:
            raise UnplannedError(f"the comparison {type(operator).__name__} is unknown")
        of_floats, of_wholes = _COMPARED[type(operator)]
        if kind == FLOAT:
            return self.make(f"fcmp {of_floats} double {a}, {b}")
        return self.make(f"icmp {of_wholes} i64 {a}, {b}")

    def both(self, one: str, other: str) -> str:
        """Whether both are true."""
        if "0" in (one, other):
            return "0"
        if "1" in (one, other):
            return other if one == "1" else one
        return self.make(f"and i1 {one}, {other}")

    def either(self, one: str, other: str) -> str:
        """Whether at least one is true."""
        if "1" in (one, other):
            return "1"
        if "0" in (one, other):
            return other if one == "0" else one
        return self.make(f"or i1 {one}, {other}")

    def negated(self, truth: str) -> str:
        """The opposite of a truth value."""
        if truth in ("0", "1"):
            return "1" if truth == "0" else "0"
        return self.make(f"xor i1 {truth}, true")

    def selected(self, test: str, one: Value, two: Value) -> Value:
        """One of two values, both of which have been computed."""
        kind = unified(one.type, two.type)
        pairs = zip(
            parts_of(kind),
            self.converted(one, kind).parts,
            self.converted(two, kind).parts,
            strict=True,
        )
        parts = [
            a if a == b else self.make(f"select i1 {test}, {each} {a}, {each} {b}")
            for each, a, b in pairs
        ]
        return Value(kind, tuple(parts))

    # --- memory and calls -------------------------------------------------------------------

    def moved(self, address: str, offset: int) -> str:
        """An address plus an offset in bytes."""
        if offset == 0:
            return address
        return self.make(f"getelementptr inbounds i8, ptr {address}, i64 {offset}")

    def item_at(self, address: str, index: str, size: int) -> str:
        """The address of an item of an array whose items have `size` bytes."""
        if index == "0":
            return address
        return self.make(f"getelementptr inbounds [{size} x i8], ptr {address}, i64 {index}")

    def copy(self, address: str, source: str, size: int) -> None:
        """Copy a record."""
        to, of = f"ptr align 8 {address}", f"ptr align 8 {source}"
        self.say(f"call void @llvm.memcpy.p0.p0.i64({to}, {of}, i64 {size}, i1 false)")

    def packed(self, result: str, value: Value) -> str:
        """The parts of a value as one LLVM structure."""
        found = "undef"
        for at, (kind, part) in enumerate(zip(parts_of(value.type), value.parts, strict=True)):
            found = self.make(f"insertvalue {result} {found}, {kind} {part}, {at}")
        return found

    def unpacked(self, kind: Type, result: str, found: str) -> Value:
        """The value in the structure that a call returned."""
        count = len(parts_of(kind))
        if count == 1:
            return Value(kind, (found,))
        parts = [self.make(f"extractvalue {result} {found}, {at}") for at in range(count)]
        return Value(kind, tuple(parts))

    def built_in(self, function: Any, values: Sequence[Value]) -> Value | None:
        """The result of a function of Python, `math` or numpy; None if this compiler does not know
        it."""
        one = values[0]
        if function in (min, max):
            return self._extreme("olt" if function is min else "ogt", values)
        if function in _CONVERSIONS:
            return self.converted(one, _CONVERSIONS[function])
        if function is len:
            count = len(one.type.items) if isinstance(one.type, Group) else sizes_of(one)[0]
            return Value(WHOLE, (str(count),))
        if function is sum:
            return reduce(lambda a, b: self.binary(ast.Add(), a, b), items_of(one))
        return self._of_float(function, self.converted(one, FLOAT).parts[0])

    def _of_float(self, function: Any, part: str) -> Value | None:
        if function is math.isinf:
            size = self.make(f"call double @llvm.fabs.f64(double {part})")
            return Value(TRUTH, (self.make(f"fcmp oeq double {size}, {INFINITY}"),))
        if function not in _INTRINSICS:
            return None
        call = f"call double @llvm.{_INTRINSICS[function]}.f64(double {part})"
        found = Value(FLOAT, (self.make(call),))
        return self.converted(found, WHOLE) if function in (math.floor, math.ceil) else found

    def _extreme(self, test: str, values: Sequence[Value]) -> Value:
        """`min` or `max`; the first one if several are equal, as in Python."""
        kind, parts = self.alike(*values)
        found = parts[0]
        for part in parts[1:]:
            compare = f"fcmp {test} double" if kind == FLOAT else f"icmp s{test[1:]} i64"
            closer = self.make(f"{compare} {part}, {found}")
            found = self.make(f"select i1 {closer}, {kind} {part}, {kind} {found}")
        return Value(kind, (found,))
