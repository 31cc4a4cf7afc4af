"""Distributions of ln(measured / predicted): what the error bars are made of.

`planner/predict/uncertainty/residuals.json` keeps, for each source of measured runs and each family
in it, how far predictions lay from the measurements. A family is a framework profile on a GPU
architecture, inside one scale-up domain or beyond, of dense or MoE models. What is said of a
family is a mixture: its own runs weigh n / (n + k), the next wider family the rest, and so on up
to all runs; n counts each source as a power of its rows, because rows of one source share much of
their error. A framework without a measured run has the spread of all runs as they are predicted
without their framework's name (`UNFAMILIAR`). Any source can be left out, and that is how the
constants were fitted: `k` and the power give the best held-out interval score, `inflation` makes
held-out intervals cover 80 %.

Exposed communication is harder to predict than compute, and so is the time in which the GPU waits
for the CPU: hosts differ, and so do versions of the same software. Further, independent errors in
proportion to their shares of the step are part of every step time (`communication`, `launches`,
fitted likewise).
A job outside what was measured gets a further, independent error (`Further`): one that grows with
each doubling beyond the runs on the same GPU architecture (of memory: of the same framework), and
one for each of architecture, framework, kind of model and precision without a run. How fast it
grows is fitted by leaving *ranges* of runs out (`planner.evidence.fit.judging`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from math import hypot
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from planner.predict.uncertainty.families import (
    UNFAMILIAR,
    Family,
    Figure,
    architecture_text,
    parent_family,
    wider_families,
)
from planner.predict.uncertainty.measured_range import (
    Conditions,
    MeasuredRanges,
    beyond_text,
    common_ranges,
    doublings,
)

Array = NDArray[np.float64]
Widths = TypeVar("Widths", float, Array)

# An interval holds the true value with this probability.
COVERAGE = 0.80
LOW, MIDDLE, HIGH = 0.5 - COVERAGE / 2, 0.5, 0.5 + COVERAGE / 2
# A further error below this is added but not named.
_NAMED = 0.01
# Standard deviation of what state-space layers add to the errors of models without: time of their
# scans, weakly known (30 runs of two models lie 1 to 47 % above the prediction, most of it their
# experts); kept tensors and working set (9 peaks within 7 %).
_STATES = {"time": 0.15, "memory": 0.04}
# The same of a precision that nobody states: one in nine published runs on GPUs with 8-bit products
# uses them, a third faster (0.3 x sqrt(1/9 x 8/9)); their copies of weights and activations.
_UNSTATED = {"time": 0.1, "memory": 0.08}
# So many log ratios represent the runs of one source in one family.
POINTS = 19


class SourceResiduals(BaseModel):
    """Log ratios of one source in one family: all of them, or `POINTS` quantiles.

    `measured`: lowest and highest value on each axis
    (`planner.predict.uncertainty.measured_range`); `bits`: of the precisions measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    framework: str
    architecture: str
    scale: str
    model: str
    rows: int = Field(ge=1)
    log_ratios: tuple[float, ...] = Field(min_length=1)
    measured: dict[str, tuple[float, float]] = Field(default_factory=dict)
    bits: tuple[int, ...] = ()

    @property
    def family(self) -> Family:
        """The family that these runs belong to."""
        return Family(self.framework, self.architecture, self.scale, self.model)


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of ln(measured / predicted) at 10, 50 and 90 %, after inflation.

    `rows` and `sources` are those of `family`; they make up `family_share` of the mixture.
    """

    low: float
    middle: float
    high: float
    family: Family
    rows: int
    sources: tuple[str, ...]
    family_share: float

    def inflated(self, by: float) -> Spread:
        """Both sides so many times as far from the median."""
        return replace(
            self,
            low=self.middle - by * (self.middle - self.low),
            high=self.middle + by * (self.high - self.middle),
        )


@dataclass(frozen=True, slots=True)
class Further:
    """Standard deviation of an error that no residual of a family contains, and why it is there."""

    deviation: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResidualTable:
    """Residuals of one figure, with the constants that the fit found (module docstring).

    `communication`: standard deviation of the error of exposed communication, relative to it;
    `launches`: of the time in which the GPU waits for the CPU to issue kernels, likewise;
    `growth`: standard deviation for each doubling beyond what was measured, by axis;
    `unmeasured`: for an architecture, framework, model or precision without a run.
    """

    figure: Figure
    entries: tuple[SourceResiduals, ...]
    prior_rows: float
    inflation: float
    source_power: float = 0.5
    communication: float = 0.0
    launches: float = 0.0
    growth: Mapping[str, float] = field(default_factory=dict)
    unmeasured: Mapping[str, float] = field(default_factory=dict)

    def spread(self, family: Family, without: str = "") -> Spread:
        """What runs of a family are likely to show, as seen without one source."""
        one_spread = self._view(without).spread(self.nearest(family, without))
        return one_spread.inflated(self.inflation)

    def nearest(self, family: Family, without: str = "") -> Family:
        """The narrowest family with measured runs that this one belongs to."""
        view = self._view(without)
        if not view.has_runs(Family(family.framework)) and view.has_runs(Family(UNFAMILIAR)):
            family = family._replace(framework=UNFAMILIAR)
        return next(
            wider_family
            for wider_family in wider_families(family, self.figure)
            if view.has_runs(wider_family)
        )

    def further(self, family: Family, at: Conditions, without: str = "") -> Further:
        """The error to add for what was never measured, and for exposed communication."""
        view = self._view(without)
        near = view.measured(family)
        beyond = doublings(near.axes, at)
        terms = {
            beyond_text(axis, near.axes, at): self.growth.get(axis, 0.0) * distance
            for axis, distance in beyond.items()
        }
        for kind in view.missing(family):
            terms[f"no run of {_kind_text(kind, family)}"] = self.unmeasured.get(kind, 0.0)
        if at.unstated:
            terms["precision not stated"] = _UNSTATED[self.figure]
        elif at.bits and near.bits and at.bits not in near.bits:
            terms[f"no run with {at.bits}-bit products"] = self.unmeasured.get("bits", 0.0)
        if at.guessed:
            # Runs on its architecture say nothing of rates that are its own.
            terms[f"no kernel measured on {at.guessed}"] = self.unmeasured.get("architecture", 0.0)
        if at.states:
            terms["state-space layers, whose kernels few runs measure"] = _STATES[self.figure]
        named = [text for text, size in terms.items() if size >= _NAMED]
        named.sort(key=lambda text: -terms[text])
        unmeasured_error = self.unmeasured_error(at)
        return Further(hypot(unmeasured_error, *terms.values()), tuple(named))

    def unmeasured_error(self, at: Conditions) -> float:
        """Standard deviation of the errors in proportion to a part of the step."""
        return hypot(self.communication * at.exposed, self.launches * at.waiting)

    def families(self) -> list[Family]:
        """The narrowest families with measured runs, in alphabetical order."""
        return sorted({entry.family for entry in self.entries})

    @property
    def sources(self) -> list[str]:
        """The sources behind the table."""
        return sorted({entry.source for entry in self.entries})

    def _view(self, without: str) -> _View:
        return self._views(without if without in self.sources else "")

    @cached_property
    def _views(self) -> _ViewCache:
        return _ViewCache(self)


class _ViewCache:
    """Views of a table, one for each source that is left out."""

    def __init__(self, table: ResidualTable) -> None:
        self._table = table
        self._known: dict[str, _View] = {}

    def __call__(self, without: str) -> _View:
        if without not in self._known:
            entries = tuple(entry for entry in self._table.entries if entry.source != without)
            self._known[without] = _View(
                self._table.figure, entries, self._table.prior_rows, self._table.source_power
            )
        return self._known[without]


def _kind_text(kind: str, family: Family) -> str:
    """What has no run: `nanotron on Volta GPUs`, `dense models on Volta GPUs`."""
    if kind == "architecture":
        return f"{family.framework} on {architecture_text(family.architecture)} GPUs"
    models = "mixture-of-experts models" if family.model == "moe" else f"{family.model} models"
    what = {"framework": family.framework, "model": models}[kind]
    return f"{what} on {architecture_text(family.architecture)} GPUs"


class _Near(NamedTuple):
    """What runs of the same architecture (memory: framework) reach, or all runs without any."""

    axes: MeasuredRanges
    bits: frozenset[int]


class _Mixture(NamedTuple):
    """Distinct log ratios in order and their weights, which are positive and add up to one."""

    values: Array
    weights: Array

    def quantile(self, level: float) -> float:
        """Interpolated between the middles of the weights' steps."""
        middles = np.cumsum(self.weights) - 0.5 * self.weights
        return float(np.interp(level, middles, self.values))


