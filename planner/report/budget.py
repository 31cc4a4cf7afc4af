"""What `planner budget` shows: size, tokens, loss, the critical batch, and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.budget import Budget
from planner.compare.interval import Range
from planner.compare.results import Run
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import short_count
from planner.report.plan_table import plan_table
from planner.report.study_words import (
    counted,
    critical_text,
    days_text,
    money,
    share_text,
    spread_text,
)
from planner.report.tables import Block, Facts, Notes, as_report


@as_report
def budget_report(found: Budget) -> Iterator[Block]:
    """The whole report."""
    yield Facts((*_facts(found), *_batch_facts(found)))
    if found.run is not None:
        yield Facts(tuple(_run_facts(found, found.run)), f"On {found.gpus}")
        yield plan_table([found.run.plan], None, title="Plan")
    yield Notes(tuple(_notes(found)))


def _facts(found: Budget) -> Iterator[tuple[str, str]]:
    yield "goal", found.goal
    words = ""
    if shape := found.shape:
        words = f": {shape.layers} layers of {shape.hidden:,}, FFN {shape.ffn:,}"
    yield "model", f"{found.model}{words}"
    part = "" if found.loss else " used by a token"
    yield "parameters", f"{short_count(found.parameters)}{part}"
    ratio = found.tokens.value / found.parameters
    yield "tokens", f"{_text(found.tokens)}; {ratio:,.1f} a parameter"
    yield "FLOP", f"{found.flop.value:.3g} (6·N·D)"
    if found.loss is None:
        yield "loss", f"cannot tell: {found.why_no_loss}"
        return
    far = ", extrapolated" if found.beyond else ""
    loss = found.loss
    yield "loss", f"{loss.value:.3f} nats a token ({loss.low:.3f} to {loss.high:.3f}{far})"
    best = found.best_parameters
    tokens = found.flop.value / 6.0 / best.value
    yield "optimum", f"for so many FLOP: {_text(best)} parameters on {short_count(tokens)} tokens"


def _batch_facts(found: Budget) -> Iterator[tuple[str, str]]:
    critical = found.critical_batch
    price = None if found.run is None else found.run.batch_price
    if price is None:
        far = ", extrapolated" if critical.extrapolated else ""
        yield "critical batch", f"{_text(critical.tokens)} tokens{far}"
        return
    yield "batch", f"{short_count(price.batch)} tokens; critical {critical_text(price)}"
    yield (
        "batch costs",
        f"{share_text(price.extra)} more tokens for the same loss than a small one, not counted",
    )


def _run_facts(found: Budget, run: Run) -> Iterator[tuple[str, str]]:
    yield (
        "days",
        f"{days_text(run.days.value)} {spread_text(run.days)} for "
        f"{short_count(found.tokens.value)} tokens, interruptions included",
    )
    yield "useful", f"{run.goodput.share * 100:.1f} % of the time"
    yield "tokens/s", f"{run.plan.tokens_per_s:,.0f}, MFU {run.plan.mfu * 100:.1f} %"
    cost = run.cost(found.basis)
    if cost is not None:
        yield "cost", f"{money(cost)} {found.currency} {BASIS_NAMES[found.basis]}"


def _notes(found: Budget) -> Iterator[str]:
    yield (
        f"Loss: {found.law}, on its text; the 80 % interval holds the errors of the constants, how "
        "runs lie around the law, and the tokens'. Other data, tokenizers, optimizers and "
        "repeated tokens are not in it (docs/budget.md)."
    )
    if found.beyond:
        yield f"Extrapolated: {found.beyond}."
    yield from found.notes
    if found.shape is not None:
        yield "--save-model FILE.toml writes this shape for planner search --model FILE.toml."


def _text(figure: Range) -> str:
    """`1.20 T (1.10 T to 1.30 T)`; the value alone where it is exact."""
    return short_count(figure.value) if figure.low == figure.high else counted(figure)
