"""Predictions over the plausible values of facts that nobody stated.

A fact that is open has some plausible values, each with a prior weight and with what the prediction
would be. Nobody who leaves a fact out says by that what it is, but mostly it is what the framework
does by default: that is one of the outcomes, with a weight of its own (`silence`). Several facts
are taken as independent, and their effects as factors: the distribution of the product has each
combination of outcomes. So a row costs one prediction for each value, not for each combination.

The headline is the median of that distribution, and the error bar adds the error of runs in which
nothing is left open to it (`planner.predict.uncertainty.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from math import exp, floor, fsum, log

from planner.job.quantities import GIB
from planner.predict.uncertainty.families import Figure

# Outcomes of a combination within this of each other, in ln, are taken together.
_STEP = 0.02
# A fact that moves the prediction by less, in ln, is open without a word.
LEAST_EFFECT = 0.005
# Values less likely than this among those that are stated are not named.
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
        """The least point with half of the weight at or below it."""
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
        """The same of ln(value / headline)."""
        middle = self.median
        return Doubt(tuple(point - middle for point in self.points), self.weights)

    def quantile(self, of_one: Callable[[float], float], level: float, reach: float) -> float:
        """Quantile of the sum of a point and an independent error; `of_one`: the error's
        distribution function, which is 0 and 1 beyond `reach` on either side (bisection)."""
        low, high = self.points[0] - reach, self.points[-1] + reach
        while high - low > 1e-5:
            middle = 0.5 * (low + high)
            if self.below(of_one, middle) < level:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    def below(self, of_one: Callable[[float], float], value: float) -> float:
        """Probability that the sum of a point and an independent error is below a value."""
        return fsum(
            weight * of_one(value - point)
            for point, weight in zip(self.points, self.weights, strict=True)
        )


NO_DOUBT = Doubt()


def doubt_of(outcomes: Mapping[float, float] | Iterable[tuple[float, float]]) -> Doubt:
    """The distribution of (point, weight) outcomes, whose weights may add up to anything above 0;
    neighbours within a step become their mean."""
    pairs = outcomes.items() if isinstance(outcomes, Mapping) else outcomes
    ordered = sorted((point, weight) for point, weight in pairs if weight > 0.0)
    total = fsum(weight for _, weight in ordered)
    merged = []
    # Zero, the prediction by default, stays itself.
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
    """A value that an open fact may have: in words, the cell that states it, its weight among the
    values that are stated, and ln(predicted with it / predicted by default) of each figure."""

    words: str
    cell: str
    weight: float
    effects: Mapping[Figure, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenFact:
    """A fact that nobody stated; `silence`: how likely it then is what the framework does by
    default. Without values it is only known to be open. `called`: what sentences call it. `work`:
    whether it changes what is computed, and with it the least time of a step."""

    name: str
    silence: float = 1.0
    values: tuple[OpenValue, ...] = ()
    called: str = ""
    work: bool = False

    @property
    def fewest(self) -> float:
        """Of the work by default, what is left with the value of the least; 1 where none changes
        it."""
        effects = [one.effects.get("time", 0.0) for one in self.values] if self.work else []
        return exp(min(0.0, *effects)) if effects else 1.0

    def doubt(self, figure: Figure) -> Doubt:
        """Distribution of ln(value / predicted by default) of a figure."""
        known = [(one.effects[figure], one.weight) for one in self.values if figure in one.effects]
        total = fsum(weight for _, weight in known)
        if not total or not self.moves(figure):
            return NO_DOUBT
        others = [(point, (1.0 - self.silence) * weight / total) for point, weight in known]
        return doubt_of([(0.0, self.silence), *others])

    def moves(self, figure: Figure) -> bool:
        """Whether any of its values changes the figure."""
        return any(abs(one.effects.get(figure, 0.0)) >= LEAST_EFFECT for one in self.values)

    def factor(self, figure: Figure) -> float:
        """The largest prediction over the least, of its likely values."""
        effects = [effect for _, effect in self.named(figure)]
        return exp(max(effects) - min(effects))

    def named(self, figure: Figure) -> list[tuple[str, float]]:
        """Its likely values in words, those of one effect joined, with their effects; the largest
        effect last. All values, where the likely ones are of one effect."""
        known = [one for one in self.values if figure in one.effects]
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
    """What all open facts together leave open of a figure."""
    return combined(fact.doubt(figure) for fact in facts)


def narrowing(facts: Sequence[OpenFact], figure: Figure) -> OpenFact | None:
    """The open fact that would narrow the bar of a figure most, by the variance that it adds; of
    those that add none, the one whose values differ most. None where none moves the figure."""

    def told(fact: OpenFact) -> tuple[float, float]:
        even = replace(fact, silence=0.5)
        return fact.doubt(figure).variance, even.doubt(figure).variance

    return max((fact for fact in facts if fact.moves(figure)), key=told, default=None)


def open_sentence(
    fact: OpenFact, figure: Figure, by_default: float, unit: Callable[[float], str]
) -> str:
    """`recompute not stated: 8.1 s without, 10.6 s of whole layers`; `by_default`: the figure that
    the default gives, in what `unit` writes out."""
    said = (f"{unit(by_default * exp(effect))} {words}" for words, effect in fact.named(figure))
    return f"{fact.called or fact.name} not stated: {', '.join(said)}"


def effect_of(value: float | None, by_default: float | None) -> float | None:
    """ln(value / by default); None where either is unknown."""
    return log(value / by_default) if value and by_default else None


def facts_record(
    fact: OpenFact, step_s: float | None, held_bytes: float | None
) -> dict[str, object]:
    """An open fact as a plain record: how likely it is the default, and seconds and GiB with each
    of its values and their weights; `step_s`, `held_bytes`: with the default."""

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
