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
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

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
# The same of objectives other than next-token prediction, which hardly any run measures: versions
# of a trainer differ in what they hold of the logits, and in what they compute for their logs.
_OBJECTIVE = {"time": 0.12, "memory": 0.1}
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

    def without(self, source: str) -> ResidualTable:
        """The table as seen without one source; itself without that of none of its runs."""
        if source not in self.sources:
            return self
        if source not in self._views:
            entries = tuple(entry for entry in self.entries if entry.source != source)
            self._views[source] = replace(self, entries=entries)
        return self._views[source]

    def spread(self, family: Family, without: str = "") -> Spread:
        """What runs of a family are likely to show, as seen without one source."""
        table = self.without(without)
        nearest = table.nearest(family)
        mixture, members = table._mixture(nearest), table._members(nearest)
        low, middle, high = (mixture.quantile(level) for level in (LOW, MIDDLE, HIGH))
        return Spread(
            low=middle - self.inflation * (middle - low),
            middle=middle,
            high=middle + self.inflation * (high - middle),
            family=nearest,
            rows=sum(member.rows for member in members),
            sources=tuple(sorted({member.source for member in members})),
            family_share=table._family_share(nearest, members),
        )

    def nearest(self, family: Family, without: str = "") -> Family:
        """The narrowest family with measured runs that this one belongs to."""
        table = self.without(without)
        if not table._has_runs(Family(family.framework)) and table._has_runs(Family(UNFAMILIAR)):
            family = family._replace(framework=UNFAMILIAR)
        return next(filter(table._has_runs, wider_families(family, self.figure)))

    def further(self, family: Family, at: Conditions, without: str = "") -> Further:
        """The error to add for what was never measured, and for exposed communication."""
        table = self.without(without)
        near = table._near(family)
        terms = self.beyond(near.axes, at)
        for kind in table._missing(family):
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
        if at.objective:
            terms[f"{at.objective}, which few runs measure"] = _OBJECTIVE[self.figure]
        named = [text for text, size in terms.items() if size >= _NAMED]
        named.sort(key=lambda text: -terms[text])
        return Further(hypot(self.unmeasured_error(at), *terms.values()), tuple(named))

    def beyond(self, measured: MeasuredRanges, at: Conditions) -> dict[str, float]:
        """Standard deviations of what lies beyond measured ranges, in words."""
        return {
            beyond_text(axis, measured, at): self.growth.get(axis, 0.0) * distance
            for axis, distance in doublings(measured, at).items()
        }

    def unmeasured_error(self, at: Conditions) -> float:
        """Standard deviation of the errors in proportion to a part of the step."""
        return hypot(self.communication * at.exposed, self.launches * at.waiting)

    def families(self) -> list[Family]:
        """The narrowest families with measured runs, in alphabetical order."""
        return sorted({entry.family for entry in self.entries})

    @cached_property
    def sources(self) -> list[str]:
        """The sources behind the table."""
        return sorted({entry.source for entry in self.entries})

    @cached_property
    def _families(self) -> dict[Family, list[SourceResiduals]]:
        """Entries by their families."""
        found: dict[Family, list[SourceResiduals]] = defaultdict(list)
        for entry in self.entries:
            found[entry.family].append(entry)
        return found

    @cached_property
    def _known(self) -> dict[Family, bool]:
        return {}

    @cached_property
    def _views(self) -> dict[str, ResidualTable]:
        return {}

    @cached_property
    def _mixtures(self) -> dict[Family, _Mixture]:
        return {}

    @cached_property
    def _near_runs(self) -> dict[str, _Near]:
        return {}

    def _has_runs(self, family: Family) -> bool:
        """Whether a run of the family was measured; of the family of all runs this is said
        even if there is none."""
        if family not in self._known:
            self._known[family] = any(map(family.includes, self._families))
        return family == Family() or self._known[family]

    @property
    def _base(self) -> str:
        """What makes runs near: kernels and links (time), or what a step keeps (memory)."""
        return "architecture" if self.figure == "time" else "framework"

    def _missing(self, family: Family) -> Iterator[str]:
        """Of architecture, framework and kind of model those without a run, on the same
        architecture (memory: in the same framework) where that has any."""
        base = Family()._replace(**{self._base: getattr(family, self._base)})
        near = base if self._has_runs(base) else Family()
        for kind in ("architecture", "framework", "model"):
            if not self._has_runs(near._replace(**{kind: getattr(family, kind)})):
                yield kind

    def _near(self, family: Family) -> _Near:
        """What the nearest runs reach."""
        base = getattr(family, self._base)
        if base not in self._near_runs:
            members = self._members(Family()._replace(**{self._base: base})) or self.entries
            self._near_runs[base] = _Near(
                common_ranges(_merged(members)),
                frozenset(bits for one in members for bits in one.bits),
            )
        return self._near_runs[base]

    def _members(self, family: Family) -> list[SourceResiduals]:
        return [
            entry
            for one, entries in self._families.items()
            if family.includes(one)
            for entry in entries
        ]

    def _family_share(self, family: Family, members: Sequence[SourceResiduals]) -> float:
        if parent_family(family, self.figure) is None:
            return 1.0
        count = sum(rows**self.source_power for rows in _rows_by_source(members).values())
        return count / (count + self.prior_rows) if count else 0.0

    def _mixture(self, family: Family) -> _Mixture:
        if family not in self._mixtures:
            self._mixtures[family] = self._mix(family)
        return self._mixtures[family]

    def _mix(self, family: Family) -> _Mixture:
        members = self._members(family)
        share = self._family_share(family, members)
        values = np.array([value for member in members for value in member.log_ratios])
        weights = share * _weights(members, self.source_power)
        parent = parent_family(family, self.figure)
        if parent is not None:
            wider = self._mixture(parent)
            values = np.concatenate([values, wider.values])
            weights = np.concatenate([weights, (1.0 - share) * wider.weights])
        distinct, place = np.unique(values, return_inverse=True)
        summed = np.bincount(place, weights).astype(np.float64)
        return _Mixture(distinct[summed > 0.0], summed[summed > 0.0])


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


_TABLE = TypeAdapter(ResidualTable)


def parse_tables(document: dict[str, object]) -> dict[Figure, ResidualTable]:
    """Tables from the content of a residuals file; a figure without runs has none."""
    figures: tuple[Figure, ...] = ("time", "memory")
    return {
        figure: _TABLE.validate_python({**block, "figure": figure, "entries": block["runs"]})
        for figure in figures
        if isinstance(block := document.get(figure), dict)
    }


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
