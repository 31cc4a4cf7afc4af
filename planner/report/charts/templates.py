"""Charts as data: `templates/NAME.json` is a Vega-Lite chart with placeholders.

A template is an object of named parts; the part `chart` is the whole chart. In a part

* the text `"$name"` is replaced by the value `name` that the caller gives, or else by the part of
  that name; if the value is None, the key or list item is left out,
* `${name}` inside a text is replaced by that value as text,
* `"$": "name"` copies the keys of a part into the object,
* `"$if": "name"` leaves the object out unless the value is true.

A list that ends up empty is left out, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Any

from hardware.files import shipped_text

# Okabe & Ito 2008: colours that colour-blind people can tell apart; three more follow.
PALETTE = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#f0e442", "#d55e00", "#cc79a7", "#999999",
    "#7b4fa3", "#8c6d31",
)  # fmt: skip
BLUE, VERMILION, GREY = PALETTE[0], PALETTE[5], PALETTE[7]
_IN_ALL = {"blue": BLUE, "vermilion": VERMILION, "grey": GREY, "limit_dash": [6, 4]}
_LEFT_OUT = object()


def filled(name: str, **values: object) -> dict[str, Any]:
    """The chart of a template with its placeholders filled in."""
    chart: dict[str, Any] = _Gaps(_parts(name), _IN_ALL | values).fill("$chart")
    return chart


@cache
def _parts(name: str) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(
        shipped_text("planner.report.charts", f"templates/{name}.json")
    )
    return parts


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Fills in a template's placeholders, as the module describes."""

    parts: Mapping[str, Any]
    values: Mapping[str, Any]

    def fill(self, node: Any) -> Any:
        """A node of a template with its placeholders replaced. If the node is to be left out, the
        marker `_LEFT_OUT`."""
        match node:
            case str() if node.startswith("$") and node[1:].isidentifier():
                return self._named(node[1:])
            case str() if "${" in node:
                return Template(node).substitute(self.values)
            case list():
                items = [found for item in node if (found := self.fill(item)) is not _LEFT_OUT]
                return items or _LEFT_OUT
            case {"$if": name} if not self.values[name]:
                return _LEFT_OUT
            case dict():
                return self._object(node)
        return node

    def _named(self, name: str) -> Any:
        if name not in self.values:
            return self.fill(self.parts[name])
        value = self.values[name]
        return _LEFT_OUT if value is None else value

    def _object(self, node: dict[str, Any]) -> dict[str, Any]:
        first = self._named(self.fill(node["$"])) if "$" in node else {}
        own = {key: self.fill(item) for key, item in node.items() if key not in ("$", "$if")}
        return first | {key: item for key, item in own.items() if item is not _LEFT_OUT}
