"""Cards: the answer of a page in a sentence, with the reason, the risk and the next step."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.cluster_front import ClusterFront, ClusterPoint
from planner.compare.results import Comparison, Decision, Scaling
from planner.evidence.runs.predict import Prediction
from planner.job.quantities import gib, percent_sure, seconds
from planner.predict.plan import Plan
from planner.predict.plan_text import plan_name
from planner.report.charts.memory import MemoryFigure
from planner.report.cluster_front import front_headline
from planner.report.evidence import validation_headline
from planner.report.pages.page import Bar, Card
from planner.report.rl_verdict import RlVerdict
from planner.report.rl_verdict import name as rl_name
from planner.report.study_words import budget_headline, decision_facts, headline, verdict_text
from planner.report.traced import Panels, pairs_verdict
from planner.report.tune import best_text, why_text
from planner.report.verdict import PlanBars, PlanCard, Verdict, headline_of, kinds_of_time
from planner.search.result import SearchResult
from planner.tune.outcome import TunedStudy

# --- plans ------------------------------------------------------------------------------------


def verdict_card(result: SearchResult, saved_as: Path | None) -> Card:
    """The card of a search: the verdict with alternatives. If no plan is recommended, the time and
    memory of the first plan."""
    if not result.recommended:
        return costed_card(result.plans[0])
    verdict = Verdict(result)
    return Card(
        verdict.headline,
        _bars(verdict),
        (("risk", verdict.risk), ("next", verdict.next(str(saved_as) if saved_as else None))),
        [
            (one.number, one.words, f"{one.name}: {one.than}, {gib(one.plan.peak_bytes)} GiB")
            for one in verdict.alternatives
        ],
    )


def costed_card(plan: Plan) -> Card:
    """The card of one plan: its time and memory, and whether it fits."""
    then = "planner search with the same job finds the fastest that fits"
    card = PlanCard(plan, plan_name(plan), then)
    return Card(
        headline_of(plan, card.name), _bars(card), (("risk", card.risk), ("next", card.next))
    )


def front_card(front: ClusterFront, saved_as: Path | None) -> Card:
    """The card of a front over several clusters. It shows the fastest plan; the cheapest (if there
    are prices) and the lightest are alternatives."""
    numbered = list(enumerate(front.points, start=1))
    fastest = min(numbered, key=lambda one: one[1].step_time_s)
    priced = [one for one in numbered if one[1].usd_per_billion_tokens is not None]
    ends = [("the cheapest", min(priced, key=lambda one: _dollars(one[1])))] if priced else []
    ends.append(("the lightest", min(numbered, key=lambda one: front.plan_of(one[1]).peak_bytes)))
    plan, name = front.plan_of(fastest[1]), shlex.quote(str(saved_as or "plans.json"))
    then = f"planner explain {name} {fastest[0]}"
    card = PlanCard(plan, plan_name(plan), then)
    return Card(
        front_headline(front),
        _bars(card),
        (("risk", card.risk), ("next", then)),
        [
            (number, words, f"on {point.cluster}, {plan_name(front.plan_of(point))}: "
             f"{seconds(point.step_time_s)} a step, {gib(front.plan_of(point).peak_bytes)} GiB")
            for words, (number, point) in ends
            if number != fastest[0]
        ],
    )  # fmt: skip


def _dollars(point: ClusterPoint) -> float:
    return point.usd_per_billion_tokens or 0.0


def _bars(card: PlanBars) -> tuple[Bar, Bar]:
    """Two bars: memory of the fullest GPU, and the step time by kind of work."""
    plan, kinds = card.plan, kinds_of_time(card.plan).items()
    parts = [(size / plan.step_time_s, kind, f"{kind} {seconds(size)}") for kind, size in kinds]
    high, usable = plan.peak_interval.high, plan.usable_bytes
    memory = _memory_bar(plan.peak_bytes, high, plan.limit_bytes, usable)
    return memory, Bar("step", card.time_text, parts)


def _memory_bar(peak: float, high: float, limit: float, usable: float = 0.0) -> Bar:
    """A bar of the predicted memory and its 80 % interval against the memory limit. All sizes are
    in bytes."""
    whole = max(limit, high, usable)
    parts = ((peak / whole, "used", "held"), ((high - peak) / whole, "may", "80 % interval"))
    return Bar("memory", f"{gib(peak)} of {gib(limit)} GiB", parts, limit / whole)


# CSS classes by kind of work in a step of reinforcement learning.
_STYLES = {"samples": "samples", "scores": "exchange", "trains": "trains"}


def rl_card(verdict: RlVerdict, saved_as: Path | None) -> Card:
    """The card of a search for reinforcement learning."""
    held = [(verdict.memory_share, "used", "held")]
    times = (_side_bar(verdict, side) for side in verdict.sides)
    return Card(
        verdict.headline,
        (Bar("memory", verdict.memory_text, held, 1.0), *times),
        (("risk", verdict.risk), ("next", verdict.next(str(saved_as) if saved_as else None))),
        [
            (number, words, f"{rl_name(plan)}: {verdict.than(plan)}")
            for number, words, plan in verdict.alternatives
        ],
    )


def _side_bar(verdict: RlVerdict, side: str) -> Bar:
    """A bar for the seconds of one `side` by kind of work (a key of `RlVerdict.sides`). The shares
    refer to the step time; for `step`, to the sum of its parts."""
    sums = verdict.sides[side]
    whole = sum(sums.values()) if side == "step" else verdict.plan.step_s
    parts = [
        (size / whole, _STYLES.get(kind, "waiting"), f"{kind} {seconds(size)}")
        for kind, size in sums.items()
    ]
    return Bar(side, verdict.amount(side), parts)


def tune_card(study: TunedStudy) -> Card:
    """The plan to take, the probability that another is faster, and the GPU-hours spent."""
    doubt = 1.0 - study.best_probability
    ran = sum(one.measured_s is not None for one in study.trials)
    spent = f"{study.spent_gpu_hours:.2f} GPU-hours; {ran} of {len(study.trials)} trials measured"
    return Card(
        best_text(study),
        facts=(
            ("risk", f"{percent_sure(doubt)} that another plan that can be tried is faster"),
            ("spent", spent),
            ("state", why_text(study)),
            ("next", "planner tune --resume STUDY --trials N goes on"),
        ),
    )


def memory_card(figure: MemoryFigure) -> Card:
    """The peak of the heaviest stage against the memory limit."""
    panel = next((one for one in figure.panels if one.interval), figure.panels[0])
    peak = max(bar.total_bytes for bar in panel.bars)
    then = "planner search with the same job finds what is faster and fits as well"
    if peak > panel.limit_bytes:
        then = "add --advise to see what would make it fit; planner search finds plans that do"
    bar = _memory_bar(peak, (panel.interval or (peak, peak))[1], panel.limit_bytes)
    facts = (("where", panel.title), ("next", then))
    return Card(f"{figure.subtitle}.", (bar,), facts)


# --- studies ----------------------------------------------------------------------------------

# Rows of a recommendation that its card repeats. The headline contains all others except `take`.
_TOLD = ("limits", "because", "next best", "deadline kept", "budget kept", "price")


def decision_card(study: Comparison | Buying | Scaling) -> Card | None:
    """The recommendation of a study; None if the study made no decision."""
    decision = study.decision
    if decision is None:
        return None
    rows = [row for row in decision_facts(decision, study.currency).rows if row[0] in _TOLD]
    doubts = verdict_text(decision.best).partition("; ")[2] if decision.best else ""
    if doubts:
        rows.append(("note", doubts))
    rows.append(("next", _next_of(study, decision)))
    return Card(headline(decision, study.currency), facts=rows)


def _next_of(study: Comparison | Buying | Scaling, decision: Decision) -> str:
    if decision.best is None:
        return (
            "give more time, money or power, or other GPUs: the tables show how much more is needed"
        )
    cluster = decision.best.choices[0].cluster
    if isinstance(study, Buying):
        return f"planner search --gpus {cluster} with the job's options finds its plan and saves it"
    return (
        f"planner search --model {study.model} --gpus {cluster} -o plans.json, and the job's batch"
    )


def budget_card(found: Budget) -> Card:
    """Model size, tokens, loss and days for a budget."""
    doubt = found.why_no_loss or (found.beyond and f"extrapolated: {found.beyond}")
    usual = "other data and tokenizers move the loss by more than its interval"
    then = "add --save-model model.toml to write this shape; planner search --model model.toml"
    return Card(budget_headline(found), facts=(("risk", doubt or usual), ("next", then)))


# --- measured runs ----------------------------------------------------------------------------


def validation_card(predictions: Sequence[Prediction]) -> Card:
    """How far predictions are off: the median error, and the error that nine in ten stay within."""
    return Card(
        validation_headline(predictions),
        facts=(
            ("risk", "runs unlike these may be further off; the tables say by kind of run"),
            ("next", "planner calibrate --from your own runs narrows it for your cluster"),
        ),
    )


def pairs_card(panels: Panels, first: Sequence[str] = ()) -> Card | None:
    """The largest measured part and, if there is a prediction, the part that differs most from it.
    `first`: recommended changes; the card shows only the first. None if nothing was measured."""
    verdict = pairs_verdict(panels)
    if verdict is None:
        return None
    told, facts = verdict
    return Card(told, facts=(*(("first", text) for text in first[:1]), *facts))
