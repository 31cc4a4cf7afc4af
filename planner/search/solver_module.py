"""Import CP-SAT's Python module without pandas.

pandas takes several times as long to import as the solver, which needs it for functions over series
that are not used here. A stand-in replaces pandas during the import; calling such a function later
loads the real one.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

_PANDAS = "pandas"


class _Pandas(ModuleType):
    """A stand-in for pandas: the classes that annotations name, and the real module for everything
    else."""

    def __init__(self, **annotated: type) -> None:
        super().__init__(_PANDAS)
        self._annotated = annotated

    def __getattr__(self, name: str) -> Any:
        if name in self._annotated:
            return self._annotated[name]
        if sys.modules.get(_PANDAS) is self:
            del sys.modules[_PANDAS]
        return getattr(import_module(_PANDAS), name)


@cache
def cp_model() -> Any:
    """The module `ortools.sat.python.cp_model`."""
    if _PANDAS in sys.modules:
        return import_module("ortools.sat.python.cp_model")
    stand_in = _Pandas(Index=object, Series=object)
    sys.modules[_PANDAS] = stand_in
    try:
        module = import_module("ortools.sat.python.cp_model")
    finally:
        if sys.modules.get(_PANDAS) is stand_in:
            del sys.modules[_PANDAS]
    if getattr(module, "pd", None) is stand_in:
        module.pd = _Pandas()  # type: ignore[attr-defined]
    return module
