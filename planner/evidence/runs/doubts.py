"""Predict rows over the plausible values of the facts that they leave open.

Each value of an open fact is one more prediction of the row. Sources that state the fact give the
probability of the value (`planner.evidence.runs.plausible`); the row's own source does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from planner.evidence.runs.open_facts import Fact, Value, fact_named, open_facts, varied
from planner.evidence.runs.plausible import Prior, priors, year_of
from planner.evidence.runs.predict import Prediction, other_micro_batches, predict_beside
from planner.evidence.runs.rows import FIRST_SIGHT, MeasuredRow, grouped
from planner.job.quantities import gib, seconds
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.open_mixture import (
    OpenFact,
    OpenValue,
    effect_of,
    facts_record,
    narrowing,
    open_sentence,
    total_doubt,
)

# Most predictions of one row besides the first.
MOST_PREDICTIONS = 12
# Spread of a fact whose silence is given: such facts come before those with fitted silence.
_WIDE = 1.0
_FIGURES: tuple[Figure, ...] = ("time", "memory")


def with_open_facts(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The same rows, each with its open facts; the prediction is then the median of the mixture.
    Refused rows, and those without open facts, stay as they are."""
    return [
        replace(one, doubt={figure: total_doubt(one.opened, figure) for figure in _FIGURES})
        if one.opened
        else one
        for one in with_values(predictions, priors(varied()), MOST_PREDICTIONS)
    ]


def with_values(
    predictions: Sequence[Prediction], known: Mapping[str, Prior], most: float = inf
) -> list[Prediction]:
    """The same rows, each with its open facts and their values; the prediction still uses the
    defaults. `most`: maximum number of values per row; facts that spread predictions most come
    first."""
    trials = [
        (index, fact, value)
        for index, prediction in enumerate(predictions)
        for fact, value in _varied(prediction, known, most)
    ]
    costed = predict_beside(
        (_stating(predictions[index], fact, value) for index, fact, value in trials),
        (predictions[index] for index, _, _ in trials),
    )
    found = list(predictions)
    for index, places in grouped(range(len(trials)), lambda place: trials[place][0]).items():
        tried = [(trials[place][1], trials[place][2], costed[place]) for place in places]
        found[index] = replace(found[index], opened=tuple(_opened(found[index], tried, known)))
    return found


def _varied(
    prediction: Prediction, known: Mapping[str, Prior], most: float
) -> Iterator[tuple[Fact, Value]]:
    """The open facts of a row, paired with each of their values."""
    named = map(fact_named, open_facts(prediction) or ())
    opened = [fact for fact in named if _prior(fact, known) is not None]
    for fact in sorted(opened, key=lambda fact: _rank(_prior(fact, known))):
        most -= len(fact.values)
        if most < 0:
            return
        yield from ((fact, value) for value in fact.values)


def _prior(fact: Fact, known: Mapping[str, Prior]) -> Prior | None:
    """The prior of a fact's values; None for a fact that is not varied."""
    found = known.get(fact.column)
    if fact.silence is None:
        return found
    told = found.stated if found else ()
    return Prior(silence=fact.silence, spread=_WIDE, stated=told)


def _rank(prior: Prior | None) -> tuple[float, float]:
    """Sort key of a fact by its prior: facts that widen the error bar most come first, then those
    whose values differ most; facts without a prior last."""
    if prior is None:
        return 0.0, 0.0
    return -(1.0 - prior.silence) * prior.spread, -prior.spread


def _stating(prediction: Prediction, fact: Fact, value: Value) -> MeasuredRow:
    """The row with a value of a fact filled in, at the micro-batch that was assumed for the row."""
    row, mapped = prediction.row, prediction.configured
    cells = row.cells | {fact.column: value.cell}
    if fact.column != "mbs" and other_micro_batches(row, mapped):
        cells |= {"mbs": str(mapped.degrees.mbs)}
    return MeasuredRow(row.file, row.line, cells)


