"""Two plans side by side: what differs, how much faster or lighter one is, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from constraints.axes import AXES
from planner.cost.terms import MEMORY_WORDS, TIME_WORDS
from planner.job.quantities import GIB, gib, seconds
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    batch_text,
    blocks_text,
    exchange_text,
    layers_text,
    offload_text,
    plan_name,
    recompute_text,
    schedule_text,
    techniques_text,
)
from planner.predict.uncertainty.differences import Ratio, plan_ratio
from planner.report.differences import beside_text, is_mixture
from planner.report.said import table_of, words_of
from planner.report.tables import Block, Notes, as_report
from planner.search.explanation import pick_plan
from planner.search.result import SearchResult

# Number of differences that are named, the largest first; and the smallest share of the total that
# is named.
_NAMED = 3
_LEAST_SHARE = 0.005
# Axes that are part of the text of a batch.
_IN_BATCH = ("mbs", "grad_acc")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that differs between two plans: its name in words, and its value in each plan as
    text."""

    words: str
    one: str
    another: str


@dataclass(frozen=True, slots=True)
class TermPair:
    """The amount of a term in two plans, in seconds or bytes."""

    words: str
    one: float
    another: float

    @property
    def more(self) -> float:
        """The second plan's amount minus the first plan's."""
        return self.another - self.one

    @property
    def more_gib(self) -> float:
        """The same difference in GiB."""
        return self.more / GIB


class TwoPlans(ABC):
    """Two plans of a file, numbered from 1. Times are in seconds, sizes in bytes."""

    number: int
    other: int
    ratio: Ratio
    names: tuple[str, str]
    step_s: tuple[float, float]
    peak_bytes: tuple[float, float]
    # Titles of the tables of seconds and of bytes, in `words/beside.toml`.
    titles: tuple[str, str] = ("time", "memory")

    @property
    @abstractmethod
    def settings(self) -> tuple[Setting, ...]:
        """Settings that differ."""

    @property
    @abstractmethod
    def time(self) -> tuple[TermPair, ...]:
        """Seconds of a step by purpose, without those that are 0 in both plans."""

    @property
    @abstractmethod
    def memory(self) -> tuple[TermPair, ...]:
        """Bytes on the fullest GPU by purpose, without those that are 0 in both plans."""

    @property
    def sentences(self) -> Iterator[str]:
        """The answer: which plan is faster and which is lighter, and by how much."""
        (name, other_name), (one, another) = self.names, self.peak_bytes
        yield words_of(
            "beside.headline", ratio=beside_text(self.ratio), memory=_lighter(another - one),
            name=name, other_name=other_name, number=self.number, other=self.other,
        )  # fmt: skip
        if told := largest(self.time, self.step_s[0], seconds):
            yield words_of("beside.slower", terms=told)
        if told := largest(self.memory, one, lambda size: f"{gib(size)} GiB"):
            yield words_of("beside.heavier", terms=told)

    def record(self) -> dict[str, Any]:
        """The comparison for `--json`, in seconds and bytes."""
        return {
            "plans": [self.number, self.other],
            "step_time_s": [*self.step_s],
            "ratio": self.ratio.model_dump(),
            "peak_bytes": [*self.peak_bytes],
            "settings": [asdict(item) for item in self.settings],
            "time_s": [asdict(item) for item in self.time],
            "memory_bytes": [asdict(item) for item in self.memory],
            "summary": " ".join(self.sentences),
        }


class Beside(TwoPlans):
    """Two plans of a search. Raises UsageError for numbers that are not in the file."""

    def __init__(self, result: SearchResult, number: int, other: int) -> None:
        self.number, self.other = number, other
        self.plans = one, another = pick_plan(result, number), pick_plan(result, other)
        self.ratio = plan_ratio(one, another, is_mixture(result.job))
        self.names = plan_name(one), plan_name(another)
        self.step_s = one.step_time_s, another.step_time_s
        self.peak_bytes = one.peak_bytes, another.peak_bytes

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that differ."""
        return differing(*map(_settings, self.plans))

    @property
    def time(self) -> tuple[TermPair, ...]:
        """Terms of the step time that are not 0 in both plans."""
        return _pairs(TIME_WORDS, *(plan.time for plan in self.plans))

    @property
    def memory(self) -> tuple[TermPair, ...]:
        """Terms of the fullest stage's peak that are not 0 in both plans."""
        return _pairs(MEMORY_WORDS, *(plan.stages[plan.heaviest_stage] for plan in self.plans))


