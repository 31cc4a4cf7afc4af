"""The cost core compiled by numba, if our own compiler cannot compile it.

`planner.cost._translate` knows the part of Python that the core uses, and `planner.cost._llvm`
works with today's LLVM. If a function uses more, or a later LLVM differs too much, the planner must
still work: the same functions then run under `numba.njit(cache=True)`. The figures are the same,
but compiling and starting take longer.

numba caches a function by its file only, and would not notice that a function it calls was edited.
So its cache is in the folder named by a hash of all sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import EnumMeta
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from planner.cost._jit import marked
from planner.cost._machine_code import cache_folder

# The environment variable that asks for numba, and its value.
ASKED, ORDINARY = "PLANNER_COMPILER", "numba"

why: list[str] = []
"""Why numba compiles the core; empty while it does not."""


def is_asked() -> bool:
    """Whether the user asked for numba, or this process has already had to use it."""
    if os.environ.get(ASKED) == ORDINARY and not why:
        why.append(f"{ASKED}={ORDINARY}")
    return bool(why)


def note() -> str:
    """A line that says that numba compiles the core, and why; empty if it does not."""
    if not why:
        return ""
    return (
        f"numba compiles the cost core ({why[0]}): this takes some minutes once and two seconds "
        "at each start; the figures are the same"
    )


def ordinary(function: Callable[..., Any], arguments: list[Any]) -> Callable[..., float]:
    """A function of the core compiled by numba, for the types of an entry's arguments."""
    import numba

    compiled = _twin(function)
    typeof: Any = numba.typeof
    compiled.compile(tuple(typeof(_plain(each)) for each in arguments))

    def call(*arguments: Any) -> float:
        result = compiled(*map(_plain, arguments))
        return 0.0 if result is None else float(result)

    return call


def _plain(argument: Any) -> Any:
    """An argument as numba takes it: an array without axes becomes a record."""
    without_axes = isinstance(argument, np.ndarray) and argument.ndim == 0
    return argument[()] if without_axes else argument


class TwinGlobals(dict[str, Any]):
    """Globals of a twin (`_twin`): those of the module, but marked functions are replaced by their
    twins and enumerations by modules of numbers."""

    def __init__(self, outer: dict[str, Any]) -> None:
        super().__init__(__name__=outer["__name__"], __builtins__=outer["__builtins__"])
        self._outer = outer

    def __missing__(self, name: str) -> Any:
        value = self._outer[name]
        if isinstance(value, FunctionType) and value in marked:
            value = _twin(value)
        elif isinstance(value, EnumMeta):
            value = _plain_numbers(value)
        self[name] = value
        return value


def _plain_numbers(codes: EnumMeta) -> ModuleType:
    """The members of an enumeration as integers. In numba each member has a type, so every function
    that takes one would be compiled once more."""
    numbers = ModuleType(codes.__name__)
    members: dict[str, int] = dict(codes.__members__)
    vars(numbers).update((name, int(member)) for name, member in members.items())
    return numbers


@cache
def _twin(function: FunctionType) -> Any:
    """The copy of a marked function that numba compiles; its machine code is kept on disk."""
    import numba

    numba.config.CACHE_DIR = str(cache_folder() / ORDINARY)  # type: ignore[attr-defined]
    same = FunctionType(
        function.__code__,
        TwinGlobals(function.__globals__),
        function.__name__,
        function.__defaults__,
    )
    same.__qualname__, same.__module__ = function.__qualname__, function.__module__
    njit: Any = numba.njit
    return njit(error_model="numpy", nogil=True, cache=True)(same)
