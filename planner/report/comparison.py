"""Report of `planner compare`, and of `--explain`: every factor from plan to dollars, with its
source."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardware.facts import Figure, load_sources
from hardware.prices import PRICE_KINDS
from planner.compare.differences import days_ratio
from planner.compare.goodput import high_rates
from planner.compare.laws import load_laws
from planner.compare.offers import STALE_DAYS
from planner.compare.results import Comparison, ComparisonRow, Rental, Run
from planner.compare.run import HOURS_PER_YEAR
from planner.compare.settings import BASIS_NAMES, Settings
from planner.predict.plan_text import error_text, ramp_rows
from planner.report.differences import ratio_text
from planner.report.plan_table import plan_table, techniques_row
from planner.report.said import NONE, described, fact_rows, notes, said, table_of
from planner.report.study_words import (
    critical_text,
    decision_facts,
    headline,
    runs_note,
    share_text,
)
from planner.report.tables import Block, Facts, Notes, TableData, as_report, headings

FRONT = "●"
MOST_NEEDS = 3
_FEWEST_LOSS = 0.005


@as_report
def comparison_report(comparison: Comparison) -> Iterator[Block]:
    runs = [(row, row.run) for row in comparison.rows if row.run is not None]
    if comparison.decision is not None:
        yield Notes((headline(comparison.decision, comparison.currency),))
        yield decision_facts(comparison.decision, comparison.currency)
    about = fact_rows("comparison.facts", comparison, count=len(comparison.rows))
    yield Facts((*about, *techniques_row([run.plan for _, run in runs])))
    if runs:
        several = len({row.precision for row, _ in runs}) > 1
        yield table_of(
            "comparison.pace", (row for row, _ in runs), sort=comparison.sort,
            precise=lambda row: several and row.precision, loss=lambda row: _loss_text(row.run),
        )  # fmt: skip
        yield from _money_tables(runs, comparison)
        names, plans = [row.name for row, _ in runs], [run.plan for _, run in runs]
        first = [(headings("~cluster")[0], names)]
        yield plan_table(plans, None, first=first, title="Plans", told=plans)
    if failed := tuple(_failures(comparison.rows)):
        yield Notes(failed, "No plan")
    yield Notes(tuple(_notes(runs, comparison)))


Runs = Sequence[tuple[ComparisonRow, Run]]


def _loss_text(run: Run) -> str:
    losses = [share for share in run.shares if share.resource != "GPU"]
    if all(loss.share < _FEWEST_LOSS for loss in losses):
        return "nothing: the GPU itself limits"
    return losses[0].text


def _money_tables(runs: Runs, comparison: Comparison) -> Iterator[TableData]:
    rows = [
        {
            "name": row.name, "run": run, "on_front": row.on_front,
            "chosen": run.priced(comparison.basis),
            "costs": {basis: run.cost(basis) for basis in BASIS_NAMES},
            "quotes": {kind: _price_text(run.rental(kind), row.name) for kind in PRICE_KINDS},
        }
        for row, run in runs
    ]  # fmt: skip
    carbon = any(run.energy.co2_t is not None for _, run in runs)
    kind, currency = BASIS_NAMES[comparison.basis], comparison.currency
    yield table_of("comparison.money", rows, carbon=carbon, kind=kind, currency=currency)
    yield table_of("comparison.quotes", rows, currency=currency)


def _price_text(rental: Rental | None, offer: str) -> str:
    """`2.46 coreweave`, or only the price if the offer itself states it."""
    if rental is None:
        return NONE
    if rental.price.provider == offer:
        return f"{rental.per_gpu_hour:.2f}"
    old = f", {rental.age}" if rental.stale else ""
    small = f", {rental.price.instance_gpus}-GPU instance*" if rental.smaller_instance else ""
    return f"{rental.per_gpu_hour:.2f} {rental.price.provider}{old}{small}"


def _failures(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    for row in rows:
        if row.run is None:
            yield f"{row.name}: {row.reason}"
            if row.needs:
                yield f"  would fit (searched): {'; or '.join(row.needs[:MOST_NEEDS])}"


def failure_text(comparison: Comparison) -> str:
    """Why no cluster has a plan, and what each cluster would need."""
    return "\n  ".join(("the job runs on none of the clusters:", *_failures(comparison.rows)))


def _notes(runs: Runs, comparison: Comparison) -> Iterator[str]:
    if not runs:
        return
    by_days = sorted(runs, key=lambda row: row[1].days.value)
    fastest = by_days[0]
    yield from notes(
        "comparison.notes", comparison, front=FRONT, kind=BASIS_NAMES[comparison.basis],
        priced=any(run.cost(comparison.basis) is not None for _, run in runs),
        fastest=fastest[0].name, near=list(_not_slower(fastest[1], by_days[1:])),
    )  # fmt: skip
    yield from runs_note((run for _, run in runs), comparison.tokens)
    rentals = [rental for _, run in runs for rental in run.rentals]
    yield from notes(
        "comparison.prices", comparison, stale_days=STALE_DAYS,
        missing=list(dict.fromkeys(text for _, run in runs for text in run.missing)),
        small=any(rental.smaller_instance for rental in rentals),
        spot=any(rental.kind == "spot" for rental in rentals),
        several=any(rental.choices > 1 for rental in rentals),
    )  # fmt: skip
    yield from comparison.notes
    first = runs[0][0].name
    yield f"Every factor with its source: add --explain {shlex.quote(first)}"


def _not_slower(fastest: Run, others: Runs) -> Iterator[str]:
    """A text for each cluster that may be as fast as the fastest, because the 80 % interval of its
    difference includes none: its name and the difference."""
    for row, run in others:
        ratio = days_ratio(fastest, run)
        if ratio.low <= 1.0:
            yield f"{row.name} ({ratio_text(ratio)})"


@as_report
def trace_report(name: str, chapters: Mapping[str, Sequence[Step]]) -> Iterator[Block]:
    """The calculation from plan to dollars for one cluster, and the sources of its figures."""
    yield Facts((("cluster", name),))
    for title, steps in chapters.items():
        yield Facts(tuple((step.name, _step_text(step)) for step in steps), title)
    every = (step for steps in chapters.values() for step in steps)
    cited = {key: text for step in every for key, text in step.cited.items() if text}
    yield Facts(tuple(cited.items()), "Sources")


def _step_text(step: Step) -> str:
    source = f" [{step.source}]" if step.source else ""
    how = f": {step.how}" if step.how else ""
    return f"{step.value}{how}{source}"


@dataclass(frozen=True, slots=True)
class Step:
    """One factor or result: its name, its value in words, how it is calculated, and its source.

    `source`: an option, or ids of `hardware/catalog/sources.toml`, separated by commas.
    """

    name: str
    value: str
    how: str = ""
    source: str = ""

    @property
    def cited(self) -> dict[str, str]:
        """Title and address by id, for each source that is in the catalogue."""
        known = load_sources()
        return {
            key: ", ".join(part for part in (known[key].title, known[key].url) if part)
            for key in (part.partition(" ")[0] for part in self.source.split(", "))
            if key in known
        }


def trace(run: Run, comparison: Comparison, settings: Settings) -> dict[str, tuple[Step, ...]]:
    """Every step of the calculation from plan to cost, by the title of its chapter: pace, time,
    each way of renting, owning (if it was calculated), and energy."""
    told: dict[str, Any] = {"run": run, "comparison": comparison, "settings": settings}
    chapters = {
        "Pace": _pace(run, told),
        "Time, with interruptions": _time(run, settings, told),
        **{f"Renting, {BASIS_NAMES[one.kind]}": _renting(one, told) for one in run.rentals},
    }
    if (owning := run.owning) is not None:
        chapters["Owning"] = _steps(
            "owning", owning, **told,
            capital=owning.hardware_per_gpu_hour + owning.around_per_gpu_hour,
            billed=owning.billed_gpus or run.billed_gpus, hours_per_year=HOURS_PER_YEAR,
        )  # fmt: skip
    chapters["Energy"] = _energy(run, settings, told)
    return {title: tuple(steps) for title, steps in chapters.items()}


def _steps(key: str, about: Any, settings: Settings, **told: Any) -> Iterator[Step]:
    """The steps of the chapter `key` of the words file. A step is left out if its text refers to a
    value that is missing."""
    for name, first, *texts in described(f"trace.{key}"):
        value = said(first, about, settings=settings, **told)
        if value is None:
            continue
        if value.startswith("@"):
            figure = getattr(about, value[1:], None) or told.get(value[1:])
            yield _figure(name, figure or settings.figure(value[1:]), *texts)
        else:
            further = (said(text, about, settings=settings, **told) or "" for text in texts)
            yield Step(name, value, *further)


def _pace(run: Run, told: dict[str, Any]) -> Iterator[Step]:
    plan, price, law = run.plan, run.batch_price, load_laws()[1]
    yield from _steps(
        "pace", run, **told,
        error=error_text(plan.step_time_s, plan.step_time),
        where="; ".join(share.text for share in run.shares if share.share >= 0.005),
    )  # fmt: skip
    for name, words in ramp_rows(plan):
        yield Step(name, words, "same plan, less accumulation")
    yield from _steps(
        "ideal", run, **told, law=law, critical=price and critical_text(price),
        extra=price and share_text(price.extra),
    )  # fmt: skip


def _time(run: Run, settings: Settings, told: dict[str, Any]) -> Iterator[Step]:
    goodput, by_hand = run.goodput, settings.figure("restart_by_hand")
    lowest = settings.figure("failure_rate_low")
    highs = [settings.figure(name) for name in high_rates(run.job.used_gpus)]
    sources = ", ".join(dict.fromkeys(figure.source for figure in (lowest, *highs)))
    return _steps(
        "time", run, **told, lowest=lowest, highest=highs[-1], by_hand=by_hand,
        by_hand_source=source_text(by_hand),
        rates_source=sources if goodput.low < goodput.high else "",
    )  # fmt: skip


def _renting(rental: Rental, told: dict[str, Any]) -> Iterator[Step]:
    price, comparison = rental.price, told["comparison"]
    return _steps(
        "renting", rental, **told,
        where=", ".join(part for part in (price.instance, price.note) if part),
        price_source=f"{price.source} {price.date}".strip(),
        is_converted=price.currency != comparison.currency,
    )  # fmt: skip


def _energy(run: Run, settings: Settings, told: dict[str, Any]) -> Iterator[Step]:
    power = settings.figure("rack_power")
    return _steps(
        "energy", run, **told, rated_source=run.energy.rated_source, rack_power=power,
        rack_height=settings.figure("rack_height"), rack_source=source_text(power),
        load_error=settings.value("load_error"), carbon=settings.carbon_g_per_kwh or 0.0,
    )  # fmt: skip


def _figure(name: str, figure: Figure, after: str = "") -> Step:
    unit = "" if figure.unit == "1" else f" {figure.unit}"
    return Step(name, f"{figure.value:,.6g}{unit}{after}", figure.note, source_text(figure))


def source_text(figure: Figure) -> str:
    """The id of the source with the date of the figure, or the option that gave it."""
    return f"{figure.source} {figure.date}".strip()
