"""Marks for the cost core's functions, and the records that they take.

Every function of the core is plain Python and may be called as such: one configuration is costed in
milliseconds without a compiler, and tests call any function directly. `jit` only marks the
functions that may be compiled; an `Entry` (`planner.cost.compiled`) is one that a search calls for
thousands of candidates.

Why records: passing NamedTuples of many fields down a call tree costs a compiler minutes, while a
record of a structured array is one pointer. An entry turns the NamedTuples of `planner.cost.inputs`
and `planner.cost.tables` into records, and float64 tables into rows with named columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Row = Any
"""One record: a row whose columns are attributes. In plain Python a `numpy.record` or
NamedTuple."""
Rows = Any
"""An array of records."""

marked: set[Callable[..., Any]] = set()
"""Functions that may be compiled."""


def jit(function: Function) -> Function:
    """Mark a function that compiled code may call; it stays plain Python."""
    marked.add(function)
    return function


@lru_cache(maxsize=256, typed=True)
def record(inputs: tuple[Any, ...]) -> NDArray[Any]:
    """A NamedTuple of numbers as a record of the same field names. Ints become int64, and a tuple
    of NamedTuples becomes an array of records.

    The cache distinguishes types, because NamedTuples of different types are equal if their numbers
    are.
    """
    values = [
        [tuple(each) for each in value] if isinstance(value, tuple) else value for value in inputs
    ]
    return np.array(tuple(values), dtype=_record_type(inputs))


def _record_type(inputs: tuple[Any, ...]) -> np.dtype[Any]:
    """The record type with a NamedTuple's fields."""
    fields: list[Any] = []
    for name, value in zip(inputs._fields, inputs, strict=True):  # type: ignore[attr-defined]
        if isinstance(value, tuple):
            fields.append((name, _record_type(value[0]), (len(value),)))
        else:
            fields.append((name, "i8" if type(value) is int else "f8"))
    return np.dtype((np.record, fields))


def as_records(inputs: Sequence[tuple[Any, ...]]) -> NDArray[Any]:
    """NamedTuples of one type as an array of records."""
    return np.stack([record(one) for one in inputs])


def records(table: NDArray[np.float64], row: np.dtype[Any]) -> NDArray[Any]:
    """A float64 table, columns last, as an array of records that shares its memory. A single row
    becomes an array without axes."""
    flat = np.ascontiguousarray(table)
    return flat.view(row).reshape(flat.shape[:-1])


def rows(table: NDArray[np.float64], row: np.dtype[Any]) -> Rows:
    """The same as `records`, for plain Python: the columns of a single row are its attributes."""
    return records(table, row)[()]
