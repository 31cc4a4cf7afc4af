"""What is said of a batch beside the critical one (docs/budget.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from planner.compare.interval import Range
from planner.compare.laws import BatchPrice, load_laws
from planner.job.quantities import short_count
from planner.search.result import JobSummary

if TYPE_CHECKING:
    from planner.compare.results import Run


def runs_note(runs: Iterable[Run], tokens: float) -> Iterator[str]:
    """What days count of a batch ramp, and what the largest batch of some runs costs, if it is past
    the critical one."""
    every = list(runs)
    if ramped := next((run.plan for run in every if run.plan.ramp), None):
        yield (
            f"Days go through the batch ramp, {ramped.ramp[0].gbs:,} to {ramped.gbs:,} sequences "
            f"over {short_count(ramped.ramp[-1].until_tokens)} tokens; tokens/s, MFU and step "
            "times are of its last batch."
        )
    prices = [run.batch_price for run in every if run.batch_price is not None]
    largest = max(prices, key=lambda price: price.batch, default=None)
    if largest is None or not largest.is_past:
        return
    yield (
        f"A batch of {short_count(largest.batch)} tokens "
        f"{'lies' if largest.is_surely_past else 'may lie'} past the critical one, "
        f"{critical_text(largest)}, for {short_count(tokens)} tokens: the same loss needs about "
        f"{share_text(largest.extra)} more of them, which days and cost do not count "
        "(docs/budget.md)."
    )


def search_note(job: JobSummary, batch: int) -> Iterator[str]:
    """Whether a batch is surely past the critical one of a compute-optimal training, and from how
    many tokens on it is not: a search is not told any."""
    loss, critical = load_laws()
    best = loss.best_tokens(job.active_parameters).value
    if batch <= critical.critical(best).high:
        return
    yield (
        f"A batch of {short_count(batch)} tokens is past the critical one of trainings on fewer "
        f"than about {short_count(critical.tokens_for(batch))} tokens ({critical.name}, "
        "extrapolated): the same loss then needs more tokens (docs/budget.md)."
    )


def critical_text(price: BatchPrice) -> str:
    """`about 5.90 M (4.10 M to 8.90 M, extrapolated)`."""
    critical, far = price.critical, ", extrapolated" if price.extrapolated else ""
    low, high = short_count(critical.low), short_count(critical.high)
    return f"about {short_count(critical.value)} ({low} to {high}{far})"


def share_text(extra: Range) -> str:
    """`12 % (3 to 14 %)`."""
    return f"{percent(extra.value)} % ({percent(extra.low)} to {percent(extra.high)} %)"


def percent(part: float) -> str:
    """Two digits of a share, all of those before the point."""
    return f"{part * 100:.0f}" if part >= 0.1 else f"{part * 100:.2g}"
