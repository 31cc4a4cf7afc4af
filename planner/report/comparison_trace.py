"""From plan to dollars, step by step: every factor with its source or the option that gave it.

`planner/report/words/trace.toml` has the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hardware.facts import Figure, load_sources
from planner.compare.goodput import high_rates
from planner.compare.laws import load_laws
from planner.compare.money import HOURS_PER_YEAR
from planner.compare.results import Comparison, Rental, Run
from planner.compare.settings import BASIS_NAMES, Settings
from planner.predict.plan_text import configuration_text, error_text, ramp_rows
from planner.report.said import described, said
from planner.report.study_words import critical_text, share_text


@dataclass(frozen=True, slots=True)
class Step:
    """One factor or result: its name, value in words, how it follows, and where it is from.

    `source`: an option, or ids of `hardware/catalog/sources.toml`, separated by commas.
    """

    name: str
    value: str
    how: str = ""
    source: str = ""

    @property
    def cited(self) -> dict[str, str]:
        """Id -> title and address of each source that the catalogue has."""
        known = load_sources()
        return {
            key: ", ".join(part for part in (known[key].title, known[key].url) if part)
            for key in (part.partition(" ")[0] for part in self.source.split(", "))
            if key in known
        }


def trace(run: Run, comparison: Comparison, settings: Settings) -> dict[str, tuple[Step, ...]]:
    """The chain of a run, from its plan to what it costs: steps by the title of their part."""
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
    """The steps of a part that have something to say, about an object."""
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
        configuration=configuration_text(plan), error=error_text(plan.step_time_s, plan.step_time),
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
    """Id of the source with the date that the figure holds for; or the option."""
    return f"{figure.source} {figure.date}".strip()