def _opened(
    prediction: Prediction,
    tried: Sequence[tuple[Fact, Value, Prediction]],
    known: Mapping[str, Prior],
) -> Iterator[OpenFact]:
    """The varied facts of a row, with the values that it may have."""
    for column, members in grouped(tried, lambda trial: trial[0].column).items():
        fact = fact_named(column)
        prior = _prior(fact, known) or Prior(silence=1.0)
        row, group = prediction.row, fact.group(prediction.job)
        weights = prior.weights(
            [value.cell for value in fact.values], group, year_of(row), row.source
        )
        values = tuple(
            OpenValue(value.words, value.cell, weights[value.cell], effects)
            for _, value, other in members
            if (effects := _effects(prediction, other))
        )
        yield OpenFact(column, prior.silence_for(row.source), values, fact.called, fact.work)


def _effects(one: Prediction, other: Prediction) -> dict[Figure, float]:
    """ln(other / one) of the predicted step time and memory, by figure. A figure that cannot be
    compared is left out. Empty if the row cannot have had the value of `other`."""
    if other.mapped is None or other.mapped.batch_share != one.configured.batch_share:
        return {}
    pairs = {
        "time": (other.step_time_s, one.step_time_s),
        "memory": (_memory(other), _memory(one)),
    }
    return {
        figure: effect for figure in _FIGURES if (effect := effect_of(*pairs[figure])) is not None
    }


def _memory(prediction: Prediction) -> float | None:
    """Predicted bytes of the kind and stage that the row measured."""
    row = prediction.row
    return prediction.memory_bytes(row.text("mem_kind"), row.text("mem_scope"))


def by_default(prediction: Prediction, figure: Figure) -> float | None:
    """Seconds of a step, or bytes of the measured kind and stage, with the default of every open
    fact; the effects of values are relative to it."""
    plain = replace(prediction, doubt={})
    return plain.step_time_s if figure == "time" else _memory(plain)


def narrowing_sentence(prediction: Prediction, figure: Figure) -> str | None:
    """A sentence on the open fact that would narrow the bar of a figure most, with the prediction
    for each of its values; None if no open fact changes the figure."""
    fact, value = narrowing(prediction.opened, figure), by_default(prediction, figure)
    if fact is None or value is None:
        return None
    return open_sentence(fact, figure, value, seconds if figure == "time" else _gibibytes)


def _gibibytes(size_bytes: float) -> str:
    return f"{gib(size_bytes)} GiB"


@dataclass(frozen=True, slots=True)
class OpenSummary:
    """An open fact that would narrow the bar of a figure most: for how many runs and sources, and
    the median factor between the predictions with its largest and smallest value."""

    fact: str
    figure: Figure
    runs: int
    sources: int
    factor: float


def open_summary(predictions: Sequence[Prediction]) -> list[OpenSummary]:
    """For each open fact and figure: how many runs would gain most from knowing it. Step times come
    first, then the facts of most runs."""
    found = [
        (fact, figure, one)
        for one in predictions
        for figure in _FIGURES
        if one.measured(FIRST_SIGHT[figure][0]) and (fact := narrowing(one.opened, figure))
    ]
    groups = grouped(found, lambda item: (item[0].name, item[1])).items()
    return sorted(
        (
            OpenSummary(
                name, figure, len(members), len({one.row.source for *_, one in members}),
                median(fact.factor(figure) for fact, *_ in members),
            )
            for (name, figure), members in groups
        ),
        key=lambda one: (one.figure != "time", -one.runs, one.fact),
    )  # fmt: skip


def open_record(prediction: Prediction) -> list[dict[str, object]]:
    """The varied facts of a row as plain records: seconds and GiB with each value."""
    step_s, held = by_default(prediction, "time"), by_default(prediction, "memory")
    return [facts_record(fact, step_s, held) for fact in prediction.opened]
