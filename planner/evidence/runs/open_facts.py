"""Facts that a prediction depends on and that a measured row does not state.

`open_facts.toml` lists the facts and says when each matters; this module applies that to a
predicted row. A row that names a plan leaves nothing open, because the plan's launch folder states
everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from constraints.condition import NAMES, shape_values
from constraints.expression import Condition, condition_mask, parse_condition
from constraints.numbers import IntArray
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.contradictions import in_known_words
from planner.evidence.runs.mapping import MappedRow
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.rows import PLAN_COLUMN, MeasuredRow
from planner.job.job import Job
from planner.predict.shapes import rule_context
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.intervals import conditions_of, family_of

# Facts about a job that conditions of `--require` cannot name.
Size = Literal["ungated", "16 bits", "several micro-batches"]
_16_BITS = 16


class Value(NamedTuple):
    """A plausible value of a fact: in words, as the cell that states it, and as a pattern that
    finds it in rows."""

    words: str
    cell: str
    pattern: str


class Fact(Frozen):
    """A fact in `open_facts.toml`: the column that states it, the figures that it changes, when it
    matters, and its plausible values (if empty, it is not varied)."""

    column: str
    figures: tuple[Figure, ...] = Field(min_length=1)
    when: str = ""
    profiles: tuple[str, ...] = ()
    row: dict[str, str] = Field(default_factory=dict)
    waiting: float = 0.0
    sizes: tuple[Size, ...] = ()
    also_stated_by: tuple[dict[str, str], ...] = ()
    values: tuple[Value, ...] = ()
    called: str = ""
    groups: Literal["framework", "architecture"] = "framework"
    silence: float | None = Field(default=None, ge=0.0, le=1.0)
    work: bool = False
    stated: str = ""

    @model_validator(mode="after")
    def _condition_can_be_read(self) -> Fact:
        _ = self.condition
        return self

    @property
    def condition(self) -> Condition | None:
        """The parsed condition `when`; None if it is empty. ConstraintError for a text that is not
        a condition."""
        return _condition(self.when) if self.when else None

    def is_stated(self, row: MeasuredRow) -> bool:
        """Whether the row states the fact, in words that match `stated` if that is given."""
        said = bool(row.fact(self.column)) and row.says(self.column, self.stated)
        return said or any(_says(row, words) for words in self.also_stated_by)

    def stated_value(self, row: MeasuredRow) -> Value | None:
        """The plausible value that a row states; None if it states none of them."""
        text = row.fact(self.column)
        return next((one for one in self.values if text and re.search(one.pattern, text)), None)

    def group(self, job: Job) -> str:
        """The group of runs whose statements give this fact's values their weights: the name of the
        job's framework or of its GPU's architecture, depending on the fact."""
        family = family_of(job)
        return family.framework if self.groups == "framework" else family.architecture

    def matters(self, prediction: Prediction, values: Mapping[str, IntArray]) -> bool:
        """Whether a prediction depends on the fact. `values`: one-element arrays for the names in
        conditions. ValueError for a refused row."""
        mapped = prediction.configured
        return (
            (not self.profiles or mapped.job.framework.name in self.profiles)
            and _says(prediction.row, self.row)
            and all(_is_so(size, mapped) for size in self.sizes)
            and (not self.waiting or _waiting(prediction) >= self.waiting)
            and (self.condition is None or bool(condition_mask(self.condition, values)[0]))
        )


@cache
def _condition(text: str) -> Condition:
    return parse_condition(text, tuple(NAMES))


def _says(row: MeasuredRow, words: Mapping[str, str]) -> bool:
    """Whether every column has words that match; for `!column`, no words that match."""
    return all(
        row.says(column.removeprefix("!"), pattern) != column.startswith("!")
        for column, pattern in words.items()
    )


def _is_so(size: Size, mapped: MappedRow) -> bool:
    job, degrees = mapped.job, mapped.degrees
    match size:
        case "ungated":
            return not job.model.gated
        case "several micro-batches":
            return degrees.mbs * degrees.grad_acc > 1
        case "16 bits":
            return conditions_of(job).bits == _16_BITS


def _waiting(prediction: Prediction) -> float:
    at = prediction.conditions
    return 0.0 if at is None else at.waiting


@cache
def facts() -> tuple[Fact, ...]:
    """The facts in `open_facts.toml`, in its order."""
    content = shipped_toml("planner.evidence.runs", "open_facts.toml")
    lists = content["profiles"]

    def read(column: str, given: dict[str, Any]) -> Fact:
        named = given.get("profiles", ())
        profiles = lists[named] if isinstance(named, str) else named
        return Fact(**given | {"column": column, "profiles": tuple(profiles)})

    return tuple(read(column, given) for column, given in content["facts"].items())


@cache
def fact_named(column: str) -> Fact:
    """The fact of a column. KeyError for an unknown column."""
    return {fact.column: fact for fact in facts()}[column]


@cache
def varied() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns of the varied facts, each with the cells of its values."""
    return tuple(
        (fact.column, tuple(value.cell for value in fact.values)) for fact in facts() if fact.values
    )


def stated_facts(prediction: Prediction) -> dict[str, Value]:
    """By column, the values that a row states for facts that matter to its prediction. CUDA graphs
    count as mattering even if the GPU no longer waits. Empty for a refused row."""
    mapped = prediction.mapped
    if mapped is None or prediction.row.text(PLAN_COLUMN):
        return {}
    row, _ = in_known_words(prediction.row)
    values = shape_values(mapped.columns, rule_context(mapped.job))
    return {
        fact.column: value
        for fact in facts()
        if (value := fact.stated_value(row)) is not None
        and fact.model_copy(update={"waiting": 0.0}).matters(prediction, values)
    }


def leaves_work_open(prediction: Prediction) -> bool:
    """Whether a row leaves open how much is computed, so that its step time says little about
    speed."""
    return any(fact_named(column).work for column in open_facts(prediction, "time") or ())


def open_facts(prediction: Prediction, figure: Figure | None = None) -> tuple[str, ...] | None:
    """The columns that the row leaves empty although its prediction depends on them. `figure`: only
    those that this figure depends on. Empty for a row that names a plan; None for a refused row."""
    mapped = prediction.mapped
    if mapped is None:
        return None
    if prediction.row.text(PLAN_COLUMN):
        return ()
    # Words that the column does not know count as not stated.
    row, _ = in_known_words(prediction.row)
    values = shape_values(mapped.columns, rule_context(mapped.job))
    return tuple(
        fact.column
        for fact in facts()
        if (figure is None or figure in fact.figures)
        and not fact.is_stated(row)
        and fact.matters(prediction, values)
    )
