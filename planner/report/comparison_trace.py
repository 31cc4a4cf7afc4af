"""From plan to dollars, step by step: every factor with its source or the option that gave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hardware.economics import Figure
from hardware.load import load_sources
from planner.compare.goodput import HOUR_S, high_rates
from planner.compare.laws import load_laws
from planner.compare.money import HOURS_PER_YEAR
from planner.compare.results import Comparison, Owning, Rental, Run
from planner.compare.settings import BASIS_NAMES, Settings
from planner.job.quantities import plural
from planner.predict.plan_text import configuration_text, error_text, ramp_rows
from planner.report.study_words import critical_text, money, ranged, share_text


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
    rented = {
        f"Renting, {BASIS_NAMES[rental.kind]}": _renting(rental, comparison)
        for rental in run.rentals
    }
    owned = {} if run.owning is None else {"Owning": _owning(run.owning, run, comparison, settings)}
    chapters = {
        "Pace": _rate(run, comparison),
        "Time, with interruptions": _time(run, settings),
        **rented,
        **owned,
        "Energy": _energy(run, settings),
    }
    return {title: tuple(steps) for title, steps in chapters.items()}


def _rate(run: Run, comparison: Comparison) -> Iterator[Step]:
    plan = run.plan
    recommended = f"what the search recommends; {plan.status}"
    yield Step("plan", configuration_text(plan), recommended, "planner search")
    yield Step(
        "step time",
        f"{plan.step_time_s:.4g} s {error_text(plan.step_time_s, plan.step_time)}",
        "sum of the terms below",
        f"cost model; error from {plan.step_time.basis}",
    )
    shares = "; ".join(share.text for share in run.shares if share.share >= 0.005)
    yield Step("where it goes", shares)
    yield Step("batch", f"{plan.gbs_tokens:,} tokens", f"{plan.gbs:,} × {plan.seq:,}")
    yield Step("pace", f"{plan.tokens_per_s:,.0f} tokens/s", "batch / step time")
    for name, words in ramp_rows(plan):
        yield Step(name, words, "same plan, less accumulation")
    yield Step("tokens", f"{comparison.tokens:,}", "", "--tokens")
    yield Step(
        "ideal time",
        f"{run.ideal_days.value:,.2f} days",
        "steps of each batch × their seconds" if plan.ramp else "tokens / pace / 86,400 s",
    )
    if run.batch_price is not None:
        law, price = load_laws()[1], run.batch_price
        source = f"{law.name}, {law.source}"
        yield Step("critical batch B*", f"{critical_text(price)} tokens", "", source)
        how = f"{law.overhead:g}·B/B*, not counted in time or cost"
        yield Step("price of the batch", f"{share_text(price.extra)} more tokens", how)


def _time(run: Run, settings: Settings) -> Iterator[Step]:
    goodput, used = run.goodput, run.job.used_gpus
    yield _figure("MTBF of a GPU", settings.figure("gpu_mtbf"))
    yield _figure("MTBF of a node, rest", settings.figure("node_mtbf"))
    combined = f"1 / ({used:,} GPUs / MTBF + nodes / MTBF)"
    yield Step("MTBF of the job", f"{goodput.mtbf_s / HOUR_S:,.1f} h", combined)
    yield Step(
        "checkpoint",
        f"{goodput.state_bytes / 1e12:,.3g} TB",
        "parameters × bytes of weights, master weights and optimizer state",
        f"{run.job.framework}, {run.job.optimizer}",
    )
    yield _figure("write bandwidth", settings.figure("write_bandwidth"))
    stops = "written while training waits"
    if settings.asynchronous:
        stops = "copied to the host, then written beside training"
    yield Step("checkpoint stops training", f"{goodput.checkpoint_s:,.3g} s", stops)
    given = settings.checkpoint_interval_s is not None
    yield Step(
        "checkpoint every",
        f"{goodput.interval_s / 60:,.1f} min",
        "" if given else "loses least time (Daly 2006)",
        "--checkpoint-interval" if given else "",
    )
    yield _figure("restart", settings.figure("restart"), " + reading the checkpoint")
    if settings.spares is not None:
        yield _figure("repair of a node", settings.figure("repair"))
        yield Step(
            "waiting for nodes",
            f"{goodput.waiting * 100:.2g} %",
            f"{plural(goodput.spares, 'spare')}; {goodput.suggested_spares} keep it below 1 %",
            "--spares",
        )
    else:
        yield Step(
            "spares",
            "0",
            "assumed: the provider replaces a broken node within the restart; of one's own, "
            f"{goodput.suggested_spares} would keep waiting below 1 %",
            "--spares",
        )
    yield from _useful(run, settings)


def _useful(run: Run, settings: Settings) -> Iterator[Step]:
    goodput = run.goodput
    low = settings.figure("failure_rate_low")
    highs = [settings.figure(name) for name in high_rates(run.job.used_gpus)]
    rates = f"{low.value:g} to {highs[-1].value:g} failures in 1,000 node-days"
    measured = f"range: {rates}, and restarts by people"
    yield Step(
        "useful time",
        f"{goodput.share * 100:.1f} % ({goodput.low * 100:.1f} to {goodput.high * 100:.1f})",
        f"t / (M e^(R/M) (e^((t+d)/M) - 1)), Daly 2006; {measured}",
        ", ".join(dict.fromkeys(figure.source for figure in (low, *highs)))
        if goodput.low < goodput.high
        else "",
    )
    if goodput.by_hand is not None:
        yield Step(
            "if people restart it",
            f"{goodput.by_hand * 100:.1f} %",
            f"{settings.value('restart_by_hand') / HOUR_S:g} h a restart",
            source_text(settings.figure("restart_by_hand")),
        )
    yield Step("days", ranged(run.days, ",.2f"), "ideal time / useful time; both errors")
    paid = f"days × 24 × {run.billed_gpus:,} GPUs that are paid for"
    yield Step("GPU hours", f"{run.gpu_hours.value:,.0f}", paid)


def _renting(rental: Rental, comparison: Comparison) -> Iterator[Step]:
    price = rental.price
    where = ", ".join(part for part in (price.instance, price.note) if part)
    yield Step(
        "price",
        f"{price.price_per_gpu_hour:g} {price.currency} a GPU hour",
        f"{price.provider}{f' ({where})' if where else ''}, {rental.age}; of {rental.choices}, "
        f"{rental.lowest:.4g} to {rental.highest:.4g} {comparison.currency}",
        f"{price.source} {price.date}".strip(),
    )
    if price.currency != comparison.currency:
        converted = f"{rental.per_gpu_hour:.4g} {comparison.currency}"
        yield Step("converted", converted, "at the rate given", "--rate")
    if rental.smaller_instance:
        yield Step(
            "note",
            f"an instance of {price.instance_gpus} GPUs",
            "smaller than a node of this cluster: the network between them may differ",
        )
    yield Step(
        "cost",
        f"{money(rental.cost)} {comparison.currency}",
        "GPU hours × price"
        + (f", of {rental.least_days:g} days at least" if rental.least_days else "")
        + f"; {money(rental.cost.low)} to {money(rental.cost.high)}",
    )
    yield Step("a trillion tokens", f"{money(rental.per_trillion_tokens)} {comparison.currency}")


def _owning(owning: Owning, run: Run, comparison: Comparison, settings: Settings) -> Iterator[Step]:
    currency = comparison.currency
    yield _figure("purchase, a GPU", owning.hardware_usd)
    if owning.around_usd.value:
        yield _figure("host, network, cables", owning.around_usd)
    yield _figure("paid over", settings.figure("amortisation_years"))
    yield _figure("interest", settings.figure("interest"))
    yield _figure("utilisation", settings.figure("utilisation"))
    yield Step(
        "capital, a GPU hour",
        f"{owning.hardware_per_gpu_hour + owning.around_per_gpu_hour:.3f} {currency}",
        f"annuity / {HOURS_PER_YEAR:,.0f} h / utilisation",
    )
    yield _figure("electricity", settings.figure("electricity"))
    yield Step(
        "electricity, a GPU hour",
        f"{owning.electricity_per_gpu_hour:.3f} {currency}",
        f"{run.energy.drawn_w:,.0f} W at the meter (below) × price",
    )
    yield _figure("hosting", settings.figure("hosting"))
    yield Step(
        "hosting, a GPU hour",
        f"{owning.hosting_per_gpu_hour:.3f} {currency}",
        f"{run.energy.rated_w:,.0f} W rated × rate × 12 / {HOURS_PER_YEAR:,.0f} h / utilisation",
    )
    yield Step("not counted", "staff, storage, taxes, resale value")
    yield Step(
        "cost",
        f"{money(owning.cost.value)} {currency}",
        f"days × 24 × {owning.billed_gpus or run.billed_gpus:,} GPUs × {owning.per_gpu_hour:.3f}; "
        f"{money(owning.cost.low)} to {money(owning.cost.high)}",
    )
    yield Step("a trillion tokens", f"{money(owning.per_trillion_tokens)} {currency}")


def _energy(run: Run, settings: Settings) -> Iterator[Step]:
    energy = run.energy
    yield _figure("rated power, a GPU", energy.rated_source)
    yield _figure("load", settings.figure("load"))
    yield _figure("PUE", settings.figure("pue"))
    yield Step("power, a GPU", f"{energy.drawn_w:,.0f} W", "rated × load × PUE")
    yield Step(
        "energy",
        f"{ranged(energy.mwh, ',.1f')} MWh",
        f"power × {run.job.num_gpus:,} GPUs × days × 24 h; power ±"
        f"{settings.value('load_error') * 100:.0f} %; switches and storage not counted",
    )
    yield Step(
        "racks",
        f"{run.racks:,}",
        f"{settings.value('rack_power'):g} kW of rated power and {settings.value('rack_height'):g} "
        "U each; an NVLink domain of several nodes is one; switches and storage not counted",
        source_text(settings.figure("rack_power")),
    )
    if energy.co2_t is not None:
        carbon = settings.carbon_g_per_kwh or 0.0
        yield Step(
            "CO2", f"{ranged(energy.co2_t, ',.1f')} t", f"energy × {carbon:g} g/kWh", "--carbon"
        )


def _figure(name: str, figure: Figure, after: str = "") -> Step:
    unit = "" if figure.unit == "1" else f" {figure.unit}"
    return Step(name, f"{figure.value:,.6g}{unit}{after}", figure.note, source_text(figure))


def source_text(figure: Figure) -> str:
    """Id of the source with the date that the figure holds for; or the option."""
    return f"{figure.source} {figure.date}".strip()
