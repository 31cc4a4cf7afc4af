"""How plans and searches show themselves in notebooks. A room above draws: package `planner`
provides the drawing functions, and they are imported when something is first shown."""

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
    """Say what loads the displays."""
    _given[:] = [load]


def displays() -> Displays:
    """The displays that were provided."""
    return _given[0]()
