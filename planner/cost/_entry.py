"""Functions of the cost core that are compiled on their first call."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from inspect import signature
from threading import Lock
from typing import Any, Literal

import numpy as np

from planner.cost import _ordinary, _shipped
from planner.cost._jit import record, records
from planner.cost._machine_code import (
    Kind,
    cache_folder,
    callable_at,
    kind_of,
    loaded,
    read_code,
    write_code,
)
from planner.cost._types import UnplannedError
from planner.cost.light import light, light_records, write_back

# Names of the arguments that functions fill, as tables of records.
_OUTPUTS = ("out", "stages")

_LOADING = Lock()

Way = Literal["shipped", "translated", "numba"]
"""How a function runs: from the library that a wheel ships, or compiled by
`planner.cost._translate`, or by numba."""


class Entry:
    """A function of the core that is compiled on its first call. `tables` gives the row type of
    each table argument.

    It fills arrays that it is given, or returns a float. `plain` takes the same arguments and runs
    as Python.
    """

    def __init__(self, function: Callable[..., Any], **tables: np.dtype[Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        names = tuple(signature(function).parameters)
        self._rows = [tables.get(name) for name in names]
        self._outputs = [names.index(name) for name in _OUTPUTS if name in tables]
        self.functions: dict[tuple[Kind, ...], Callable[..., float]] = {}

    def __call__(self, *arguments: Any) -> Any:
        items = self._as_records(arguments)
        return self._function_for(items)(*items)

    def plain(self, *arguments: Any) -> Any:
        """Run the function as plain Python, on plain objects; a division by zero gives the same as
        in compiled code."""
        items = [
            light(value, row)
            if row is not None
            else light_records(value)
            if getattr(getattr(value, "dtype", None), "names", None)
            else value
            for value, row in zip(arguments, self._rows, strict=True)
        ]
        with np.errstate(all="ignore"):
            result = self.function(*items)
        for index in self._outputs:
            write_back(items[index], arguments[index])
        return result

    def compile_for(self, *arguments: Any) -> None:
        """Compile the function for arguments of these types, or load its machine code from the
        wheel or the cache, without running it."""
        self._function_for(self._as_records(arguments))

    def way(self) -> Way:
        """How this function runs here, now or once it is called: "shipped" (from the wheel's
        library), "translated" (compiled by our own compiler) or "numba"."""
        if _ordinary.is_asked():
            return "numba"
        if _shipped.has(self.__name__):
            return "shipped"
        kept = {path.name for path in cache_folder().glob(f"{self.__name__}-*")}
        return "numba" if kept == {f"{self.__name__}-{_ordinary.ORDINARY}"} else "translated"

    def is_on_disk(self) -> bool:
        """Whether machine code of the present sources is in the wheel or in the cache."""
        return _shipped.has(self.__name__) or any(cache_folder().glob(f"{self.__name__}-*"))

    def _function_for(self, items: list[Any]) -> Callable[..., float]:
        kinds = tuple(map(kind_of, items))
        if kinds not in self.functions:
            # Neither LLVM nor numba may be called from two threads at once.
            with _LOADING:
                if kinds not in self.functions:
                    self.functions[kinds] = self._compiled(kinds, items)
        return self.functions[kinds]

    def _compiled(self, kinds: tuple[Kind, ...], items: list[Any]) -> Callable[..., float]:
        """The function for arguments of these kinds: from the wheel's library if it is there;
        otherwise from our own machine code; compiled by numba if the user asks for that or our
        compiler cannot compile it."""
        name = self._kept_name(kinds)
        if _ordinary.is_asked():
            return self._ordinarily(items)
        if (address := _shipped.address(name)) is not None:
            return callable_at(address, kinds)
        try:
            return loaded(*self._machine_code(name, items), kinds)
        except UnplannedError as error:
            _ordinary.why.append(str(error).partition("\n")[0])
            return self._ordinarily(items)

    def _ordinarily(self, items: list[Any]) -> Callable[..., float]:
        found = _ordinary.ordinary(self.function, items)
        write_code(f"{self.__name__}-{_ordinary.ORDINARY}", "", b"")
        return found

    def _kept_name(self, kinds: tuple[Kind, ...]) -> str:
        """The file name in the cache of machine code for arguments of these kinds."""
        text = repr(
            [(kind[0].descr, kind[1]) if isinstance(kind, tuple) else kind for kind in kinds]
        )
        return f"{self.__name__}-{sha256(text.encode()).hexdigest()[:16]}"

    def _machine_code(self, name: str, items: list[Any]) -> tuple[str, bytes]:
        """(symbol, object file) of this name, from the cache or newly compiled."""
        found = read_code(name)
        if found is None:
            from planner.cost._llvm import machine_code

            symbol = f"planner_{name.replace('-', '_')}"
            found = symbol, machine_code(symbol, self.function, items)
            write_code(name, *found)
        return found

    def _as_records(self, arguments: tuple[Any, ...]) -> list[Any]:
        return [
            records(value, row) if row is not None else _as_record(value)
            for value, row in zip(arguments, self._rows, strict=True)
        ]


def _as_record(value: Any) -> Any:
    """An argument that is not a table of rows: a NamedTuple becomes a record, a bool an integer."""
    if hasattr(value, "_fields"):
        return record(value)
    if isinstance(value, np.ndarray):
        return value
    return float(value) if isinstance(value, float) else int(value)