@as_report
def beside_report(beside: TwoPlans) -> Iterator[Block]:
    """The report of two plans."""
    numbers: dict[str, Any] = {"number": beside.number, "other": beside.other}
    time, memory = beside.titles
    yield Notes(tuple(beside.sentences))
    if beside.settings:
        yield table_of("beside.differs", beside.settings, **numbers)
    yield table_of(f"beside.{time}", beside.time, **numbers)
    yield table_of(f"beside.{memory}", beside.memory, **numbers)


def compared(plan: Plan) -> dict[str, Any]:
    """The values with which a page compares a plan: its name, its settings, and the seconds of a
    step and the GiB of the fullest stage, each in total and by term."""
    fullest = plan.stages[plan.heaviest_stage]
    return {
        "name": plan_name(plan),
        "step_s": plan.step_time_s,
        "gib": plan.peak_bytes / GIB,
        "settings": _settings(plan),
        "time": _terms(TIME_WORDS, plan.time, 1.0),
        "memory": _terms(MEMORY_WORDS, fullest, GIB),
    }


def _terms(words: dict[str, str], source: object, unit: float) -> dict[str, float]:
    found = {text: float(getattr(source, name)) / unit for name, text in words.items()}
    return {text: round(value, 4) for text, value in found.items() if value}


def _settings(plan: Plan) -> dict[str, str]:
    """The settings of a plan, in words."""
    degrees = {
        axis.words: getattr(plan.degrees, name)
        for name, axis in AXES.items()
        if name not in _IN_BATCH
    }
    fraction = plan.activation_offload_fraction
    offloaded = offload_text(
        plan.optimizer_offload, plan.activation_offload, fraction, plan.optimizer
    )
    return {words: f"{value:,}" for words, value in degrees.items()} | {
        "micro-batch × accumulation": batch_text(plan.degrees),
        "recompute": recompute_text(plan),
        "schedule": schedule_text(plan) or plan.schedule,
        "exchange of context": exchange_text(plan) or "-",
        "layers of stages": layers_text(plan) or blocks_text(plan) or "even",
        "techniques": techniques_text(plan) or "-",
        "on the host": offloaded or "-",
    }


def differing(one: Mapping[str, str], another: Mapping[str, str]) -> tuple[Setting, ...]:
    """Settings that differ between two plans."""
    pairs = (Setting(words, one[words], another[words]) for words in one)
    return tuple(pair for pair in pairs if pair.one != pair.another)


def _pairs(words: dict[str, str], one: object, another: object) -> tuple[TermPair, ...]:
    pairs = (
        TermPair(text, float(getattr(one, name)), float(getattr(another, name)))
        for name, text in words.items()
    )
    return tuple(pair for pair in pairs if pair.one or pair.another)


def largest(pairs: Sequence[TermPair], whole: float, written: Callable[[float], str]) -> str:
    """The differences that are a large enough part of `whole`, in words, the largest first: `2.3 s
    more on recompute, 0.8 s less on exposed TP traffic`. Only the first few are named; empty if no
    difference is large. `written` turns an amount into text."""
    large = [pair for pair in pairs if abs(pair.more) > _LEAST_SHARE * whole]
    large.sort(key=lambda pair: -abs(pair.more))
    word = {True: "more", False: "less"}
    between = "on" if written is seconds else "of"
    return ", ".join(
        f"{written(abs(pair.more))} {word[pair.more > 0]} {between} {pair.words}"
        for pair in large[:_NAMED]
    )


def _lighter(more_bytes: float) -> str:
    if abs(more_bytes) < _LEAST_SHARE * GIB:
        return "as much"
    return f"{gib(abs(more_bytes))} GiB {'more' if more_bytes > 0 else 'less'}"
