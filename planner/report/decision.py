"""What to take, in words: the recommended clusters, why, how surely, or what would have to give."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.choice import Decision, Taken
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import percent_sure, plural, share
from planner.report.comparison_trace import money
from planner.report.tables import Facts

_PROVEN = " (proven among all below)"
_AIMS = {"cost": "the cheapest", "time": "the fastest", "energy": "the one of least energy"}
_LIMIT_NAMES = {"time": "deadline", "cost": "budget", "power": "power", "racks": "racks"}


def decision_facts(decision: Decision, currency: str) -> Facts:
    """The recommendation with its reason, or what keeps it from being."""
    return Facts(tuple(_rows(decision, currency)))


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
    sure = f"each figure with {share(decision.limits.certainty, 0)} certainty"
    yield "take", taken_text(best)
    for cluster, basis, provider in dict.fromkeys(
        (one.cluster, one.basis, one.provider) for one in best.choices if one.cost is not None
    ):
        whose = f", {provider}" if provider not in ("", cluster) else ""
        yield "price", f"{cluster}: {BASIS_NAMES[basis]}{whose}"
    why = f"{_AIMS[decision.objective]} that keeps the limits"
    yield (
        "because",
        f"{why if decision.limits.given else _AIMS[decision.objective]}, {sure}"
        + (f" found; another may be {best.gap:.2%} better" if best.gap else _PROVEN),
    )
    yield "at most", _figures(best, currency)
    chances = {"deadline": best.chance_in_time, "budget": best.chance_in_budget}
    for name, chance in chances.items():
        if chance is not None:
            yield f"{name} kept", f"with a probability of {percent_sure(chance)}"


def limits_text(decision: Decision, currency: str) -> str:
    """The limits in words; empty without any."""
    limits = decision.limits
    words = (
        ("within", *_deadline(limits.deadline_days)),
        ("for at most", limits.budget, "{:,.0f} " + currency),
        ("with at most", limits.power_kw, "{:,.4g} kW"),
        ("in at most", limits.racks, "{:,} racks"),
    )
    return ", ".join(f"{word} {form.format(value)}" for word, value, form in words if value)


def _deadline(days: float | None) -> tuple[float | None, str]:
    if days is None or days >= 1:
        return days, "{:,.4g} days"
    return (days * 24, "{:,.3g} hours") if days * 24 >= 1 else (days * 86400, "{:,.3g} s")


def taken_text(taken: Taken) -> str:
    """`64xH100`, or each cluster with its jobs: `64xH100 for a, 128xH100 for b then c`."""
    jobs: dict[int, list[str]] = {}
    for number, one in zip(taken.together, taken.choices, strict=True):
        jobs.setdefault(number, []).append(one.job)
    clusters = [taken.choices[taken.together.index(number)].cluster for number in jobs]
    if len(clusters) == 1:
        return clusters[0]
    each = zip(clusters, jobs.values(), strict=True)
    return ", ".join(f"{cluster} for {' then '.join(names)}" for cluster, names in each)


def _figures(taken: Taken, currency: str) -> str:
    cost = "" if taken.cost is None else f", {money(taken.cost)} {currency}"
    energy = f"{taken.mwh:,.0f} MWh, drawing {taken.power_kw:,.0f} kW"
    return f"{days_text(taken.days)} days{cost}, {energy}, in {plural(taken.racks, 'rack')}"


def _least_text(name: str, value: float | None, alone: float | None, currency: str) -> str:
    found = alone if value is None else value
    if found is None:
        return "no value helps while the other limits stay"
    unit = {"time": "days", "cost": currency, "power": "kW", "racks": "racks"}[name]
    text = days_text(found) if name == "time" else money(found)
    others = "and the others lifted, too" if value is None else "the other limits as they are"
    return f"{text} {unit} or more, {others}"


def days_text(days: float) -> str:
    """Three digits: `2,563`, `25.6`, `0.25`."""
    return f"{days:,.0f}" if days >= 99.5 else f"{days:.3g}"
