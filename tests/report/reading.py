"""Reading pages: what they would load, and the charts that they hold."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

# Attributes by which a browser loads something without being asked.
_LOADING = {"src", "srcset", "data", "action", "poster", "background", "href", "xlink:href"}


class _Reader(HTMLParser):
    """Collects tags that load, styles, and scripts by their type."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.loading: list[str] = []
        self.policy = ""
        self.text: dict[str, list[str]] = {}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        # A link to a place of the same page loads nothing.
        inside = tag == "a" and given.get("href", "").startswith("#")
        self.loading += [f"{tag} {name}" for name in given if name in _LOADING and not inside]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag in ("script", "style"):
            self._inside = given.get("type", tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._inside or "shown", []).append(data)


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader


def loads(page: str) -> list[str]:
    """What a page would load from elsewhere: nothing, if it is as it should be."""
    reader = _read(page)
    found = list(reader.loading)
    if not reader.policy.startswith("default-src 'none'") or "http" in reader.policy:
        found.append("policy")
    styles = "".join(reader.text["style"])
    return found + [word for word in ("@import", "url(") if word in styles]


def charts(page: str) -> dict[str, Any]:
    """Specifications of a page's charts by name."""
    found: dict[str, Any] = json.loads("".join(_read(page).text["application/json"]))["charts"]
    return found


def shown(page: str) -> str:
    """The text that people read."""
    return " ".join("".join(_read(page).text["shown"]).split())


def rows(chart: dict[str, Any]) -> list[str]:
    """Lines of all data of a chart."""
    return [line for text in chart["datasets"].values() for line in text.splitlines()]
