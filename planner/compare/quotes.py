"""Which price holds for a cluster: quotes given, then files given, then the list prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hardware.prices import Price, PriceKind, age_days, load_prices, providers
from hardware.schema import Cluster
from planner.compare.offers import Offer
from planner.compare.settings import Settings
from planner.job.errors import unknown_name

# Older prices, and those without a date, say so.
STALE_DAYS = 90


@dataclass(frozen=True, slots=True)
class ChosenPrice:
    """The price taken for a cluster, how many there were, and their range in the comparison's
    currency."""

    price: Price
    per_gpu_hour: float
    choices: int
    lowest: float
    highest: float
    smaller_instance: bool


def check_providers(settings: Settings, offers: Iterable[Offer]) -> None:
    """UsageError for a provider without any price."""
    known = providers((*load_prices(), *settings.prices))
    offered = {o.label for o in offers} | {o.provider for o in offers if o.quotes("")}
    named = (*settings.providers, *(o.provider for o in offers if o.provider))
    for name in named:
        if name not in known and name not in offered:
            hint = f"providers with prices: {', '.join(known)}"
            raise unknown_name("provider", name, known, hint)


def choose(
    offer: Offer, cluster: Cluster, kind: PriceKind, settings: Settings
) -> ChosenPrice | None:
    """The price of a kind that holds for a cluster; None if there is none.

    Quotes of the offer come before the user's price files, those before the catalogue. Among
    prices of the same origin, those of instances that hold a whole node (or of unknown ones) come
    before those of smaller instances, whose GPUs need not share a fast network; then recent ones
    before old ones and those without a date; then the cheapest.
    """
    candidates = _candidates(offer, cluster, kind, settings)
    if not candidates:
        return None
    amounts = {
        price: settings.converted(price.price_per_gpu_hour, price.currency) for price in candidates
    }

    def rank(price: Price) -> tuple[bool, bool, float]:
        return _is_smaller(price, cluster), is_stale(price, settings), amounts[price]

    best = min(candidates, key=rank)
    return ChosenPrice(
        price=best,
        per_gpu_hour=amounts[best],
        choices=len(candidates),
        lowest=min(amounts.values()),
        highest=max(amounts.values()),
        smaller_instance=_is_smaller(best, cluster),
    )


def _candidates(
    offer: Offer, cluster: Cluster, kind: PriceKind, settings: Settings
) -> Sequence[Price]:
    gpu = cluster.gpu.name
    items = [price for price in offer.quotes(gpu) if price.kind == kind]
    if items:
        return items
    allowed = {offer.provider} if offer.provider else set(settings.providers)
    for prices in (settings.prices, load_prices()):
        found = [
            price
            for price in prices
            if (price.gpu, price.kind) == (gpu, kind) and (not allowed or price.provider in allowed)
        ]
        if found:
            return found
    return ()


def _is_smaller(price: Price, cluster: Cluster) -> bool:
    """Whether the priced instance holds fewer GPUs than a node of the cluster."""
    return price.instance_gpus is not None and price.instance_gpus < cluster.gpus_per_node


def age_text(price: Price, settings: Settings) -> str:
    """`12 days old`, `14 weeks old`, or `date unknown`."""
    return date_age_text(price.date, settings)


def date_age_text(date: str, settings: Settings) -> str:
    """The same of a date as prices have it."""
    days = age_days(date, settings.today)
    if days is None:
        return "date unknown"
    return f"{days} days old" if days < 2 * STALE_DAYS // 3 else f"{days // 7} weeks old"


def is_stale(price: Price, settings: Settings) -> bool:
    """Whether a price is old, or of unknown age."""
    days = price.age_days(settings.today)
    return days is None or days > STALE_DAYS
