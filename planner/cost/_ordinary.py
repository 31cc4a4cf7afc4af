"""The cost core as numba compiles it, where our own compiler cannot.

`planner.cost._translate` knows as much of Python as the core needs, and `planner.cost._llvm` takes
an LLVM of today. A function that uses more, or an LLVM that is too different, must not mean that
nothing works: then the same functions run under `numba.njit(cache=True)`, with the same figures,
slower to compile and to start.

numba keeps code by the file of a function alone, and would not see that a function that it calls
was edited; so its cache lies in the folder that is named by a hash of all sources.
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

# The environment variable that asks for this way, and what it says then.
ASKED, ORDINARY = "PLANNER_COMPILER", "numba"

why: list[str] = []
"""Why this way is taken; empty while it is not."""


def is_asked() -> bool:
    """Whether somebody asked for it, or it had to be taken before in this process."""
    if os.environ.get(ASKED) == ORDINARY and not why:
        why.append(f"{ASKED}={ORDINARY}")
    return bool(why)


def note() -> str:
    """The line that says so; empty while it is not taken."""
    if not why:
        return ""
    return (
        f"numba compiles the cost core ({why[0]}): this takes some minutes once and two seconds "
        "at each start; figures are the same"
    )


def ordinary(function: Callable[..., Any], arguments: list[Any]) -> Callable[..., float]:
    """A function of the core as numba compiles it, for the types of an entry's arguments."""
    import numba

    compiled = _twin(function)
    typeof: Any = numba.typeof
    compiled.compile(tuple(typeof(_plain(each)) for each in arguments))

    def call(*arguments: Any) -> float:
        result = compiled(*map(_plain, arguments))
        return 0.0 if result is None else float(result)

    return call


def _plain(argument: Any) -> Any:
    """A record in place of an array without axes, which numba would take for an array."""
    without_axes = isinstance(argument, np.ndarray) and argument.ndim == 0
    return argument[()] if without_axes else argument


class TwinGlobals(dict[str, Any]):
    """Globals of a twin: those of the module, with marked functions as their twins and enumerations
    as modules of numbers."""

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
    """The members of an enumeration as whole numbers: to numba a member has a type of its own, for
    which it would compile every function that takes one once more."""
    numbers = ModuleType(codes.__name__)
    members: dict[str, int] = dict(codes.__members__)
    vars(numbers).update((name, int(member)) for name, member in members.items())
    return numbers


@cache
def _twin(function: FunctionType) -> Any:
    """The numba function of a marked one, kept on disk."""
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