class _View:
    """A table as seen without one source; mixtures are computed once."""

    def __init__(
        self,
        figure: Figure,
        entries: tuple[SourceResiduals, ...],
        prior_rows: float,
        source_power: float,
    ) -> None:
        self._figure: Figure = figure
        self._entries = entries
        self._prior_rows = prior_rows
        self._power = source_power
        self._mixtures: dict[Family, _Mixture] = {}
        self._near: dict[str, _Near] = {}

    def has_runs(self, family: Family) -> bool:
        """Whether a run of the family was measured; of the family of all runs this is said
        even if there is none."""
        return family == Family() or any(family.includes(entry.family) for entry in self._entries)

    @property
    def _base(self) -> str:
        """What makes runs near: kernels and links (time), or what a step keeps (memory)."""
        return "architecture" if self._figure == "time" else "framework"

    def missing(self, family: Family) -> Iterator[str]:
        """Of architecture, framework and kind of model those without a run, on the same
        architecture (memory: in the same framework) where that has any."""
        base = Family()._replace(**{self._base: getattr(family, self._base)})
        near = base if self.has_runs(base) else Family()
        for kind in ("architecture", "framework", "model"):
            asked = near._replace(**{kind: getattr(family, kind)})
            if not self.has_runs(asked):
                yield kind

    def measured(self, family: Family) -> _Near:
        """What the nearest runs reach."""
        one_getattr = getattr(family, self._base)
        if one_getattr not in self._near:
            members = self._members(Family()._replace(**{self._base: one_getattr})) or self._entries
            self._near[one_getattr] = _Near(
                common_ranges(_merged(members)),
                frozenset(bits for one in members for bits in one.bits),
            )
        return self._near[one_getattr]

    def _members(self, family: Family) -> list[SourceResiduals]:
        return [entry for entry in self._entries if family.includes(entry.family)]

    def spread(self, family: Family) -> Spread:
        mixture, members = self._mixture(family), self._members(family)
        low, middle, high = (mixture.quantile(level) for level in (LOW, MIDDLE, HIGH))
        return Spread(
            low=low,
            middle=middle,
            high=high,
            family=family,
            rows=sum(member.rows for member in members),
            sources=tuple(sorted({member.source for member in members})),
            family_share=self._family_share(family, members),
        )

    def _family_share(self, family: Family, members: Sequence[SourceResiduals]) -> float:
        if parent_family(family, self._figure) is None:
            return 1.0
        count = sum(rows**self._power for rows in _rows_by_source(members).values())
        return count / (count + self._prior_rows) if count else 0.0

    def _mixture(self, family: Family) -> _Mixture:
        if family not in self._mixtures:
            self._mixtures[family] = self._mix(family)
        return self._mixtures[family]

    def _mix(self, family: Family) -> _Mixture:
        members = self._members(family)
        share = self._family_share(family, members)
        values = np.array([value for member in members for value in member.log_ratios])
        weights = share * _weights(members, self._power)
        parent = parent_family(family, self._figure)
        if parent is not None:
            wider = self._mixture(parent)
            values = np.concatenate([values, wider.values])
            weights = np.concatenate([weights, (1.0 - share) * wider.weights])
        distinct, place = np.unique(values, return_inverse=True)
        summed = np.bincount(place, weights).astype(np.float64)
        return _Mixture(distinct[summed > 0.0], summed[summed > 0.0])


