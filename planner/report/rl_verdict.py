"""The answer of an RL search as a card, in the form of `verdict.py`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.job.quantities import (
    gib,
    percent_sure,
    plural,
    seconds,
    share,
    short_count,
    signed_share,
)
from planner.predict.plan_text import LIKELY_TO_FIT, plan_name
from planner.predict.rl.plan import Phase
from planner.report.said import table_of
from planner.report.tables import Block, Notes
from planner.report.verdict import card_facts, drawn, legend, stacked
from planner.search.rl.result import RlPlan, RlResult

# Kind of work of each phase, with its mark in a bar; all other phases move tensors.
_KINDS = {
    "generation": ("samples", "█"), "reward": ("judges", "▚"), "old_logprobs": ("scores", "▓"),
    "reference": ("scores", "▓"), "values": ("scores", "▓"), "critic_update": ("trains", "▒"),
    "update": ("trains", "▒"),
}  # fmt: skip
_MOVES = ("moves weights", "░")
# Smallest wait of a side, as a share of the step, that is worth a word.
_LEAST_WAIT = 0.01
_MARKS = dict((*_KINDS.values(), _MOVES))


@dataclass(frozen=True)
class RlVerdict:
    """A summary of the recommended plan, or of plan `asked`."""

    result: RlResult
    asked: int = 0

    @property
    def number(self) -> int:
        """The plan's number."""
        return self.asked or self.result.recommended

    @property
    def plan(self) -> RlPlan:
        """The plan."""
        return self.result.plans[self.number - 1]

    @property
    def headline(self) -> str:
        """The answer as a sentence."""
        plan = self.plan
        return (
            f"{'Plan' if self.asked else 'Use plan'} {self.number}, {name(plan)}: "
            f"{seconds(plan.step_s)} a step "
            f"({seconds(plan.low_s)} to {seconds(plan.high_s)}), "
            f"{short_count(plan.samples_per_gpu_hour)} samples an hour and GPU; "
            f"{self.memory_text}, {percent_sure(plan.fit_probability)} sure to fit."
        )

    @property
    def memory_text(self) -> str:
        """The peak of the fullest GPU and its usable memory: `57.1 of 79.1 GiB`."""
        fullest = fullest_phase(self.plan)
        usable = self.plan.usable_bytes[fullest.side]
        return f"{gib(fullest.peak_bytes)} of {gib(usable)} GiB"

    @property
    def memory_bar(self) -> str:
        """The fullest GPU against its memory."""
        return f"{drawn(((self.memory_share, '█'),), 1.0)} {self.memory_text}"

    @property
    def memory_share(self) -> float:
        """The peak of the fullest GPU as a share of its usable memory, at most 1."""
        return min(1.0, self.plan.peak_share)

    @cached_property
    def sides(self) -> dict[str, dict[str, float]]:
        """Seconds by kind of work, for each bar of the card. If one side waits for the other, there
        is one bar, `step`, for both. If both sides work at once (separate GPUs, with weights at
        least 1 update old), each side has its own bar, so that no bar is longer than the step."""
        plan = self.plan
        at_once = plan.placement == "separate" and plan.staleness > 0
        found: dict[str, dict[str, float]] = {}
        for phase in plan.phases:
            sums = found.setdefault(f"{phase.side}s" if at_once else "step", {})
            kind = _KINDS.get(phase.name, _MOVES)[0]
            if phase.seconds > 0.0:
                sums[kind] = sums.get(kind, 0.0) + phase.seconds
        return found

    @property
    def time_text(self) -> str:
        """`55.7 s, 51.5 s to 63.9 s`."""
        plan = self.plan
        return f"{seconds(plan.step_s)}, {seconds(plan.low_s)} to {seconds(plan.high_s)}"

    def amount(self, side: str) -> str:
        """The text after a bar of `sides`. For `step`: the step time with its interval. For a
        single side: the step time and, if it is long enough to mention, the time for which the side
        waits."""
        if side == "step":
            return self.time_text
        waits = max(0.0, self.plan.step_s - sum(self.sides[side].values()))
        return f"of {seconds(self.plan.step_s)}" + (
            f"; waits {seconds(waits)}" if waits > _LEAST_WAIT * self.plan.step_s else ""
        )

    @property
    def time_rows(self) -> tuple[tuple[str, str], ...]:
        """A bar of the seconds of each side by purpose, each with its legend."""
        rows: list[tuple[str, str]] = []
        for side, sums in self.sides.items():
            whole = None if side == "step" else self.plan.step_s
            rows.append((side, f"{stacked(sums, _MARKS, whole)} {self.amount(side)}"))
            rows.append(("", legend(sums, _MARKS)))
        return tuple(rows)

    @property
    def risk(self) -> str:
        """A sentence on the main risk: that the plan does not fit, if it is not likely to fit;
        otherwise the interval of the step time."""
        plan = self.plan
        if plan.fit_probability < LIKELY_TO_FIT:
            missing = percent_sure(1.0 - plan.fit_probability)
            return f"{missing} risk that it does not fit; a lighter plan below avoids it."
        longer, shorter = plan.high_s / plan.step_s - 1.0, 1.0 - plan.low_s / plan.step_s
        return (
            f"The step may take {share(longer, 0)} more or {share(shorter, 0)} less: lengths of "
            "answers decide it, and planner calibrate learns them from one log of yours."
        )

    def next(self, saved_as: str | None) -> str:
        """The command to type next."""
        number = self.number
        if saved_as is None:
            return (
                f"add -o plans.json to keep the plans, then planner launch plans.json {number} "
                "-o run"
            )
        return f"planner launch {shlex.quote(saved_as)} {number} -o run"

    @cached_property
    def alternatives(self) -> list[tuple[int, str, RlPlan]]:
        """(number, reason, plan) for two plans to consider, by number: the fastest plan with
        another placement or age of weights, and the lightest plan. Plans that are the same as this
        one are left out."""
        plans = list(enumerate(self.result.plans, start=1))
        mine = (self.plan.placement, self.plan.staleness)
        others = [one for one in plans if (one[1].placement, one[1].staleness) != mine]
        named = [("the fastest placed otherwise", min(others, key=_step))] if others else []
        named.append(("the lightest", min(plans, key=lambda one: one[1].peak_share)))
        found = {number: (words, plan) for words, (number, plan) in reversed(named)}
        found.pop(self.number, None)
        return [(number, *rest) for number, rest in sorted(found.items())]

    def than(self, plan: RlPlan) -> str:
        """Another plan compared with this one: how much longer its step is, and its peak memory
        (not the difference): `+12.0 % step time, 44.8 GiB`."""
        longer = plan.step_s / self.plan.step_s - 1.0
        return f"{signed_share(longer)} step time, {gib(fullest_bytes(plan))} GiB"


