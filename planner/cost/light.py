"""Records as plain Python objects, for costing single configurations without a compiler.

Reading a field of a `numpy.record` takes microseconds, of a plain object some 30 nanoseconds;
costing one configuration reads a million fields.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LightRows(list[Any]):
    """The rows of a table as plain objects, with the array operations that the core uses."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows; the core uses no other axis."""
        return (len(self),)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return LightRows(found) if type(index) is slice else found


def light(table: NDArray[np.float64], row: np.dtype[Any]) -> Any:
    """A float64 table, columns last, as rows of plain objects; a single row as one object."""
    places = []
    for name, (kind, offset, *_) in (row.fields or {}).items():
        places.append((name, offset // 8, kind.shape[0] if kind.shape else 0))
    return _light(np.asarray(table).tolist(), places, np.ndim(table))


def _light(values: list[Any], places: list[tuple[str, int, int]], axes: int) -> Any:
    if axes > 1:
        return LightRows(_light(each, places, axes - 1) for each in values)
    return SimpleNamespace(
        **{
            name: values[first : first + width] if width else values[first]
            for name, first, width in places
        }
    )


def light_records(records: NDArray[Any]) -> LightRows:
    """An array of records of numbers as rows of plain objects; arrays in them become lists."""
    if records.ndim > 1:
        return LightRows(map(light_records, records))
    names = records.dtype.names or ()
    return LightRows(
        SimpleNamespace(**dict(zip(names, map(_light_field, values), strict=True)))
        for values in records.tolist()
    )


def _light_field(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return light_records(value) if value.dtype.names else value.tolist()


def write_back(rows: Any, table: NDArray[np.float64]) -> None:
    """Copy the values that a function wrote into rows of plain objects back to their table."""
    table[...] = _values(rows)


def _values(rows: Any) -> list[Any]:
    if isinstance(rows, LightRows):
        return [_values(row) for row in rows]
    flat: list[float] = []
    for value in vars(rows).values():
        flat += value if isinstance(value, list) else [value]
    return flat