def _rows_by_source(members: Sequence[SourceResiduals]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for member in members:
        rows[member.source] += member.rows
    return rows


def _merged(members: Iterable[SourceResiduals]) -> list[dict[str, tuple[float, float]]]:
    """The reach of each source over its families."""
    merged: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for member in members:
        source = merged[member.source]
        for axis, (low, high) in member.measured.items():
            other = source.get(axis, (low, high))
            source[axis] = (min(low, other[0]), max(high, other[1]))
    return list(merged.values())


def _weights(members: Sequence[SourceResiduals], power: float) -> Array:
    """Weight of every point: its share of its source's rows, times a power of those."""
    rows = _rows_by_source(members)
    weights = np.array(
        [
            member.rows / len(member.log_ratios) * rows[member.source] ** (power - 1.0)
            for member in members
            for _ in member.log_ratios
        ]
    )
    return weights / weights.sum() if weights.size else weights


def bounds(middle: Widths, low: Widths, high: Widths, further: Widths) -> tuple[Widths, Widths]:
    """Ends of intervals as ln(bound / predicted): an independent error of 80 % half width
    `further` widens both sides of the median; the prediction (0) lies inside."""
    below = np.hypot(middle - low, further)
    above = np.hypot(high - middle, further)
    return np.minimum(0.0, middle - below), np.maximum(0.0, middle + above)


def represent(log_ratios: Sequence[float]) -> tuple[float, ...]:
    """The values in order, or `POINTS` quantiles of equal weight where they are more."""
    ordered = np.sort(np.asarray(log_ratios, dtype=np.float64))
    if len(ordered) > POINTS:
        levels = (np.arange(POINTS) + 0.5) / POINTS
        ordered = np.quantile(ordered, levels, method="hazen")
    return tuple(float(value) for value in np.round(ordered, 4))


def parse_tables(document: dict[str, object]) -> dict[Figure, ResidualTable]:
    """Tables from the content of a residuals file; a figure without runs has none."""
    return {
        figure: _parse_table(figure, block)
        for figure in ("time", "memory")
        if isinstance(block := document.get(figure), dict)
    }


def _parse_table(figure: Figure, block: dict[str, object]) -> ResidualTable:
    entries = block["runs"]
    if not isinstance(entries, list):
        raise TypeError(f"{figure}.runs must be a list of tables")
    return ResidualTable(
        figure,
        tuple(SourceResiduals.model_validate(entry) for entry in entries),
        float(str(block["prior_rows"])),
        float(str(block["inflation"])),
        float(str(block.get("source_power", 0.5))),
        float(str(block.get("communication", 0.0))),
        float(str(block.get("launches", 0.0))),
        _numbers(block.get("growth")),
        _numbers(block.get("unmeasured")),
    )


def _numbers(block: object) -> dict[str, float]:
    return {name: float(value) for name, value in block.items()} if isinstance(block, dict) else {}


@cache
def shipped_tables() -> dict[Figure, ResidualTable]:
    """The tables of `planner/predict/uncertainty/residuals.json`."""
    text = (
        files("planner.predict.uncertainty").joinpath("residuals.json").read_text(encoding="utf-8")
    )
    return parse_tables(json.loads(text))


@lru_cache(maxsize=4096)
def shipped_further(figure: Figure, family: Family, at: Conditions, without: str = "") -> Further:
    """The error to add for what none of the shipped runs reach, as seen without one source."""
    return shipped_tables()[figure].further(family, at, without)


@lru_cache(maxsize=4096)
def shipped_spread(figure: Figure, family: Family, without: str = "") -> Spread:
    """Spread of a family in the tables that ship, as seen without one source."""
    return shipped_tables()[figure].spread(family, without)
