"""Predictions over the plausible values of facts that are not stated.

An open fact has some plausible values, each with a prior weight and a prediction. A fact that is
left out usually has the framework's default, so the default is one of the outcomes, with a separate
weight (`silence`). Facts are assumed independent, and their effects multiply: the distribution of
the product has each combination of outcomes. So a row needs one prediction per value, not per
combination.

The headline is the median of that distribution; the error bar adds the error of runs in which
nothing is open (`planner.predict.uncertainty.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from math import exp, floor, fsum, log

from planner.job.quantities import GIB
from planner.predict.uncertainty.families import Figure

# Outcomes of a combination within this distance, in ln, are merged.
_STEP = 0.02
# A fact that moves the prediction by less, in ln, is not mentioned.
LEAST_EFFECT = 0.005
# Values with less weight among the stated ones are not named.
_LEAST_WEIGHT = 0.02
_HALF = 0.5 - 1e-9


@dataclass(frozen=True, slots=True)
class Doubt:
    """Distribution of ln(value / predicted by default): its points, in order, and their weights,
    which add up to one."""

    points: tuple[float, ...] = (0.0,)
    weights: tuple[float, ...] = (1.0,)

    @property
    def median(self) -> float:
        """The smallest point with half of the weight at or below it."""
        below = 0.0
        for point, weight in zip(self.points, self.weights, strict=True):
            below += weight
            if below >= _HALF:
                return point
        return self.points[-1]

    @property
    def variance(self) -> float:
        """Variance of the logarithm."""
        mean = fsum(p * w for p, w in zip(self.points, self.weights, strict=True))
        return fsum(w * (p - mean) ** 2 for p, w in zip(self.points, self.weights, strict=True))

    @property
    def about_median(self) -> Doubt:
        """The distribution of ln(value / headline): all points minus the median."""
        middle = self.median
        return Doubt(tuple(point - middle for point in self.points), self.weights)

    def quantile(self, of_one: Callable[[float], float], level: float, reach: float) -> float:
        """Quantile of the sum of a point and an independent error; `of_one`: the error's
        distribution function, which is 0 and 1 beyond `reach` on either side (bisection)."""
        low, high = self.points[0] - reach, self.points[-1] + reach
        while high - low > 1e-5:
            middle = 0.5 * (low + high)
            below = self.below(of_one, middle) < level
            low, high = (middle, high) if below else (low, middle)
        return 0.5 * (low + high)

    def below(self, of_one: Callable[[float], float], value: float) -> float:
        """Probability that the sum of a point and an independent error is below a value."""
        return fsum(
            weight * of_one(value - point)
            for point, weight in zip(self.points, self.weights, strict=True)
        )


NO_DOUBT = Doubt()


def doubt_of(outcomes: Mapping[float, float] | Iterable[tuple[float, float]]) -> Doubt:
    """The distribution of (point, weight) outcomes, whose weights may have any positive sum;
    neighbours within a step are replaced by their mean."""
    pairs = outcomes.items() if isinstance(outcomes, Mapping) else outcomes
    ordered = sorted((point, weight) for point, weight in pairs if weight > 0.0)
    total = fsum(weight for _, weight in ordered)
    merged = []
    # Zero, the prediction with the default, stays exact.
    for _, near in groupby(ordered, lambda pair: floor(pair[0] / _STEP + 0.5) if pair[0] else 0.5):
        members = list(near)
        weight = fsum(each for _, each in members)
        merged.append((fsum(point * each for point, each in members) / weight, weight / total))
    points, weights = zip(*sorted(merged), strict=True)
    return Doubt(points, weights)


def combined(doubts: Iterable[Doubt]) -> Doubt:
    """The distribution of the product of independent factors."""
    return reduce(_product, doubts, NO_DOUBT)


def _product(one: Doubt, other: Doubt) -> Doubt:
    if NO_DOUBT in (one, other):
        return one if other == NO_DOUBT else other
    return doubt_of(
        (point + further, weight * times)
        for point, weight in zip(one.points, one.weights, strict=True)
        for further, times in zip(other.points, other.weights, strict=True)
    )


@dataclass(frozen=True, slots=True)
class OpenValue:
    """A possible value of an open fact: its words, the cell that would state it, its weight among
    stated values, and ln(predicted with it / predicted by default) of each figure."""

    words: str
    cell: str
    weight: float
    effects: Mapping[Figure, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenFact:
    """A fact that the user or source does not state. `silence`: probability that a fact which is
    not stated has the framework's default; `values`: its possible values, empty if they are
    unknown; `called`: its name in sentences; `work`: whether it changes the amount of computation,
    and so the least time of a step."""

    name: str
    silence: float = 1.0
    values: tuple[OpenValue, ...] = ()
    called: str = ""
    work: bool = False

    @property
    def fewest(self) -> float:
        """The least plausible amount of work divided by the amount with the default; 1 if no value
        means less work."""
        effects = [value.effects.get("time", 0.0) for value in self.values] if self.work else []
        return exp(min(0.0, *effects)) if effects else 1.0

    def doubt(self, figure: Figure) -> Doubt:
        """Distribution of ln(value / predicted by default) of a figure."""
        known = [
            (value.effects[figure], value.weight)
            for value in self.values
            if figure in value.effects
        ]
        total = fsum(weight for _, weight in known)
        if not total or not self.moves(figure):
            return NO_DOUBT
        others = [(point, (1.0 - self.silence) * weight / total) for point, weight in known]
        return doubt_of([(0.0, self.silence), *others])

    def moves(self, figure: Figure) -> bool:
        """Whether any of its values changes the figure."""
        return any(abs(value.effects.get(figure, 0.0)) >= LEAST_EFFECT for value in self.values)

    def factor(self, figure: Figure) -> float:
        """The largest prediction of a figure divided by the smallest, over the fact's likely values
        (`named`)."""
        effects = [effect for _, effect in self.named(figure)]
        return exp(max(effects) - min(effects))

    def named(self, figure: Figure) -> list[tuple[str, float]]:
        """The fact's likely values in words, each with its effect on the figure, ln(predicted with
        it / predicted by default), smallest first. Values with the same effect are joined by "or".
        Unlikely values are left out unless all likely ones have the same effect."""
        known = [value for value in self.values if figure in value.effects]
        likely = [one for one in known if one.weight >= _LEAST_WEIGHT]
        effects = [one.effects[figure] for one in likely]
        if not effects or max(effects) - min(effects) < LEAST_EFFECT:
            likely = known
        pairs = sorted((one.effects[figure], one.words) for one in likely)
        groups = groupby(pairs, lambda pair: round(pair[0] / LEAST_EFFECT))
        return [
            (" or ".join(words for _, words in found), found[0][0])
            for found in (list(members) for _, members in groups)
        ]


def total_doubt(facts: Iterable[OpenFact], figure: Figure) -> Doubt:
    """The distribution of a figure over all open facts together."""
    return combined(fact.doubt(figure) for fact in facts)


def narrowing(facts: Sequence[OpenFact], figure: Figure) -> OpenFact | None:
    """The open fact that would narrow the error bar of a figure most if it were stated: the one
    that adds most variance. If none adds any, because the default is certain, the one whose values
    differ most. None if no fact changes the figure."""

    def told(fact: OpenFact) -> tuple[float, float]:
        even = replace(fact, silence=0.5)
        return fact.doubt(figure).variance, even.doubt(figure).variance

    return max((fact for fact in facts if fact.moves(figure)), key=told, default=None)


def open_sentence(
    fact: OpenFact, figure: Figure, by_default: float, unit: Callable[[float], str]
) -> str:
    """A sentence on an open fact with the figure for each likely value: `recompute not stated: 8.1
    s without, 10.6 s of whole layers`. `by_default`: the figure predicted with the default; `unit`:
    formats a figure."""
    parts = (f"{unit(by_default * exp(effect))} {words}" for words, effect in fact.named(figure))
    return f"{fact.called or fact.name} not stated: {', '.join(parts)}"


def effect_of(value: float | None, by_default: float | None) -> float | None:
    """ln(value / by default); None if either is unknown."""
    return log(value / by_default) if value and by_default else None


def facts_record(
    fact: OpenFact, step_s: float | None, held_bytes: float | None
) -> dict[str, object]:
    """An open fact as data: the probability of the default and, for each possible value, its weight
    and the predicted step time in seconds and peak in GiB, each None if unknown. `step_s`,
    `held_bytes`: the step time in seconds and the peak in bytes predicted with the default."""

    def figure(one: OpenValue, name: Figure, value: float | None, unit: float) -> float | None:
        known = value is not None and name in one.effects
        return value * exp(one.effects[name]) / unit if value is not None and known else None

    return {
        "fact": fact.name,
        "default_probability": fact.silence,
        "values": [
            {
                "value": one.cell,
                "weight": one.weight,
                "step_time_s": figure(one, "time", step_s, 1.0),
                "peak_mem_gib": figure(one, "memory", held_bytes, GIB),
            }
            for one in fact.values
        ],
    }
