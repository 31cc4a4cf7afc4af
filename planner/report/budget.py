"""What `planner budget` shows: size, tokens, loss, the critical batch, and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.budget import Budget
from planner.compare.settings import BASIS_NAMES
from planner.report.plan_table import plan_table
from planner.report.said import facts, notes
from planner.report.study_words import critical_text, share_text
from planner.report.tables import Block, Notes, as_report


@as_report
def budget_report(found: Budget) -> Iterator[Block]:
    """The whole report."""
    run = found.run
    price = run and run.batch_price
    yield facts(
        "budget.facts", found, price=price, ratio=found.tokens.value / found.parameters,
        best_tokens=found.flop.value / 6.0 / found.best_parameters.value,
        critical=price and critical_text(price), extra=price and share_text(price.extra),
    )  # fmt: skip
    if run is not None:
        told = {"cost": run.cost(found.basis), "kind": BASIS_NAMES[found.basis]}
        yield facts("budget.run", found, title=f"On {found.gpus}", **told)
        yield plan_table([run.plan], None, title="Plan")
    yield Notes((*notes("budget.notes", found), *found.notes, *notes("budget.save", found)))
