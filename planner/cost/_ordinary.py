"""The cost core compiled as numba compiles by itself, where its inside is not as planned.

`planner.cost._compiler` takes hold of parts of numba that are not public, which earns much: 31 s
of compiling in place of 127 s, 0.4 MB of cache in place of 28. Another numba, or a processor
for which it has no such parts, must not mean that nothing works: then the same functions run under
`numba.njit(cache=True)`, slower to compile and to start, with the same figures.

numba keeps code by the file of a function alone, and would not see that one which it calls was
edited; so its cache lies in the folder that is named by a hash of all sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

from planner.cost._machine_code import cache_folder

Constants = tuple[tuple[str, Any], ...]
# The environment variable that asks for this way, and what it says then.
ASKED, ORDINARY = "PLANNER_COMPILER", "numba"
# What numba's inside raises where it is not as planned.
UNPLANNED = (AttributeError, ImportError, LookupError, NotImplementedError, RuntimeError, TypeError)

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
        f"the cost core is compiled the ordinary way of numba ({why[0]}): some minutes once, and "
        "two seconds more at each start; figures are the same"
    )


def ordinary(function: Callable[..., Any], constants: Constants = ()) -> Callable[..., float]:
    """A function of the core as numba compiles it, for the arguments that an entry has."""
    compiled = _twin(function, constants)

    def call(*arguments: Any) -> float:
        result = compiled(*map(_plain, arguments))
        return 0.0 if result is None else float(result)

    return call


def _plain(argument: Any) -> Any:
    """A record in place of an array without axes, which numba would take for an array."""
    without_axes = isinstance(argument, np.ndarray) and argument.ndim == 0
    return argument[()] if without_axes else argument


@cache
def _twin(function: FunctionType, constants: Constants) -> Any:
    """The numba function of a marked one, kept on disk."""
    import numba

    from planner.cost._compiler import TwinGlobals

    numba.config.CACHE_DIR = str(cache_folder() / ORDINARY)  # type: ignore[attr-defined]
    same = FunctionType(
        function.__code__,
        TwinGlobals(function.__globals__, constants, _twin),
        function.__name__,
        function.__defaults__,
    )
    # Entries for one machine and for several are functions of one name: numba keeps them apart by
    # what it calls them.
    kind = "".join(f"_{name}_{value}" for name, value in constants)
    same.__qualname__, same.__module__ = f"{function.__qualname__}{kind}", function.__module__
    njit: Any = numba.njit
    return njit(error_model="numpy", nogil=True, cache=True)(same)
