"""How large the error of a prediction is likely to be: the basis of all error bars.

ln(measured / predicted) of a run is modelled as

    half(job) · (error shared by its framework, architecture, scale and kind of model
                 + error shared by all runs of its source + noise of the run),

with the tails of Student's t (`planner.predict.uncertainty.tails`) and different half widths
upwards and downwards. Each part of a step has a separate relative error, and the half width of a
step time is their sum,

    half = Σ share of the part · its error · Π factors of the kinds to which the job belongs,

over the least time of the model's FLOP, exposed communication, waiting for the CPU, and the rest:
slower kernels, recomputation, bubbles, the optimizer (`Conditions.parts`). A peak has one part. The
factors are for `kinds_of` a job: mixtures of experts; and training loops written by users, or
frameworks without measured runs.

All of it is fitted to measured runs by the interval score (`tests.fit.error_fit`) and ships in
`planner/predict/uncertainty/residuals.json`. `shares` divides the variance among families, sources
and runs (`tests.fit.components`); own runs remove what they share
(`planner.evidence.learn.posterior`). Any source can be left out: `folds` are fits to nine tenths of
the sources each.

A job outside the measured range gets a further, independent error (`Further`): one that grows with
each doubling beyond the runs on the same GPU architecture (for memory: of the same framework), and
one for each of architecture, framework, kind of model and precision without a run. How fast it
grows is fitted by leaving *ranges* of runs out (`tests.fit.judging`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, hypot
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from planner.predict.uncertainty.families import (
    OWN_LOOPS,
    Family,
    Figure,
    architecture_text,
    is_mixture,
    model_words,
    wider_families,
)
from planner.predict.uncertainty.measured_range import (
    Conditions,
    MeasuredRanges,
    beyond_text,
    common_ranges,
    doublings,
)
from planner.predict.uncertainty.tails import share_below

Array = NDArray[np.float64]
Widths = TypeVar("Widths", float, Array)

# An interval holds the true value with this probability.
COVERAGE = 0.80
LOW, HIGH = 0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2
# Half width of a normal error's interval, in standard deviations.
DEVIATIONS = NormalDist().inv_cdf(HIGH)
# A further error below this is added but not named.
_NAMED = 0.01
# Standard deviation that state-space layers add to the errors of models without them: time of
# scans, weakly known (30 runs of two models lie 1 to 47 % above the prediction, mostly due to their
# experts); kept tensors and working set (9 peaks within 7 %).
_STATES = {"time": 0.15, "memory": 0.04}
# The same for objectives other than next-token prediction, which hardly any run measures: versions
# of a trainer differ in the logits that they keep, and in the values that they compute for their
# logs.
_OBJECTIVE = {"time": 0.12, "memory": 0.1}
# The same for an unstated precision. Time: one in nine published runs on GPUs with 8-bit products
# uses them, a third faster (0.3 x sqrt(1/9 x 8/9)). Memory: their copies of weights and
# activations.
_UNSTATED = {"time": 0.1, "memory": 0.08}
# Parts of a prediction that have separate errors.
PARTS: Mapping[Figure, tuple[str, ...]] = {
    "time": ("work", "exposed", "waiting", "rest"),
    "memory": ("peak",),
}
# Mean shares of the parts in measured runs, for a step whose configuration is unknown.
_USUAL = {"work": 0.41, "exposed": 0.09, "waiting": 0.10, "rest": 0.40}
# Number of fits, each of which leaves out a part of the sources.
FOLDS = 10
KINDS = ("mixture", "own loop")


class MeasuredRuns(BaseModel):
    """The runs of one source in one family. `measured`: lowest and highest value on each axis
    (`planner.predict.uncertainty.measured_range`); `bits`: bits of the measured precisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    framework: str
    architecture: str
    scale: str
    model: str
    rows: int = Field(ge=1)
    measured: dict[str, tuple[float, float]] = Field(default_factory=dict)
    bits: tuple[int, ...] = ()

    @property
    def family(self) -> Family:
        """The family to which these runs belong."""
        return Family(self.framework, self.architecture, self.scale, self.model)


