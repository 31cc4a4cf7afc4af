"""How plans and searches are displayed in notebooks. The drawing functions are in package
`planner`, which this one may not import; they are registered with `provide` and imported when
something is first shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Displays(Protocol):
    """Charts and HTML of plans and searches."""

    def plot_plan(self, plan: Any, figure: Any) -> Any:
        """An Altair chart of a plan."""

    def plot_result(self, result: Any, figure: Any) -> Any:
        """An Altair chart of a search."""

    def plan_html(self, plan: Any) -> str:
        """A plan as a table."""

    def result_html(self, result: Any) -> str:
        """The plans of a search as a table."""


_given: list[Callable[[], Displays]] = []


def provide(load: Callable[[], Displays]) -> None:
    """Register the function that loads the displays."""
    _given[:] = [load]


def displays() -> Displays:
    """The displays that were provided."""
    return _given[0]()
