"""The answer of a search as a card, for the terminal, pages, notebooks and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from planner.cost.terms import TIME_TERMS
from planner.job.quantities import gib, seconds
from planner.predict.plan import Plan
from planner.predict.plan_text import LIKELY_TO_FIT, plan_name
from planner.predict.uncertainty.differences import Ratio, plan_ratio
from planner.report.differences import is_mixture, ratio_text, ties
from planner.report.said import table_of, words_of
from planner.report.tables import Block, Facts, Notes
from planner.search.result import SearchResult

# Width of a bar in characters, and the characters for memory in use, the rest of the interval, and
# free memory.
_CELLS = 40
_USED, _MAY, _FREE = "█", "▒", "·"
# Kinds of time that the time bar distinguishes, with their marks.
_KINDS = {"compute": "█", "exchange": "▓", "waiting": "░"}
# Smallest expected slow-down that is mentioned, as a share of the step time.
LEAST_LUCK = 0.01


@dataclass(frozen=True)
class Alternative:
    """Another plan to consider instead of the recommended one. `words`: the reason; `number`: its
    number in the plan file, or 0 if it is not in the file; `ratio`: its seconds per token divided
    by those of the recommended plan."""

    words: str
    number: int
    plan: Plan
    ratio: Ratio

    @property
    def name(self) -> str:
        """Its degrees, as people say them."""
        return plan_name(self.plan)

    @property
    def than(self) -> str:
        """How much slower or faster it is than the plan to take."""
        return ratio_text(self.ratio)


class PlanBars:
    """Memory and step time of `plan`, in words and as bars."""

    plan: Plan

    @property
    def memory_shares(self) -> tuple[float, float]:
        """Two parts of the memory bar: the predicted peak of the fullest GPU, and the rest up to
        the upper end of its 80 % interval. They are shares of the usable memory, or of that upper
        end if it is larger."""
        plan = self.plan
        whole = max(plan.usable_bytes, plan.peak_interval.high)
        return plan.peak_bytes / whole, (plan.peak_interval.high - plan.peak_bytes) / whole

    @property
    def memory_text(self) -> str:
        """`68.3 of 79.1 GiB`."""
        return f"{gib(self.plan.peak_bytes)} of {gib(self.plan.limit_bytes)} GiB"

    @property
    def time_text(self) -> str:
        """`55.7 s, 51.5 s to 63.9 s`."""
        step = self.plan.step_time
        return f"{seconds(self.plan.step_time_s)}, {seconds(step.low)} to {seconds(step.high)}"

    @property
    def memory_bar(self) -> str:
        """The fullest GPU against its memory, with the 80 % interval."""
        used, may = self.memory_shares
        return f"{drawn(((used, _USED), (used + may, _MAY)), 1.0)} {self.memory_text}"

    @property
    def time_rows(self) -> tuple[tuple[str, str], ...]:
        """The step time by kind of work, with the 80 % interval of the sum; then the legend of
        that bar."""
        kinds = kinds_of_time(self.plan)
        bar = f"{stacked(kinds, _KINDS)} {self.time_text}"
        return ("step", bar), ("", legend(kinds, _KINDS))


@dataclass(frozen=True)
class PlanCard(PlanBars):
    """A summary of one plan. `name`: the beginning of the sentence; `next`: the command to type
    next."""

    plan: Plan
    name: str
    next: str

    @property
    def risk(self) -> str:
        """The most likely way in which the prediction is wrong."""
        return fit_risk(self.plan) or words_of("verdict.bounded")

    @property
    def blocks(self) -> Iterator[Block]:
        """The card."""
        yield Notes((headline_of(self.plan, self.name),))
        yield card_facts(self, self.risk, self.next)


def headline_of(plan: Plan, name: str) -> str:
    """`TP 2 × DP 8: 3.42 s a step (…), …`: time and memory of a plan in a sentence."""
    return words_of(
        "verdict.headline", plan, name=name, low=plan.step_time.low, high=plan.step_time.high,
        usable=plan.limit_bytes, over=plan.peak_bytes > plan.limit_bytes,
    )  # fmt: skip


def fit_risk(plan: Plan, surer: str = "a lighter plan or --hbm-reserve avoids it.") -> str:
    """A sentence with the probability that a plan does not fit, followed by `surer`, which says how
    to avoid it. Empty if the plan is likely to fit."""
    if plan.fit_probability >= LIKELY_TO_FIT:
        return ""
    return words_of("verdict.unsure", None, missing=1.0 - plan.fit_probability, surer=surer)


class Bars(Protocol):
    """The bars of a card, each with its figures."""

    @property
    def memory_bar(self) -> str:
        """The fullest GPU against its memory."""

    @property
    def time_rows(self) -> tuple[tuple[str, str], ...]:
        """The step time by kind of work, then the legend of that bar."""


def card_facts(bars: Bars, risk: str, following: str) -> Facts:
    """Bars of memory and time, the risk, and what to type next."""
    return Facts(
        (
            ("memory", bars.memory_bar),
            *bars.time_rows,
            ("risk", risk),
            ("next", following),
        )
    )


@dataclass(frozen=True)
class Verdict(PlanBars):
    """A summary of the recommended plan of a search. The search must recommend one."""

    result: SearchResult

    @property
    def number(self) -> int:
        """The number of the plan to take."""
        return self.result.recommended

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan to take."""
        return self.result.plans[self.number - 1]

    @property
    def headline(self) -> str:
        """The answer as a sentence."""
        return headline_of(self.plan, f"Use plan {self.number}, {plan_name(self.plan)}")

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Other plans to consider: surer to fit, faster if it fits, simpler, lighter. A plan that
        qualifies for several reasons is given once, with all of them."""
        found: dict[int, tuple[list[str], Plan]] = {}
        for words, number, plan in self._named():
            if number != self.number:
                found.setdefault(number, ([], plan))[0].append(words)
        mixture = is_mixture(self.result.job)
        return tuple(
            Alternative(", ".join(words), number, plan, plan_ratio(self.plan, plan, mixture))
            for number, (words, plan) in found.items()
        )

    @property
    def labels(self) -> dict[int, str]:
        """Labels in pictures for the plans that matter, by plan number."""
        named = {one.number: f"{one.number} {one.words}" for one in self.alternatives if one.number}
        return {self.number: f"{self.number} take"} | named

    def _named(self) -> Iterator[tuple[str, int, Plan]]:
        plans = self._listed
        if self._surer is not None:
            yield "surer to fit", *self._surer
        if self.result.riskier:
            yield "faster, if it fits", 0, self.result.riskier[0]
        yield "simpler to run", *min(plans, key=lambda one: (features(one[1]), one[0]))
        yield "lightest", *min(plans, key=lambda one: one[1].peak_bytes)

    @cached_property
    def _listed(self) -> list[tuple[int, Plan]]:
        """The plans of the result that a report shows, with their numbers, and always the
        recommended one. All plans if the result does not say which are shown."""
        shown = (*self.result.shown, self.number) if self.result.shown else None
        every = enumerate(self.result.plans, start=1)
        return [one for one in every if shown is None or one[0] in shown]

    @cached_property
    def near(self) -> dict[int, Ratio]:
        """Plans that may be as fast as the recommended one, by number, with their seconds per token
        divided by its seconds per token."""
        every = enumerate(self.result.plans, start=1)
        others = [one for one in every if one[0] != self.number]
        return ties([(self.number, self.plan), *others], is_mixture(self.result.job))

    @property
    def _surer(self) -> tuple[int, Plan] | None:
        """The number and plan of a safer choice, if the recommended plan is not likely to fit: of
        the shown plans that may be as fast and are likely to fit, the fastest. None if the
        recommended plan is likely to fit or there is no such plan."""
        if self.plan.fit_probability >= LIKELY_TO_FIT:
            return None
        plans = self.result.plans
        listed = {number for number, _ in self._listed} & set(self.near)
        sure = [n for n in sorted(listed) if plans[n - 1].fit_probability >= LIKELY_TO_FIT]
        if not sure:
            return None
        number = min(sure, key=lambda one: self.near[one].value)
        return number, plans[number - 1]

    @property
    def risk(self) -> str:
        """The most likely way in which the prediction is wrong."""
        if self._surer is not None:
            instead = f"plan {self._surer[0]} avoids it where a run that dies costs more."
            return fit_risk(self.plan, instead)
        if self.fears_luck:
            return words_of("verdict.lucky", self.result.luck)
        return fit_risk(self.plan) or words_of("verdict.bounded")

    @property
    def fears_luck(self) -> bool:
        """Whether the main risk is that the plan was chosen because its predicted time is too low.
        False if the plan is not likely to fit."""
        luck, is_sure = self.result.luck, bool(self.result.recommended)
        is_sure = is_sure and self.plan.fit_probability >= LIKELY_TO_FIT
        return is_sure and luck is not None and luck.longer >= LEAST_LUCK

    def next(self, saved_as: str | None) -> str:
        """The command to type next."""
        key = "verdict.keep" if saved_as is None else "verdict.launch"
        return words_of(key, number=self.number, saved_as=saved_as and shlex.quote(saved_as))


def verdict_blocks(result: SearchResult, saved_as: str | None = None) -> Iterator[Block]:
    """The card; empty if no plan is recommended."""
    if not result.recommended:
        return
    verdict = Verdict(result)
    yield Notes((verdict.headline,))
    yield card_facts(verdict, verdict.risk, verdict.next(saved_as))
    if verdict.alternatives:
        yield table_of("verdict.table", verdict.alternatives)


def kinds_of_time(plan: Plan) -> dict[str, float]:
    """Seconds of a step by kind of time: `compute`, `exchange` (exposed communication) and
    `waiting`. Kinds that take no time are left out."""
    kinds = {"compute": "compute", "optimizer": "compute", "idle": "waiting", "host": "waiting"}
    sums = dict.fromkeys(_KINDS, 0.0)
    for term in TIME_TERMS:
        sums[kinds.get(term.traced, "exchange")] += float(getattr(plan.time, term.field))
    return {kind: amount for kind, amount in sums.items() if amount > 0.0}


def features(plan: Plan) -> int:
    """Number of features that a plan uses beyond plain data parallelism. The fewer, the simpler the
    plan."""
    degrees = plan.degrees
    used = [getattr(degrees, axis) > 1 for axis in ("tp", "pp", "vpp", "cp", "ep")]
    used += [degrees.zero >= 3, plan.recompute != "none", bool(plan.layout.recomputed)]
    used += [plan.optimizer_offload > 0.0, bool(plan.activation_offload)]
    return sum(map(int, used)) + len(plan.techniques)


def stacked(sums: Mapping[str, float], marks: Mapping[str, str], whole: float | None = None) -> str:
    """A bar of text with one part for each of `sums`, drawn with the mark of that name. The full
    bar stands for `whole`; if that is None, for the sum of the parts."""
    ends = zip(accumulate(sums.values()), map(marks.__getitem__, sums), strict=True)
    return drawn(list(ends), sum(sums.values()) if whole is None else whole)


def legend(sums: Mapping[str, float], marks: Mapping[str, str]) -> str:
    """The legend of a stacked bar: `█ compute 51.2 s, ▓ exchange 3.87 s`."""
    return ", ".join(f"{marks[name]} {name} {seconds(size)}" for name, size in sums.items())


def drawn(parts: Sequence[tuple[float, str]], whole: float, cells: int = _CELLS) -> str:
    """A bar of text that is `cells` characters long. `parts`: where each part ends, ascending and
    in the unit of `whole`, and its mark. The bar stands for `whole`; the rest of it stays empty."""
    bar = ""
    for amount, mark in parts:
        bar += mark * (min(cells, round(amount / whole * cells)) - len(bar))
    return bar + _FREE * (cells - len(bar))
