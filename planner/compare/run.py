"""Turn a plan on a cluster into days, money and energy: the power that a cluster draws, the racks
that it fills, and the cost of a GPU hour to an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import ceil, exp, expm1, hypot, inf, log, log1p

from hardware.facts import Figure, load_economics
from hardware.prices import PRICE_KINDS, PriceKind
from hardware.schema import Cluster
from planner.compare.goodput import Goodput, goodput, run_of
from planner.compare.interval import Range
from planner.compare.laws import price_of
from planner.compare.offers import ChosenPrice, Offer, age_text, choose, date_age_text, is_stale
from planner.compare.results import Energy, Owning, Rental, Run, Share
from planner.compare.settings import BASIS_NAMES, CostBasis, Settings
from planner.cost.terms import TIME_TERMS
from planner.job.job import Job
from planner.job.quantities import DAY_S
from planner.job.written import picked
from planner.predict.link_account import LAUNCHES, LinkShare, link_account
from planner.predict.plan import Plan
from planner.predict.uncertainty.measured_scale import beyond_measured
from planner.search.result import JobSummary

HOURS_PER_YEAR = 8760.0
MONTHS_PER_YEAR = 12.0


def annuity(principal: float, interest: float, years: float) -> float:
    """Equal yearly payment that repays a purchase with interest over some years.

    a = P · r / (1 - (1 + r)^-n), and P / n without interest (the ordinary annuity).
    principal P in money, interest r per year, years n > 0.
    """
    if interest == 0.0:
        return principal / years
    return principal * interest / -expm1(-years * log1p(interest))


@dataclass(frozen=True, slots=True)
class OwnedHour:
    """The owner's cost of one GPU for one hour, by part; the parts add up to `total`.

    `hardware`: card, or whole node or cluster, as it was priced; `around`: hosts, NICs, switches
    and cables that this price leaves out; `electricity`: facility power; `hosting`: space, cooling
    plant and power feed.
    """

    hardware: float
    around: float
    electricity: float
    hosting: float

    @property
    def total(self) -> float:
        return self.hardware + self.around + self.electricity + self.hosting


def owned_hour(
    hardware: float, around: float, drawn_w: float, rated_w: float, term: Callable[[str], float]
) -> OwnedHour:
    """The owner's cost of a GPU hour in use.

    `hardware`, `around`: purchase prices per GPU. `drawn_w`: facility power drawn per GPU (IT power
    times PUE), `rated_w`: rated IT power per GPU, the basis of the hosting fee. `term`: interest,
    amortisation_years, utilisation (share of the life in use), electricity (money per kWh) and
    hosting (money per kW and month of rated power). Costs that are paid whether or not the GPU
    works are spread over the hours in use.
    """
    hours = HOURS_PER_YEAR * term("utilisation")
    hosting_year = rated_w / 1e3 * term("hosting") * MONTHS_PER_YEAR
    return OwnedHour(
        hardware=annuity(hardware, term("interest"), term("amortisation_years")) / hours,
        around=annuity(around, term("interest"), term("amortisation_years")) / hours,
        electricity=drawn_w / 1e3 * term("electricity"),
        hosting=hosting_year / hours,
    )


W_PER_KW = 1e3


@dataclass(frozen=True, slots=True)
class Power:
    """Power in watts per GPU. `rated_w`: the rated power of a node, per GPU. `drawn_w`: power that
    the facility draws in training (IT power · PUE). `origin`: the source of the rated power."""

    rated_w: float
    drawn_w: float
    origin: Figure


def power_of(cluster: Cluster, settings: Settings) -> Power:
    """Power per GPU of a cluster: rated power of its node, times load, times PUE."""
    rated = load_economics().node_power.get(cluster.gpu.name)
    if rated is None:
        ratio = settings.figure("rated_over_tdp")
        tdp = cluster.gpu.tdp_w
        note = f"TDP {tdp:g} W x {ratio.value:g}: {ratio.note}"
        update = {"value": tdp * ratio.value, "unit": "W", "note": note}
        rated = ratio.model_copy(update=update)
    drawn = rated.value * settings.value("load") * settings.value("pue")
    return Power(rated.value, drawn, rated)


def facility_kw(drawn_w: float, num_gpus: int) -> float:
    """Kilowatts that the facility draws for a number of GPUs; `drawn_w`: watts per GPU
    (`Power`)."""
    return drawn_w * num_gpus / W_PER_KW


def racks_of(cluster: Cluster, num_gpus: int, settings: Settings) -> int:
    """Racks for the nodes of a number of GPUs. A rack takes as many nodes as its power and height
    allow, at least one; a scale-up domain that spans nodes is one rack. Switches and storage are
    not counted."""
    if comes_in(cluster) > 1:
        return ceil(num_gpus / comes_in(cluster))
    height = load_economics().node_height.get(cluster.gpu.name, settings.figure("node_height"))
    node_kw = power_of(cluster, settings).rated_w * cluster.node_gpus / W_PER_KW
    nodes = min(
        settings.value("rack_power") / node_kw, settings.value("rack_height") / height.value
    )
    return ceil(ceil(num_gpus / cluster.node_gpus) / max(1, int(nodes)))


def comes_in(cluster: Cluster) -> int:
    """The number of GPUs that are only sold together: all of a scale-up domain that is larger than
    a node (72 for NVL72), otherwise 1."""
    domain = cluster.scale_up_domain_gpus
    return domain if domain > cluster.node_gpus else 1


# US dollars per GPU: its hardware as it was priced, and the parts around it that this price leaves
# out.
Purchase = tuple[Figure, Figure]


def purchase_of(offer: Offer, cluster: Cluster, settings: Settings) -> Purchase | None:
    """The purchase price per GPU, and the price per GPU of the equipment around it that this leaves
    out (0 for a price that covers everything). Taken from the offer, else from --capex, else from
    the catalogue; None if none of them has a price."""
    nothing = Figure(value=0.0, unit="USD", source="", note="part of the purchase price")
    capex_per_gpu = offer.capex_per_gpu
    if capex_per_gpu is not None:
        in_dollars = settings.model_copy(update={"currency": "USD"})
        usd = in_dollars.converted(capex_per_gpu, offer.currency)
        priced = Figure(value=usd, unit="USD", source=offer.source, date=offer.date)
        return priced, nothing
    if settings.capex_usd is not None:
        return Figure(value=settings.capex_usd, unit="USD", source="--capex"), nothing
    economics = load_economics()
    capex = economics.capex.get(cluster.gpu.name)
    return None if capex is None else (capex.price, economics.around.get(capex.scope, nothing))


HOURS_PER_DAY = 24.0
TRILLION = 1e12


@dataclass(frozen=True)
class PlacedRun:
    """An offer, its job with every name resolved, and the tokens to train on."""

    offer: Offer
    job: Job
    tokens: int
    settings: Settings

    @property
    def cluster(self) -> Cluster:
        """The whole cluster, all of which is paid for."""
        return self.job.cluster


def run_at(placed: PlacedRun, summary: JobSummary, plan: Plan) -> Run | None:
    """The run of a plan; None if interruptions leave no useful time."""
    settings, cluster = placed.settings, placed.cluster
    used = cluster.with_gpus(summary.used_gpus)
    one_goodput = goodput(run_of(replace(placed.job, cluster=used)), settings)
    if one_goodput.share <= 0.0:
        return None
    ideal = ideal_days(plan, placed.tokens)
    days = with_interruptions(ideal, one_goodput)
    wanted = cluster.num_gpus + one_goodput.spares * cluster.gpus_per_node
    billed = placed.offer.ordered(wanted)
    power = power_of(cluster, settings)
    rentals, missing = _rentals(placed, days, billed)
    owning = _owning(placed, days, placed.offer.ordered(wanted, comes_in(cluster)), power)
    if owning is None:
        missing = (*missing, f"no purchase price for {cluster.gpu.name} (--capex gives one)")
    # For a batch ramp, the mean over the tokens.
    steps = plan.steps_of(placed.tokens)
    mean_batch = sum(size * size * count for size, _, count in steps) / placed.tokens
    return Run(
        job=summary,
        plan=plan,
        ideal_days=ideal,
        days=days,
        billed_gpus=billed,
        racks=racks_of(cluster, billed, settings),
        gpu_hours=days.times(HOURS_PER_DAY * billed),
        goodput=one_goodput,
        energy=_energy(days.times(HOURS_PER_DAY * cluster.num_gpus), power, settings),
        rentals=rentals,
        owning=owning,
        missing=missing,
        shares=time_shares(plan, replace(placed.job, cluster=used)),
        batch_price=price_of(mean_batch, plan.gbs_tokens, placed.tokens),
        beyond_measured=beyond_measured(placed.job, summary.used_gpus),
    )


def ideal_days(plan: Plan, tokens: int) -> Range:
    """Days at the predicted step time, and at the ends of its interval."""
    step = plan.step_time
    share = plan.training_s(tokens) / DAY_S / plan.step_time_s
    return Range(value=plan.step_time_s, low=step.low, high=step.high).times(share)


def with_interruptions(ideal: Range, goodput: Goodput) -> Range:
    """Days with interruptions; the two errors are independent, so their logs add up in
    quadrature."""
    value = ideal.value / goodput.share
    below = hypot(log(ideal.value / ideal.low), log(goodput.high / goodput.share))
    above = inf
    if goodput.low > 0.0:
        above = hypot(log(ideal.high / ideal.value), log(goodput.share / goodput.low))
    return Range(value=value, low=value * exp(-below), high=value * exp(above))


def _rentals(
    placed: PlacedRun, days: Range, billed: int
) -> tuple[tuple[Rental, ...], tuple[str, ...]]:
    """Cost by kind of price, and a sentence for each kind without a price."""
    found: list[Rental] = []
    missing: list[str] = []
    for kind in PRICE_KINDS:
        choice = choose(placed.offer, placed.cluster, kind, placed.settings)
        if choice is None:
            missing.append(f"no {BASIS_NAMES[kind]} price for {placed.cluster.gpu.name}")
        else:
            found.append(_rental(placed, kind, choice, days, billed))
    return tuple(found), tuple(missing)


def _rental(
    placed: PlacedRun, kind: PriceKind, choice: ChosenPrice, days: Range, billed: int
) -> Rental:
    least = placed.offer.term_days if kind == "reserved" else 0.0
    paid = Range(**{name: max(least, value) for name, value in days})
    cost = paid.times(HOURS_PER_DAY * billed * choice.per_gpu_hour)
    return Rental(
        kind=kind,
        price=choice.price,
        cost=cost,
        per_trillion_tokens=cost.value * TRILLION / placed.tokens,
        age=age_text(choice.price, placed.settings),
        stale=is_stale(choice.price, placed.settings),
        least_days=least,
        **picked(choice, "per_gpu_hour smaller_instance choices lowest highest"),
    )


def owned_price(
    offer: Offer, cluster: Cluster, power: Power, settings: Settings
) -> tuple[Purchase, OwnedHour] | None:
    """The purchase price of the cluster, and the cost of one of its GPU hours, in US dollars; None
    without a purchase price."""
    purchase = purchase_of(offer, cluster, settings)
    if purchase is None:
        return None
    hardware, around = (figure.value for figure in purchase)
    return purchase, owned_hour(hardware, around, power.drawn_w, power.rated_w, settings.value)


def gpu_hour(offer: Offer, cluster: Cluster, kind: CostBasis, settings: Settings) -> float | None:
    """The price of a GPU hour of a kind, in the comparison's currency; None if there is none."""
    if kind == "owned":
        owned = owned_price(offer, cluster, power_of(cluster, settings), settings)
        return None if owned is None else owned[1].total * settings.converted(1.0, "USD")
    found = choose(offer, cluster, kind, settings)
    return None if found is None else found.per_gpu_hour


