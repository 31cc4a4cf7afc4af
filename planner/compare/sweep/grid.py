"""The points of a sweep: one search each, and the prices that every one is reckoned with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from math import prod
from typing import Any

from planner.compare.comparison import (
    EnteredOffer,
    check_currencies,
    enter,
    raise_common_problem,
    with_batch,
)
from planner.compare.offers import Offer
from planner.compare.quotes import check_providers
from planner.compare.settings import Settings
from planner.job.request import Request

# A label of an axis and the options that it stands for.
Value = tuple[str, Mapping[str, Any]]

# Names that a catalogue may lack come in lists of this length at most; numbers may come in longer.
_TRIED = 100


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Pricing:
    """Tokens and settings that turn a plan into days and money, with their labels."""

    labels: tuple[str, ...]
    tokens: int
    settings: Settings

    @property
    def text(self) -> str:
        """What its figures depend on, in short: the date apart, which the journal has."""
        settings = self.settings.model_dump_json(exclude={"today"})
        return _hash(repr((self.labels, self.tokens, settings)))


@dataclass(frozen=True)
class GridPoint:
    """One search. `key`: the same for the same search of any grid with the same fixed part."""

    key: str
    labels: tuple[str, ...]
    request: Request
    offer: Offer


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of the axes, the last axis fastest; made when asked for.

    `axes`: name -> values; `price_axes`: names of the labels of `pricings`; `build`: the job of a
    combination's options and where it runs; `fixed`: what else the figures depend on.
    """

    axes: Mapping[str, tuple[Value, ...]]
    price_axes: tuple[str, ...]
    pricings: tuple[Pricing, ...]
    build: Callable[[Mapping[str, Any]], tuple[Request, Offer]]
    fixed: str

    def __len__(self) -> int:
        return prod(len(values) for values in self.axes.values())

    def key(self, index: int) -> str:
        """32 characters that name a search."""
        return _hash(self.fixed + repr(sorted(repr(one) for _, one in self._values(index))))

    def labels(self, index: int) -> tuple[str, ...]:
        """Labels of a combination, one an axis."""
        return tuple(label for label, _ in self._values(index))

    def point(self, index: int) -> GridPoint:
        """A combination as a search. UsageError for options that contradict each other."""
        return GridPoint(
            self.key(index), self.labels(index), *self.build(merged(self._values(index)))
        )

    def on(self, today: date) -> Grid:
        """The same with prices that are as old as they are on a day."""
        pricings = (
            replace(one, settings=one.settings.model_copy(update={"today": today}))
            for one in self.pricings
        )
        return replace(self, pricings=tuple(pricings))

    def _values(self, index: int) -> list[Value]:
        found = []
        for values in reversed(list(self.axes.values())):
            index, place = divmod(index, len(values))
            found.append(values[place])
        return found[::-1]


def merged(values: Iterable[Value]) -> dict[str, Any]:
    """The options of several values."""
    return {key: value for _, options in values for key, value in options.items()}


def check_grid(grid: Grid) -> None:
    """UsageError for what is wrong everywhere: the first values of each axis are tried on every
    cluster, with the first values of the other axes; nothing is searched."""
    clusters = grid.axes["cluster"]
    first = {name: values[0] for name, values in grid.axes.items()}
    for name, values in grid.axes.items():
        for value in values[: _TRIED if name != "cluster" else 1]:
            chosen = first | {name: value}
            raise_common_problem([_entered(grid, chosen | {"cluster": one}) for one in clusters])
    entries = [_entered(grid, first | {"cluster": one}) for one in clusters]
    for pricing in grid.pricings:
        check_providers(pricing.settings, [entry.offer for entry in entries])
        check_currencies(entries, pricing.settings)


def _entered(grid: Grid, chosen: Mapping[str, Value]) -> EnteredOffer:
    request, offer = grid.build(merged(chosen.values()))
    return enter(offer, with_batch(request)[0], None, None)
