"""The search: bounds, the CP-SAT layout model, the Pareto front, and why nothing fits.

The library's function is called `search` too. Whatever was imported first, `planner.search` is
this package, so the package can be called: `planner.search(request)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.request import Request
    from planner.result import SearchResult


class _CallablePackage(ModuleType):
    """Calling the package runs `planner.search.search.search`."""

    def __call__(self, request: Request, **options: Any) -> SearchResult:
        """See `planner.search.search.search`."""
        from planner.search.search import search

        return search(request, **options)


sys.modules[__name__].__class__ = _CallablePackage
