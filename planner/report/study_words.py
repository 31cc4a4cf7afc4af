"""Words shared by reports of studies: recommendations, limits, and the critical batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from planner.compare.interval import Range
from planner.compare.laws import BatchPrice, load_laws
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import percent_sure, share, short_count
from planner.report.differences import ends_text
from planner.report.said import counted, days_text, described, money, notes, ranged, said
from planner.report.tables import Facts
from planner.search.result import JobSummary

if TYPE_CHECKING:
    from planner.compare.budget import Budget
    from planner.compare.results import Decision, Objective, Run, RunnerUp, Taken

_PROVEN = " (proven among all below)"
_AIMS = {
    "cost": "the cheapest",
    "time": "the fastest",
    "energy": "the one that takes the least energy",
}
_LIMIT_NAMES = {"time": "deadline", "cost": "budget", "power": "power", "racks": "racks"}


# --- what to take -----------------------------------------------------------------------------


def decision_facts(decision: Decision, currency: str) -> Facts:
    """The recommendation and its reason, or why there is none."""
    return Facts(tuple(_rows(decision, currency)))


def headline(decision: Decision, currency: str) -> str:
    """The recommendation as a sentence: `Take 64xH100: at most 20.2 days, 119 k USD, …`. Without a
    recommendation: `Take nothing:` and the reason."""
    if decision.best is None:
        return f"Take nothing: {decision.reason}"
    return f"Take {taken_text(decision.best)}: at most {_figures(decision.best, currency)}."


def budget_headline(found: Budget) -> str:
    """Model size, tokens, loss and days for a budget, in a sentence."""
    loss = "" if found.loss is None else f", {ranged(found.loss)} nats a token"
    run = found.run
    days = "" if run is None else f", in {days_text(run.days.value)} days on {found.gpus}"
    sizes = (
        f"{short_count(found.parameters)} parameters on {short_count(found.tokens.value)} tokens"
    )
    return f"{found.model}: {sizes}{loss}{days}."


def _rows(decision: Decision, currency: str) -> Iterator[tuple[str, str]]:
    if (limits := limits_text(decision, currency)) != "":
        yield "limits", limits
    best = decision.best
    if best is None:
        yield "take", f"nothing: {decision.reason}"
        for name, value in decision.least.items():
            alone = decision.alone.get(name)
            yield f"{_LIMIT_NAMES[name]} needed", _least_text(name, value, alone, currency)
        return
    sure = f"if each figure is at the bound that is {share(decision.limits.certainty, 0)} certain"
    yield "take", verdict_text(best)
    for cluster, basis, provider in dict.fromkeys(
        (one.cluster, one.basis, one.provider) for one in best.choices if one.cost is not None
    ):
        whose = f", {provider}" if provider not in ("", cluster) else ""
        yield "price", f"{cluster}: {BASIS_NAMES[basis]}{whose}"
    why = f"{_AIMS[decision.objective]} that keeps the limits"
    yield (
        "because",
        f"{why if decision.limits.given else _AIMS[decision.objective]}, {sure}"
        + (f" found; another may be {share(best.gap, 2)} better" if best.gap else _PROVEN),
    )
    yield "at most", _figures(best, currency)
    if decision.runner_up is not None:
        yield "next best", _next_text(decision.runner_up, decision.objective)
    chances = {"deadline": best.chance_in_time, "budget": best.chance_in_budget}
    for name, chance in chances.items():
        if chance is not None:
            yield f"{name} kept", f"with a probability of {percent_sure(chance)}"


_WORSE = {"cost": ("dearer", "cheaper"), "time": ("slower", "faster"), "energy": ("more", "less")}


def _next_text(other: RunnerUp, objective: Objective) -> str:
    """`128xH100: 6.0 % dearer, -2 to +14 %`: how the next best choice compares."""
    more, less = _WORSE[objective]
    word = more if other.ratio.value >= 1.0 else less
    size = share(abs(other.ratio.value - 1.0))
    sure = "" if other.ratio.is_sure else "; either may be better"
    return f"{other.cluster}: {size} {word}, {ends_text(other.ratio)}{sure}"


def verdict_text(taken: Taken) -> str:
    """The recommendation. Two warnings follow if they apply: how far a choice is beyond measured
    runs, and how old its price is."""
    several = len({one.cluster for one in taken.choices}) > 1
    doubts = [
        (f"{one.cluster} " if several else "") + text
        for one in taken.choices
        for text in (one.beyond_measured, f"price {one.price_age}" if one.price_age else "")
        if text
    ]
    return "; ".join(dict.fromkeys((taken_text(taken), *doubts)))


def limits_text(decision: Decision, currency: str) -> str:
    """The limits in words; empty if there are none."""
    days = decision.limits.deadline_days
    within = ""
    if days:
        hours = days * 24
        within = f"{days:,.4g} days" if days >= 1 else f"{hours:,.3g} hours"
        within = f"{days * 86400:,.3g} s" if hours < 1 else within
    found = notes("study.limits", decision, currency=currency)
    return ", ".join((*([f"within {within}"] if within else []), *found))


def taken_text(taken: Taken) -> str:
    """The recommended cluster: `64xH100`. If different clusters are taken for several jobs, each
    with its jobs in the order in which they run: `64xH100 for a, 128xH100 for b then c`."""
    jobs: dict[int, list[str]] = {}
    for number, one in zip(taken.together, taken.choices, strict=True):
        jobs.setdefault(number, []).append(one.job)
    clusters = [taken.choices[taken.together.index(number)].cluster for number in jobs]
    if len(clusters) == 1:
        return clusters[0]
    each = zip(clusters, jobs.values(), strict=True)
    return ", ".join(f"{cluster} for {' then '.join(names)}" for cluster, names in each)


def _figures(taken: Taken, currency: str) -> str:
    price = "" if taken.cost is None else f"{money(taken.cost)} {currency}"
    return said(described("study.figures"), taken, price=price) or ""


def _least_text(name: str, value: float | None, alone: float | None, currency: str) -> str:
    found = alone if value is None else value
    if found is None:
        return "no value helps while the other limits stay"
    unit = {"time": "days", "cost": currency, "power": "kW", "racks": "racks"}[name]
    text = days_text(found) if name == "time" else money(found)
    others = "and the others lifted, too" if value is None else "the other limits as they are"
    return f"{text} {unit} or more, {others}"


# --- the batch --------------------------------------------------------------------------------


def runs_note(runs: Iterable[Run], tokens: float) -> Iterator[str]:
    """Sentences on the runs: that the batch grows during training, if it does in one of them; and
    how many more tokens the same loss needs, if the largest batch exceeds the critical batch. Empty
    if neither applies."""
    every = list(runs)
    if ramped := next((run.plan for run in every if run.plan.ramp), None):
        first, last = ramped.ramp[0].gbs, ramped.ramp[-1].until_tokens
        yield said(described("study.ramp"), ramped, first=first, tokens=last) or ""
    prices = [run.batch_price for run in every if run.batch_price is not None]
    largest = max(prices, key=lambda price: price.batch, default=None)
    if largest is None or largest.batch <= largest.critical.value:
        return
    surely, extra = largest.batch > largest.critical.high, share_text(largest.extra)
    about = {"about": critical_text(largest), "extra_words": extra, "tokens": tokens}
    yield said(described("study.critical"), largest, surely=surely, **about) or ""


def search_note(job: JobSummary, batch: int) -> Iterator[str]:
    """A sentence if the batch, in tokens, is certainly larger than the critical batch of a
    compute-optimal training of this model. Empty otherwise."""
    loss, critical = load_laws()
    best = loss.best_tokens(job.active_parameters).value
    if batch <= critical.critical(best).high:
        return
    tokens = critical.tokens_for(batch)
    yield said(described("study.search"), critical, batch=batch, tokens=tokens) or ""


def critical_text(price: BatchPrice) -> str:
    """The critical batch in words, with its interval: `about 5.90 M (4.10 M to 8.90 M,
    extrapolated)`."""
    return f"about {counted(price.critical, ', extrapolated' if price.extrapolated else '')}"


def share_text(extra: Range) -> str:
    """The additional tokens that a batch needs for the same loss, as a share with its interval: `12
    % (3 to 14 %)`."""
    return f"{percent(extra.value)} % ({percent(extra.low)} to {percent(extra.high)} %)"


def percent(part: float) -> str:
    """A share in percent with two digits."""
    return f"{part * 100:.0f}" if part >= 0.1 else f"{part * 100:.2g}"