def _step(one: tuple[int, RlPlan]) -> float:
    return one[1].step_s


def fullest_phase(plan: RlPlan) -> Phase:
    """The phase with the largest share of a GPU's memory in use."""
    return max(plan.phases, key=lambda one: one.peak_bytes / plan.usable_bytes[one.side])


def fullest_bytes(plan: RlPlan) -> float:
    """Bytes on the fullest GPU of either side."""
    return max(phase.peak_bytes for phase in plan.phases)


def name(plan: RlPlan) -> str:
    """`colocated, 32 GPUs train DP 32, ZeRO-3 and sample with 4 × TP 8`."""
    engine = plan.engine
    degrees = " × ".join(
        f"{word} {value}"
        for word, value in (("TP", engine.tp), ("PP", engine.pp), ("DP", engine.dp))
        if value > 1
    )
    engines = f"{engine.replicas} × {degrees or 'one GPU'}"
    behind = f", samples {plural(plan.staleness, 'update')} old" if plan.staleness else ""
    trains = f"{plan.trainer_gpus} GPUs train by {plan_name(plan.trainer)}"
    same = plan.placement == "colocated"
    samples = "and sample" if same else f"and {plan.engine_gpus} sample"
    return f"{plan.placement}{behind}, {trains} {samples} with {engines}"


def verdict_blocks(
    result: RlResult, saved_as: str | None = None, asked: int = 0
) -> Iterator[Block]:
    """The card of the recommended plan with alternatives, or only the card of plan `asked`."""
    verdict = RlVerdict(result, asked)
    yield Notes((verdict.headline,))
    yield card_facts(verdict, verdict.risk, verdict.next(saved_as))
    if verdict.alternatives and not asked:
        rows = (
            {
                "number": number, "words": words, "plan": plan, "name": name(plan),
                "longer": plan.step_s / verdict.plan.step_s - 1.0,
                "held": fullest_bytes(plan),
            }
            for number, words, plan in verdict.alternatives
        )  # fmt: skip
        yield table_of("rl_front.instead", rows)
