"""Cards of pages without a plan to take: what was found in a sentence, the risk, what is next."""

from __future__ import annotations

from collections.abc import Sequence

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.results import Comparison, Decision, Scaling
from planner.evidence.runs.predict import Prediction
from planner.job.quantities import gib, percent_sure
from planner.report.charts.memory import MemoryFigure
from planner.report.evidence import validation_headline
from planner.report.pages.page import Card
from planner.report.study_words import budget_headline, decision_facts, headline
from planner.report.traced import Panels, pairs_verdict
from planner.report.tune import best_text
from planner.tune.outcome import TunedStudy

# Rows of a recommendation that its card repeats, as (row, what the card calls it).
_TOLD = {
    "limits": "limits", "because": "because", "next best": "next best", "take": "know",
    "deadline kept": "deadline kept", "budget kept": "budget kept",
}  # fmt: skip


def decision_card(study: Comparison | Buying | Scaling) -> Card | None:
    """What to take of what was compared; None where nothing was decided."""
    if study.decision is None:
        return None
    rows = decision_facts(study.decision, study.currency).rows
    facts = [(_TOLD[label], text) for label, text in rows if label in _TOLD]
    facts.append(("next", _next_of(study, study.decision)))
    return Card(headline(study.decision, study.currency), facts=facts)


def _next_of(study: Comparison | Buying | Scaling, decision: Decision) -> str:
    if decision.best is None:
        return (
            "give more time, money or power, or other GPUs: the tables say what would have to give"
        )
    cluster = decision.best.choices[0].cluster
    if isinstance(study, Buying):
        return f"planner search --gpus {cluster} with the job's options finds its plan and saves it"
    return (
        f"planner search --model {study.model} --gpus {cluster} -o plans.json, and the job's batch"
    )


def budget_card(found: Budget) -> Card:
    """Size, tokens, loss and days of a budget."""
    doubt = found.why_no_loss or (found.beyond and f"extrapolated: {found.beyond}")
    return Card(
        budget_headline(found),
        facts=(
            ("risk", doubt or "other data and tokenizers move the loss by more than its interval"),
            (
                "next",
                "planner search --model of that shape, or planner budget --save-model FILE.toml",
            ),
        ),
    )


def memory_card(figure: MemoryFigure) -> Card:
    """The peak of the heaviest stage against the memory that may be used."""
    panel = next((one for one in figure.panels if one.interval), figure.panels[0])
    peak = max(bar.total_bytes for bar in panel.bars)
    high = (panel.interval or (peak, peak))[1]
    whole = max(panel.limit_bytes, high)
    parts = ((peak / whole, "used", "held"), ((high - peak) / whole, "may", "80 % interval"))
    text = f"{gib(peak)} of {gib(panel.limit_bytes)} GiB"
    return Card(
        figure.subtitle + ".",
        (("memory", text, parts),),
        (
            ("where", panel.title),
            ("next", "planner search with the same job finds what is faster and fits as well"),
        ),
    )


def validation_card(predictions: Sequence[Prediction]) -> Card:
    """How far predictions are off: half and nine in ten of them."""
    return Card(
        validation_headline(predictions),
        facts=(
            ("risk", "runs unlike these may be further off; the tables say by kind of run"),
            ("next", "planner calibrate --from your own runs narrows it for your cluster"),
        ),
    )


def pairs_card(panels: Panels) -> Card | None:
    """The largest measured part and, beside a prediction, where it differs most."""
    verdict = pairs_verdict(panels)
    return verdict and Card(verdict[0], facts=verdict[1])


def tune_card(study: TunedStudy) -> Card:
    """The plan to take, what may beat it, and what was spent."""
    doubt = 1.0 - study.best_probability
    ran = sum(one.measured_s is not None for one in study.trials)
    return Card(
        f"{best_text(study)}",
        facts=(
            ("risk", f"with {percent_sure(doubt)} another plan that can be tried is faster"),
            (
                "spent",
                f"{study.spent_gpu_hours:.2f} GPU-hours; {ran} of {len(study.trials)} trials "
                "measured",
            ),
            ("state", study.sentence),
            ("next", "planner tune --resume STUDY --trials N goes on"),
        ),
    )
