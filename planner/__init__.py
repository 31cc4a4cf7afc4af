"""Plan the launch of a large-language-model training run.

`search(Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000))` gives the Pareto front of
plans; `evaluate` costs one given configuration. Names are imported when first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import constraints
import hardware
from planner._version import __version__

if TYPE_CHECKING:
    from planner.evaluate import evaluate
    from planner.plan import Degrees, Plan
    from planner.request import Request
    from planner.result import SearchResult
    from planner.search.search import search

__distribution__ = "trainplan"

__all__ = [
    "Degrees",
    "Plan",
    "Request",
    "SearchResult",
    "__version__",
    "evaluate",
    "search",
]

_HOMES = {
    "Degrees": "planner.plan",
    "Plan": "planner.plan",
    "Request": "planner.request",
    "SearchResult": "planner.result",
}


class _Package(ModuleType):
    """This package, whose functions win over the submodules of the same name.

    Importing `planner.search` or `planner.evaluate` anywhere makes Python set the submodule as
    an attribute here; `planner.search(...)` must mean the function whatever was imported first.
    """

    @property
    def search(self) -> Callable[..., Any]:
        """`planner.search.search.search`, imported when first asked for."""
        function: Callable[..., Any] = import_module("planner.search.search").search
        return function

    @search.setter
    def search(self, submodule: ModuleType) -> None:
        """The import system's assignment, which must not hide the function."""

    @property
    def evaluate(self) -> Callable[..., Any]:
        """`planner.evaluate.evaluate`, imported when first asked for."""
        function: Callable[..., Any] = import_module("planner.evaluate").evaluate
        return function

    @evaluate.setter
    def evaluate(self, submodule: ModuleType) -> None:
        """The import system's assignment, which must not hide the function."""


def _demand_own(*packages: Any) -> None:
    """ImportError if another distribution's package of the same name overwrote ours."""
    for package in packages:
        if getattr(package, "__distribution__", None) != __distribution__:
            raise ImportError(
                f"the package {package.__name__!r} that was found at "
                f"{getattr(package, '__file__', None) or list(package.__path__)} is not the one of "
                f"{__distribution__}: another distribution overwrote or hides it. Install "
                f"{__distribution__} in an environment of its own: pipx install {__distribution__} "
                f"(or: uv tool install {__distribution__})"
            )


_demand_own(constraints, hardware)
sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
