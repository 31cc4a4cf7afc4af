"""Probabilities of an open fact's values, from the sources that state it.

`planner/evidence/data/open_priors.toml` has, for each fact, the shares of its values in each
source, by the framework (or the GPU's architecture) and the year of the software. All sources have
the same weight. The weights for a run are those of its framework, shrunk towards those of all
frameworks; if the year matters, those of its year, shrunk towards those of its framework. Any
source can be left out.

`silence` is the probability that an unstated fact has the framework's default, whatever those
weights are (1: only the default is predicted). `tests.fit.prior_fit` fits both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from math import fsum
from typing import Any

from pydantic import Field, ValidationError

from hardware.errors import HardwareError, first_error
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.rows import MeasuredRow, grouped

FILE = "open_priors.toml"
# Number of sources that the wider group counts as.
_PRIOR_SOURCES = 2.0
# Years before this one are not distinguished.
_FIRST_YEAR = 2023
_TOLERANCE = 1e-3


class StatedShares(Frozen):
    """Shares of a fact's values among a source's runs of one group and year. `year`: 0 if
    unknown."""

    source: str
    group: str
    year: int
    rows: int = Field(ge=1)
    shares: dict[str, float]


class Prior(Frozen):
    """The shares of one fact's values in the sources that state it. `silence_without`: the silence
    fitted without a source, if it differs; `by_year`: whether weights also depend on the year;
    `spread`: root of the mean variance of ln(prediction) due to the fact, at a silence of one half,
    over the runs that leave it open (time or memory, whichever is larger)."""

    silence: float = Field(ge=0.0, le=1.0)
    silence_without: dict[str, float] = Field(default_factory=dict)
    by_year: bool = False
    spread: float = Field(default=0.0, ge=0.0)
    stated: tuple[StatedShares, ...] = ()

    def silence_for(self, source: str) -> float:
        """The silence fitted without the runs of a source."""
        return self.silence_without.get(source, self.silence)

    def weights(
        self, values: Sequence[str], group: str, year: int, without: str = ""
    ) -> dict[str, float]:
        """The weight of each value (by the cell that states it) for a run; they add up to one."""
        told = [one for one in self.stated if one.source != without]
        uniform = dict.fromkeys(values, 1.0 / len(values))
        wide = _shrunk(told, uniform, 1.0)
        near = [one for one in told if one.group == group]
        found = _shrunk(near, wide, _PRIOR_SOURCES)
        if not self.by_year:
            return found
        return _shrunk([one for one in near if one.year == year], found, _PRIOR_SOURCES)


def _shrunk(
    told: Iterable[StatedShares], wider: Mapping[str, float], prior: float
) -> dict[str, float]:
    """The weight of each value: the mean of its shares over the sources in `told`, in which the
    `wider` weights count like further `prior` sources."""
    sources = grouped(told, lambda one: one.source).values()
    count = len(sources) + prior
    return {
        value: (prior * weight + fsum(_share(members, value) for members in sources)) / count
        for value, weight in wider.items()
    }


def _share(members: Sequence[StatedShares], value: str) -> float:
    """The share of a value in a source's runs, renormalised because the file has rounded shares."""
    total = fsum(one.rows * fsum(one.shares.values()) for one in members)
    return fsum(one.rows * one.shares.get(value, 0.0) for one in members) / total


def parse_priors(
    content: Mapping[str, Any], values: Mapping[str, Collection[str]]
) -> dict[str, Prior]:
    """Parse a table of priors by fact; `values`: the cells that each fact may have. HardwareError
    names a fact whose weights do not add up to one or include unknown values."""
    found = {}
    for fact, given in content.items():
        if fact not in values:
            raise HardwareError(f"{FILE}: {fact} is not a fact with values in open_facts.toml")
        try:
            found[fact] = Prior(**given)
        except ValidationError as error:
            raise HardwareError(f"{FILE}, {fact}: {': '.join(first_error(error))}") from None
        for one in found[fact].stated:
            _demand_shares(fact, one, values[fact])
    return found


def _demand_shares(fact: str, one: StatedShares, values: Collection[str]) -> None:
    other = [value for value in one.shares if value not in values]
    if other:
        raise HardwareError(
            f"{FILE}, {fact}, source {one.source}: {other[0]!r} is none of its values; "
            f"they are {', '.join(values)}"
        )
    total = fsum(one.shares.values())
    if abs(total - 1.0) > _TOLERANCE or min(one.shares.values()) < 0.0:
        raise HardwareError(
            f"{FILE}, {fact}, source {one.source}: the weights add up to {total:g}, and must be "
            "positive and add up to 1"
        )


@cache
def _content() -> dict[str, Any]:
    content = shipped_toml("planner.evidence", f"data/{FILE}")
    return {name: given for name, given in content.items() if isinstance(given, Mapping)}


@lru_cache(maxsize=4)
def priors(values: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Prior]:
    """The shipped priors, for facts with the cells that each may have."""
    return parse_priors(_content(), dict(values))


def year_of(row: MeasuredRow) -> int:
    """The year of a row's software, at least the first year that is distinguished; 0 if the row
    does not say. NeMo's containers are named by year and month."""
    text = row.fact("software")
    if match := re.search(r"\b(20[12]\d)\b", text):
        return max(_FIRST_YEAR, int(match[1]))
    match = re.search(r"\bnemo (2\d)\.\d\d", text)
    return max(_FIRST_YEAR, 2000 + int(match[1])) if match else 0
