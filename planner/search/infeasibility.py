"""Why nothing fits, as typed data: the rules that contradict each other, and the changes tried.

`planner.search.infeasible` determines it; `planner.report.fit` turns it into text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hardware.frozen import Frozen
from planner.job.errors import NothingFitsError
from planner.job.quantities import GIB, percent_sure
from planner.job.request import Request
from planner.predict.plan import Plan
from planner.predict.plan_text import FitVerdict, fit_verdict
from planner.search.frame import plan_row

# Listed as untried: finding the user's choices that take part in the conflict.
UNDECIDED_RULES = "rules in conflict"


class ConflictingRule(Frozen):
    """One rule of a conflict, with its numbers. `name`: name of the option or rule."""

    name: str
    text: str


class Relaxation(Frozen):
    """The smallest change of one kind with which a plan was found, and the plan.

    `kind`: one of `planner.search.changes.KINDS`, or `everything`. `change`: what to add to or
    remove from the command. `smallest`: no smaller change of the kind that was tried fits.
    """

    kind: str
    change: str
    smallest: bool
    plan: Plan

    @property
    def seconds_per_token(self) -> float:
        """Sort key of relaxations, because their batches may differ slightly."""
        return self.plan.step_time_s / self.plan.gbs_tokens


class WhyNothingFits(Frozen):
    """`conflict`: a minimal set of rules that together exclude every plan. `layouts`: why other
    splits of the lightest configuration's layers do not help, if established. `proven`: no plan
    exists within the cost model; otherwise none was found with the effort allowed. `untried`: kinds
    of changes cut off by the time limit or Ctrl-C (`stopped`). `in_vain`: for each kind without a
    plan, the last change tried. `riskier`: plans that fit less surely than requested, fastest
    first. `lightest`: the configuration that needs least memory. `unmodelled`: features of the
    framework that might make it fit but are not modelled."""

    outcome: Literal["nothing-fits"] = "nothing-fits"
    planner_version: str
    request: Request
    legal: int
    usable_bytes: float
    limit_bytes: float
    proven: bool
    conflict: tuple[ConflictingRule, ...]
    layouts: tuple[ConflictingRule, ...]
    relaxations: tuple[Relaxation, ...]
    stopped: Literal["", "time-limit", "interrupted"] = ""
    untried: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    riskier: tuple[Plan, ...] = ()
    lightest: Plan | None = None
    unmodelled: tuple[str, ...] = ()

    @property
    def best_probability(self) -> float:
        """Highest known probability of fitting of any plan of the job."""
        known = (*self.riskier, *(() if self.lightest is None else (self.lightest,)))
        return max((plan.fit_probability for plan in known), default=0.0)

    @property
    def verdict(self) -> FitVerdict:
        """Whether the job fits, judged by its surest plan. "cannot tell" in place of a no that is
        not proven, or if something that is not modelled might make it fit."""
        words = fit_verdict(self.best_probability)
        certain = words in {"does not fit", "probably does not fit"}
        return "cannot tell" if certain and (self.unmodelled or not self.proven) else words

    @property
    def cut(self) -> str:
        """The event that ended the search before all changes were tried; empty if there was
        none."""
        if not self.untried:
            return ""
        reason = "the time limit" if self.stopped == "time-limit" else "an interrupt"
        return (
            f"{reason} came before everything was tried; not tried, or only in part: "
            f"{', '.join(self.untried)}"
        )

    def sentences(self) -> str:
        """The whole explanation in plain lines."""
        first = "no configuration fits" if self.proven else "no configuration was found that fits"
        lines = [f"{first}:", *(f"  - {rule.text}" for rule in (*self.conflict, *self.layouts))]
        if self.relaxations:
            lines.append("what would make it fit (searched):")
            lines += [f"  - {relaxation_sentence(relaxation)}" for relaxation in self.relaxations]
        elif self.in_vain or not self.untried:
            lines.append("none of the changes that were tried makes it fit")
        if self.cut:
            lines.append(self.cut)
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """One row per relaxation, with the columns of its plan (`planner.search.frame`)."""
        return [
            one.model_dump(include={"kind", "change", "smallest"}) | plan_row(one.plan)
            for one in self.relaxations
        ]


# Called with the reason before the search for what would fit.
Verdict = Callable[[WhyNothingFits], None]


def silent(_why: WhyNothingFits) -> None:
    """A `Verdict` that does nothing."""


def relaxation_sentence(relaxation: Relaxation) -> str:
    """The change, its effect, and how surely it fits."""
    time = relaxation.plan.step_time
    middle, low, high = (
        _digits(item) for item in (relaxation.plan.step_time_s, time.low, time.high)
    )
    peak = relaxation.plan.peak_bytes / GIB
    sure = percent_sure(relaxation.plan.fit_probability)
    return f"{relaxation.change}: {middle} s a step ({low} to {high}), {peak:.1f} GiB, fits {sure}"


def _digits(value: float) -> str:
    """Three significant digits without an exponent: 1,020 and 9.84."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


class DoesNotFitError(NothingFitsError):
    """Every legal configuration exceeds the memory. `why` names the rules that exclude them."""

    def __init__(self, why: WhyNothingFits) -> None:
        self.why = why
        super().__init__(why.sentences())
