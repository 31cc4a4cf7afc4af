"""Types and values of the cost core, for the compiler in `planner.cost._translate`.

The core is written in a small part of Python: float64 numbers, int64 numbers, bools, records
(`planner.cost._jit`), arrays of these in C order, and tuples. In LLVM a value consists of parts:
numbers and addresses.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

FLOAT, WHOLE, TRUTH = "double", "i64", "i1"
"""LLVM's names of the scalar types."""
_WIDER = (TRUTH, WHOLE, FLOAT)


class UnplannedError(Exception):
    """This compiler does not know a construct in the core, or a feature of LLVM."""


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """A record, represented by its address. `fields`: offset in bytes and type of each field."""

    size: int
    fields: dict[str, tuple[int, Type]]


@dataclass(frozen=True)
class Array:
    """An array in C order: its address, then each of its `sizes` that is unknown at translation
    (None)."""

    item: str | Record
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class Group:
    """A tuple. `names`: its fields, if it is a NamedTuple."""

    items: tuple[Type, ...]
    names: tuple[str, ...] = ()


Type = str | Record | Array | Group


@dataclass(frozen=True)
class Value:
    """A value. Its parts are constants, or names in LLVM's text."""

    type: Type
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """An object known at translation: a module, a function, a class or an enumeration."""

    it: Any


@cache
def type_of(dtype: np.dtype[Any]) -> Type:
    """The type of a numpy number or record, or of a record's field that contains several
    numbers."""
    if dtype.subdtype is not None:
        item = type_of(dtype.subdtype[0])
        if isinstance(item, str | Record):
            return Array(item, dtype.subdtype[1])
    if dtype.fields is not None:
        fields = {name: (place[1], type_of(place[0])) for name, place in dtype.fields.items()}
        return Record(dtype.itemsize, fields)
    scalars = {"f8": FLOAT, "i8": WHOLE}
    if dtype.str[1:] not in scalars:
        raise UnplannedError(f"numbers of type {dtype} are unknown")
    return scalars[dtype.str[1:]]


@cache
def parts_of(kind: Type) -> tuple[str, ...]:
    """The LLVM types of a value's parts."""
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, Group):
        return tuple(part for item in kind.items for part in parts_of(item))
    open_sizes = kind.sizes.count(None) if isinstance(kind, Array) else 0
    return ("ptr", *open_sizes * (WHOLE,))


def unified(one: Type, other: Type) -> Type:
    """The narrowest type that can represent values of both types."""
    if one == other:
        return one
    if isinstance(one, str) and isinstance(other, str):
        return max(one, other, key=_WIDER.index)
    if isinstance(one, Array) and isinstance(other, Array) and _alike(one, other):
        pairs = zip(one.sizes, other.sizes, strict=True)
        return Array(one.item, tuple(a if a == b else None for a, b in pairs))
    if isinstance(one, Group) and isinstance(other, Group) and len(one.items) == len(other.items):
        items = tuple(unified(a, b) for a, b in zip(one.items, other.items, strict=True))
        return Group(items, one.names or other.names)
    raise UnplannedError(f"the same name stands for {one} and for {other}")


def _alike(one: Array, other: Array) -> bool:
    return (one.item, len(one.sizes)) == (other.item, len(other.sizes))


def constant(value: Any) -> Value | Known:
    """A constant of a module or of the code: a value if it is a number or a tuple of numbers,
    otherwise the object."""
    if isinstance(value, bool | np.bool_):
        return Value(TRUTH, (str(int(value)),))
    if isinstance(value, int | np.integer):
        return Value(WHOLE, (str(int(value)),))
    if isinstance(value, float):
        return Value(FLOAT, (float_text(value),))
    if isinstance(value, tuple):
        items = [constant(each) for each in value]
        known = [each for each in items if isinstance(each, Value)]
        if len(known) == len(items):
            return grouped(known, getattr(value, "_fields", ()))
    return Known(value)


def grouped(items: Sequence[Value], names: tuple[str, ...] = ()) -> Value:
    """The tuple of some values."""
    parts = tuple(part for item in items for part in item.parts)
    return Value(Group(tuple(item.type for item in items), names), parts)


def items_of(value: Value) -> list[Value]:
    """The values in a tuple."""
    if not isinstance(value.type, Group):
        raise UnplannedError(f"{value.type} has no items")
    items, first = [], 0
    for item in value.type.items:
        after = first + len(parts_of(item))
        items.append(Value(item, value.parts[first:after]))
        first = after
    return items


def sizes_of(array: Value) -> list[str]:
    """The size of each axis of an array."""
    if not isinstance(array.type, Array):
        raise UnplannedError(f"{array.type} has no sizes")
    open_sizes = iter(array.parts[1:])
    return [next(open_sizes) if size is None else str(size) for size in array.type.sizes]


def float_text(value: float) -> str:
    """A float64 number in the notation that LLVM reads without rounding."""
    return "0x" + struct.pack(">d", value).hex().upper()


def size_of(item: str | Record) -> int:
    """Size in bytes of an item of an array."""
    return item.size if isinstance(item, Record) else 8


def known_number(part: str) -> float | None:
    """The number that a part stands for; None if it is known only when the code runs."""
    if part.startswith("%"):
        return None
    if part.startswith("0x"):
        (value,) = struct.unpack(">d", bytes.fromhex(part[2:]))
        return float(value)
    return int(part)


INFINITY = float_text(math.inf)
