"""Two plans side by side: what differs, how much faster or lighter one is, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from planner.predict.uncertainty.differences import plan_ratio
from planner.report.differences import beside_text, is_mixture
from planner.report.said import table_of, words_of
from planner.report.tables import Block, Notes, as_report
from planner.search.explanation import pick_plan
from planner.search.result import SearchResult

# Differences that are named: the largest, and none below these shares of what they are part of.
_NAMED = 3
_LEAST_SHARE = 0.005
# Axes that the text of a batch says.
_IN_BATCH = ("mbs", "grad_acc")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is not the same in both plans."""

    words: str
    one: str
    another: str


@dataclass(frozen=True, slots=True)
class TermPair:
    """A term of both plans, in seconds or bytes."""

    words: str
    one: float
    another: float

    @property
    def more(self) -> float:
        """What the other plan has more of it."""
        return self.another - self.one

    @property
    def more_gib(self) -> float:
        """The same of bytes, in GiB."""
        return self.more / GIB


@dataclass(frozen=True)
class Beside:
    """Two plans of a search, by their numbers from 1."""

    result: SearchResult
    number: int
    other: int

    @property
    def plans(self) -> tuple[Plan, Plan]:
        """The two plans. UsageError for numbers that the file does not have."""
        return pick_plan(self.result, self.number), pick_plan(self.result, self.other)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that differ."""
        one, another = (_settings(plan) for plan in self.plans)
        pairs = ((words, one[words], another[words]) for words in one)
        return tuple(Setting(*pair) for pair in pairs if pair[1] != pair[2])

    @property
    def time(self) -> tuple[TermPair, ...]:
        """Terms of the step time that either has."""
        return _pairs(TIME_WORDS, *(plan.time for plan in self.plans))

    @property
    def memory(self) -> tuple[TermPair, ...]:
        """Terms of the fullest stage's peak that either has."""
        return _pairs(MEMORY_WORDS, *(plan.stages[plan.heaviest_stage] for plan in self.plans))

    @property
    def sentences(self) -> Iterator[str]:
        """The answer: which is faster and lighter, and by what."""
        one, another = self.plans
        ratio = plan_ratio(one, another, is_mixture(self.result.job))
        names = {"name": plan_name(one), "other_name": plan_name(another)}
        memory = _lighter(another.peak_bytes - one.peak_bytes)
        numbers = {"number": self.number, "other": self.other}
        yield words_of(
            "beside.headline", ratio=beside_text(ratio), memory=memory, **names, **numbers
        )
        if told := _largest(self.time, one.step_time_s, seconds):
            yield words_of("beside.slower", terms=told)
        if told := _largest(self.memory, one.peak_bytes, lambda size: f"{gib(size)} GiB"):
            yield words_of("beside.heavier", terms=told)

    def record(self) -> dict[str, Any]:
        """The same for `--json`: seconds and bytes."""
        one, another = self.plans
        ratio = plan_ratio(one, another, is_mixture(self.result.job))
        return {
            "plans": [self.number, self.other],
            "step_time_s": [one.step_time_s, another.step_time_s],
            "ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
            "peak_bytes": [one.peak_bytes, another.peak_bytes],
            "settings": [asdict(item) for item in self.settings],
            "time_s": [asdict(item) for item in self.time],
            "memory_bytes": [asdict(item) for item in self.memory],
            "summary": " ".join(self.sentences),
        }


@as_report
def beside_report(beside: Beside) -> Iterator[Block]:
    """The report of two plans."""
    number, other = beside.number, beside.other
    yield Notes(tuple(beside.sentences))
    if beside.settings:
        yield table_of("beside.differs", beside.settings, number=number, other=other)
    yield table_of("beside.time", beside.time, number=number, other=other)
    yield table_of("beside.memory", beside.memory, number=number, other=other)


def compared(plan: Plan) -> dict[str, Any]:
    """What a page needs of a plan to put it beside another: its name, settings, seconds of a step
    and GiB of the fullest stage, by their words."""
    fullest = plan.stages[plan.heaviest_stage]
    return {
        "name": plan_name(plan),
        "settings": _settings(plan),
        "time": _terms(TIME_WORDS, plan.time, 1.0),
        "memory": _terms(MEMORY_WORDS, fullest, GIB),
    }


def _terms(words: dict[str, str], source: object, unit: float) -> dict[str, float]:
    found = {text: float(getattr(source, name)) / unit for name, text in words.items()}
    return {text: round(value, 4) for text, value in found.items() if value}


def _settings(plan: Plan) -> dict[str, str]:
    """What a person sets, in words, by what it is."""
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


def _pairs(words: dict[str, str], one: object, another: object) -> tuple[TermPair, ...]:
    pairs = (
        TermPair(text, float(getattr(one, name)), float(getattr(another, name)))
        for name, text in words.items()
    )
    return tuple(pair for pair in pairs if pair.one or pair.another)


def _largest(pairs: Sequence[TermPair], whole: float, written: Callable[[float], str]) -> str:
    """`2.3 s more on recompute, 0.8 s less on exposed TP traffic`: the largest differences."""
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