def _owning(placed: PlacedRun, days: Range, billed: int, power: Power) -> Owning | None:
    settings = placed.settings
    found = owned_price(placed.offer, placed.cluster, power, settings)
    if found is None:
        return None
    (hardware, around), usd = found
    rate = settings.converted(1.0, "USD")
    cost = days.times(HOURS_PER_DAY * billed * usd.total * rate)
    return Owning(
        billed_gpus=billed,
        hardware_usd=hardware,
        around_usd=around,
        per_gpu_hour=usd.total * rate,
        cost=cost,
        per_trillion_tokens=cost.value * TRILLION / placed.tokens,
        age=date_age_text(hardware.date, settings),
        **{f"{part}_per_gpu_hour": amount * rate for part, amount in asdict(usd).items()},
    )


def _energy(hours: Range, power: Power, settings: Settings) -> Energy:
    """Energy of all GPUs of the cluster over the hours of the run, and its CO2. The interval
    combines the errors of hours and power: their logs add up in quadrature."""
    plain, error = hours.times(power.drawn_w / 1e6), log1p(settings.value("load_error"))
    below = exp(-hypot(log(plain.value / plain.low), error))
    above = exp(hypot(log(plain.high / plain.value), error))
    mwh = Range(value=plain.value, low=plain.value * below, high=plain.value * above)
    carbon = settings.carbon_g_per_kwh
    return Energy(
        rated_w=power.rated_w,
        rated_source=power.origin,
        drawn_w=power.drawn_w,
        mwh=mwh,
        co2_t=None if carbon is None else mwh.times(carbon / 1e3),
    )


# Resource and use of each term of a step that is not communication.
_RESOURCES = {
    LAUNCHES: ("CPU launches", ""),
    **{term.field: (term.resource, term.use) for term in TIME_TERMS if not term.traffic},
}


def time_shares(plan: Plan, job: Job) -> tuple[Share, ...]:
    """The step's time by resource, largest first; the shares add up to one.

    Links count as in `planner.predict.link_account`: by the time that faster links would save.
    `job`: on the GPUs that the plan uses.
    """
    return tuple(_share(one) for one in link_account(job, plan))


def _share(part: LinkShare) -> Share:
    resource, traffic = _RESOURCES.get(part.term, (part.resource, part.traffic))
    beside = f" ({traffic})" if traffic else ""
    return Share(
        resource=resource,
        traffic=traffic,
        share=part.share,
        text=f"{resource}{beside} {part.share * 100:.0f} %",
    )