class Ends(NamedTuple):
    """One value for the lower and one for the upper end of a bar."""

    down: float
    up: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The two ends of an 80 % interval about the prediction, as ln(bound / predicted): `low` is
    negative, `high` positive.

    `family`: the nearest family with measured runs; `rows`: number of its runs; `all_rows`: number
    of all runs in the table; `rests_on`: the basis of the spread in words, if it is not these runs.
    """

    low: float
    high: float
    family: Family
    rows: int = 0
    all_rows: int = 0
    rests_on: str = ""

    def below(self, value: float) -> float:
        """Probability that ln(measured / predicted) is below a value."""
        side = self.high if value > 0.0 else -self.low
        return share_below(value / side) if side > 0.0 else float(value >= 0.0)


@dataclass(frozen=True, slots=True)
class Further:
    """An error for conditions that were never measured, in addition to the half widths: its
    standard deviation in ln, and the reasons for it in words."""

    deviation: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class HalfWidths:
    """Half widths of 80 % intervals, in ln. `parts`: the half width of each part of a prediction,
    to be multiplied by the part's share; `kinds`: for each kind of job, the logarithm of a factor
    on the sum over the parts."""

    parts: Mapping[str, Ends]
    kinds: Mapping[str, Ends] = field(default_factory=dict)

    def of(self, shares: Mapping[str, float], kinds: Iterable[str]) -> Ends:
        """Half widths of a job whose prediction has these shares of parts, and which belongs to
        these kinds."""
        more = [self.kinds.get(kind, Ends(0.0, 0.0)) for kind in kinds]
        down = sum(share * self.parts[part].down for part, share in shares.items())
        up = sum(share * self.parts[part].up for part, share in shares.items())
        return Ends(
            down * exp(sum(one.down for one in more)), up * exp(sum(one.up for one in more))
        )

    def times(self, factor: float) -> HalfWidths:
        """All half widths multiplied by a factor."""
        parts = {name: Ends(*(factor * end for end in ends)) for name, ends in self.parts.items()}
        return HalfWidths(parts, self.kinds)


@dataclass(frozen=True)
class ErrorTable:
    """Errors of one figure (module docstring), and the runs to which they were fitted.

    `folds`: fits that each leave out a tenth of the `sources`; `shares`: shares of the errors'
    variance, by the property that runs have in common, `run` being each run's noise; `growth`:
    standard deviation per doubling beyond the measured range, by axis; `unmeasured`: standard
    deviations for an architecture, framework, model or precision without a run. `beside`: runs of
    another way of training, which has other errors but the same kernels and links, so its ranges
    count as measured too.
    """

    figure: Figure
    entries: tuple[MeasuredRuns, ...]
    errors: HalfWidths
    folds: tuple[HalfWidths, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    beside: ErrorTable | None = None
    # Caches of earlier look-ups.
    _known: dict[Family, bool] = field(default_factory=dict, init=False, compare=False)
    _counts: dict[Family, int] = field(default_factory=dict, init=False, compare=False)
    _views: dict[str, ErrorTable] = field(default_factory=dict, init=False, compare=False)
    _near_runs: dict[str, _Near] = field(default_factory=dict, init=False, compare=False)

    def without(self, source: str) -> ErrorTable:
        """The table with one source left out."""
        if source not in self.sources:
            return self
        if source not in self._views:
            entries = tuple(entry for entry in self.entries if entry.source != source)
            fold = fold_of(source, self.sources)
            errors = self.folds[fold] if self.folds else self.errors
            beside = self.beside and self.beside.without(source)
            self._views[source] = replace(
                self, entries=entries, errors=errors, folds=(), beside=beside
            )
        return self._views[source]

    @property
    def shared(self) -> float:
        """Share of the variance that all runs of a source have in common."""
        return 1.0 - self.shares.get("run", 1.0)

    def spread(self, family: Family, at: Conditions, without: str = "") -> Spread:
        """The interval of ln(measured / predicted) for a job of a family, without the further error
        of unmeasured conditions. `without`: a source to leave out."""
        table = self.without(without)
        nearest = table.nearest(family)
        half = table.half_widths(family, at)
        return Spread(-half.down, half.up, nearest, table.rows(nearest), table.rows(Family()))

    def half_widths(self, family: Family, at: Conditions) -> Ends:
        """Half widths of the interval of a job of a family."""
        return self.errors.of(part_shares(self.figure, at), kinds_of(family, self._frameworks))

    def nearest(self, family: Family) -> Family:
        """The narrowest family with measured runs to which this one belongs."""
        return next(filter(self._has_runs, wider_families(family, self.figure)))

    def further(self, family: Family, at: Conditions, without: str = "") -> Further:
        """The error to add for conditions that were never measured."""
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
            # Runs on the same architecture do not determine the rates of this GPU's kernels.
            terms[f"no kernel measured on {at.guessed}"] = self.unmeasured.get("architecture", 0.0)
        if at.states:
            terms["state-space layers, whose kernels few runs measure"] = _STATES[self.figure]
        if at.objective:
            terms[f"{at.objective}, which few runs measure"] = _OBJECTIVE[self.figure]
        named = [text for text, size in terms.items() if size >= _NAMED]
        named.sort(key=lambda text: -terms[text])
        return Further(hypot(*terms.values()), tuple(named))

    def beyond(self, measured: MeasuredRanges, at: Conditions) -> dict[str, float]:
        """The errors of axes on which a job is outside the measured ranges: the axis and its value
        in words, with the standard deviation. Empty if it is inside on all."""
        return {
            beyond_text(axis, measured, at): self.growth.get(axis, 0.0) * distance
            for axis, distance in doublings(measured, at).items()
        }

    def families(self) -> list[Family]:
        """The families to which the table's entries belong, each named in full, in alphabetical
        order."""
        return sorted({entry.family for entry in self.entries})

    @cached_property
    def sources(self) -> list[str]:
        """The sources behind the table."""
        return sorted({entry.source for entry in self.entries})

    @cached_property
    def _families(self) -> dict[Family, list[MeasuredRuns]]:
        """Entries by family."""
        found: dict[Family, list[MeasuredRuns]] = defaultdict(list)
        for entry in self.entries:
            found[entry.family].append(entry)
        return found

    @cached_property
    def _frameworks(self) -> frozenset[str]:
        return frozenset(entry.framework for entry in self.entries)

    def _has_runs(self, family: Family) -> bool:
        """Whether a run of the family was measured; always true of the family of all runs."""
        if family not in self._known:
            self._known[family] = any(map(family.includes, self._families))
        return family == Family() or self._known[family]

    @property
    def _base(self) -> str:
        """The field of a family that makes runs near: its architecture (time: kernels and links),
        or its framework (memory: the tensors that a step keeps)."""
        return "architecture" if self.figure == "time" else "framework"

    def _missing(self, family: Family) -> Iterator[str]:
        """Names of the fields, among architecture, framework and kind of model, whose value no run
        has. If the job's architecture (for memory: its framework) was measured at all, only runs
        with the same one count."""
        base = Family()._replace(**{self._base: getattr(family, self._base)})
        near = base if self._has_runs(base) else Family()
        for kind in ("architecture", "framework", "model"):
            wanted = near._replace(**{kind: getattr(family, kind)})
            if not self._has_runs(wanted) and not self._is_beside(family, kind):
                yield kind

    def _is_beside(self, family: Family, kind: str) -> bool:
        """Whether runs of another way of training (`beside`) measured this framework on this
        architecture; always False for the kind of model."""
        if self.beside is None or kind == "model":
            return False
        wanted = Family()._replace(architecture=family.architecture, framework=family.framework)
        return self.beside._has_runs(wanted)

    def _near(self, family: Family) -> _Near:
        """The measured ranges and precisions of runs on the same architecture (for memory: of the
        same framework), including those of another way of training; of all runs if there are none.
        """
        base = getattr(family, self._base)
        if base not in self._near_runs:
            same = Family()._replace(**{self._base: base})
            members = [*self._members(same), *(self.beside._members(same) if self.beside else ())]
            members = members or list(self.entries)
            self._near_runs[base] = _Near(
                common_ranges(_merged(members)),
                frozenset(bits for member in members for bits in member.bits),
            )
        return self._near_runs[base]

    def _members(self, family: Family) -> list[MeasuredRuns]:
        return [
            entry
            for one, entries in self._families.items()
            if family.includes(one)
            for entry in entries
        ]

    def rows(self, family: Family) -> int:
        """Measured runs of a family."""
        if family not in self._counts:
            self._counts[family] = sum(member.rows for member in self._members(family))
        return self._counts[family]


def part_shares(figure: Figure, at: Conditions) -> Mapping[str, float]:
    """The share of each part (`PARTS`) in a prediction; they add up to one. A peak has one part.
    Usual shares are used if the parts of the step are unknown."""
    if figure == "memory":
        return {"peak": 1.0}
    return at.parts or _USUAL


def kinds_of(family: Family, frameworks: Collection[str] = ()) -> list[str]:
    """The `KINDS` to which a job belongs; `frameworks`: those with measured runs; others count as
    training loops written by users."""
    own = family.framework in OWN_LOOPS or bool(frameworks and family.framework not in frameworks)
    found = (is_mixture(family.model), own)
    return [kind for kind, is_of in zip(KINDS, found, strict=True) if is_of]


def fold_of(source: str, sources: Sequence[str]) -> int:
    """The number of the fold that leaves a source out; `sources`: all, in alphabetical order."""
    return sources.index(source) % FOLDS


def _kind_text(kind: str, family: Family) -> str:
    """A kind of run that was never measured, in words, for example `nanotron on Volta GPUs` or
    `dense models on Volta GPUs`. `kind`: a name that `_missing` gives."""
    model = model_words(family.model) if kind == "model" else family.framework
    return f"{model} on {architecture_text(family.architecture)} GPUs"


class _Near(NamedTuple):
    """Ranges of the runs on the same architecture (memory: framework), or of all runs if it has
    none."""

    axes: MeasuredRanges
    bits: frozenset[int]


def _merged(members: Iterable[MeasuredRuns]) -> list[dict[str, tuple[float, float]]]:
    """For each source, the measured range of each axis over all its families."""
    merged: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for member in members:
        source = merged[member.source]
        for axis, (low, high) in member.measured.items():
            other = source.get(axis, (low, high))
            source[axis] = (min(low, other[0]), max(high, other[1]))
    return list(merged.values())


def bounds(low: Widths, high: Widths, further: Widths) -> tuple[Widths, Widths]:
    """The lower and the upper ends of intervals as ln(bound / predicted). `low`, `high`: half
    widths in ln; `further`: half width of an independent error that widens both sides, at 80 %."""
    return -np.hypot(low, further), np.hypot(high, further)
