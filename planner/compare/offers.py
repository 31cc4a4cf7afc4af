"""Clusters on offer: named on the command line, in sizes (`64..1024xH100` means every doubling in
that range, `any` means every GPU), or listed in a TOML file. Also chooses the price of each: first
from the offer's quotes, then from the user's price files, then from the list prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from hardware.errors import first_error
from hardware.files import read_text, toml_content
from hardware.frozen import Frozen
from hardware.load import MOST_GPUS, load_cluster_file
from hardware.prices import (
    PRICE_KINDS,
    Date,
    Price,
    PriceKind,
    PriceOfGpu,
    age_days,
    load_prices,
    providers,
)
from hardware.schema import Cluster
from planner.compare.settings import Settings
from planner.job.errors import UsageError, unknown_name
from planner.job.pool import SeveralSizes, parse_one_type, read_gpus


class Offer(Frozen):
    """A cluster that could be rented or bought.

    Either `gpus` (64xH100, 64xaws-p5) or `cluster` (a TOML file that describes it). Optional:
    quoted prices per GPU and hour, `capex_per_gpu` (the purchase price with everything around the
    GPU), `provider` (use only its list prices), `precision` instead of the job's. `unit`: GPUs that
    are only sold together, for example the 72 of a rack (default: bought GPUs come as the hardware
    does, rented ones singly); `minimum`: GPUs of the smallest order; `term_days`: shortest time for
    which reserved GPUs are paid. GPUs that are ordered beyond the job's are paid for too.
    """

    name: str = ""
    gpus: str | None = None
    cluster: str | None = None
    provider: str | None = None
    precision: str | None = None
    on_demand: PriceOfGpu | None = None
    reserved: PriceOfGpu | None = None
    spot: PriceOfGpu | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    date: Date = ""
    source: str = "own quote"
    capex_per_gpu: PriceOfGpu | None = None
    unit: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    minimum: Annotated[int, Field(ge=1, le=MOST_GPUS)] = 1
    term_days: Annotated[float, Field(ge=0, le=36_525)] = 0.0

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any) -> Any:
        """Refuse booleans, which Python would accept as the numbers 1 and 0."""
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is neither a number nor a text")
        return value

    @model_validator(mode="after")
    def _one_cluster(self) -> Offer:
        if (self.gpus is None) == (self.cluster is None):
            raise ValueError("give gpus = '64xH100' or cluster = 'FILE.toml', one of them")
        return self

    @property
    def label(self) -> str:
        return self.name or self.gpus or Path(self.cluster or "").stem

    def resolve(self) -> Cluster:
        """The cluster. HardwareError or UsageError if the name or the file is at fault."""
        if self.cluster is not None:
            return load_cluster_file(Path(self.cluster))
        return parse_one_type(self.gpus or "")

    def ordered(self, num_gpus: int, comes_in: int = 1) -> int:
        """The number of GPUs that are paid for if `num_gpus` are wanted: at least the offer's
        minimum, rounded up to whole units. `comes_in`: GPUs of a unit if the offer states none."""
        unit = self.unit or comes_in
        return -(-max(num_gpus, self.minimum) // unit) * unit

    def quotes(self, gpu: str) -> tuple[Price, ...]:
        """The prices that the offer itself quotes."""
        return tuple(
            Price(
                gpu=gpu,
                provider=self.provider or self.label,
                kind=kind,
                price_per_gpu_hour=amount,
                currency=self.currency,
                date=self.date,
                source=self.source,
            )
            for kind in PRICE_KINDS
            if (amount := getattr(self, kind)) is not None
        )


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Parse the offers of a TOML file: one table `[[cluster]]` each, with the fields of `Offer`.

    A relative `cluster = "FILE.toml"` is looked up next to the file. UsageError names the file, the
    table and the field at fault.
    """
    hint = "offer, with gpus = '64xH100' or cluster = 'FILE.toml'"
    tables = listed_tables(path, "cluster", hint)
    return tuple(_offer(path, number, table) for number, table in enumerate(tables, start=1))


def listed_tables(path: Path, name: str, hint: str) -> list[dict[str, Any]]:
    """The tables `[[name]]` of a TOML file that contains nothing else. UsageError otherwise; `hint`
    describes such a table in its message."""
    document = toml_content(read_text(path), str(path))
    tables = document.pop(name, None)
    listed = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if document or not listed or not tables:
        raise UsageError(f"{path}: write one table [[{name}]] for each {hint}")
    return list(tables)


def _offer(path: Path, number: int, table: dict[str, Any]) -> Offer:
    if isinstance(table.get("cluster"), str):
        table = {**table, "cluster": str(path.parent / table["cluster"])}
    try:
        return Offer.model_validate(table)
    except ValidationError as error:
        name, message = first_error(error)
        field = f", field {name!r}" if name else ""
        known = f" (fields: {', '.join(Offer.model_fields)})" if "Extra" in message else ""
        raise UsageError(f"{path}, [[cluster]] {number}{field}: {message}{known}") from None


def demand_distinct(offers: tuple[Offer, ...]) -> None:
    """Raise UsageError if two offers have the same name."""
    seen: set[str] = set()
    for offer in offers:
        if offer.label in seen:
            raise UsageError(
                f"two offers are called {offer.label!r}; give each [[cluster]] a name of its own, "
                "and each --gpus once"
            )
        seen.add(offer.label)


def several_clusters(texts: Iterable[str]) -> tuple[str, ...]:
    """Every cluster that the texts name: `64xH100`, `64..1024xH100` (doubled from the first number
    to the last, in whole nodes; `2..8x8xH100` counts nodes), `64..1024xany` for every GPU of the
    catalogue, `any` for every GPU at every size. UsageError or HardwareError."""
    found: list[str] = []
    for text in texts:
        words = read_gpus(text)
        for item in words.texts() if isinstance(words, SeveralSizes) else [text]:
            parse_one_type(item)
            if item in found:
                raise UsageError(f"--gpus: {item} is given twice; give each cluster once")
            found.append(item)
    return tuple(found)


def each_size(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers of a file, one for every size that their `gpus` name, as `several_clusters` reads
    them."""
    return tuple(size for offer in offers for size in _each_size(offer))


def _each_size(offer: Offer) -> Iterator[Offer]:
    words = None if offer.gpus is None else read_gpus(offer.gpus)
    if not isinstance(words, SeveralSizes):
        yield offer
        return
    for text in words.texts():
        name = offer.name and f"{offer.name} {text}"
        yield offer.model_copy(update={"gpus": text, "name": name, "cluster": None})


# From this age on, and without a date, prices are shown with their age.
STALE_DAYS = 90


@dataclass(frozen=True, slots=True)
class ChosenPrice:
    """The price taken for a cluster. `per_gpu_hour`: in the comparison's currency; `choices`: the
    number of prices that it was chosen from; `lowest`, `highest`: the ends of their range, in that
    currency."""

    price: Price
    per_gpu_hour: float
    choices: int
    lowest: float
    highest: float
    smaller_instance: bool


def check_providers(settings: Settings, offers: Iterable[Offer]) -> None:
    """Raise UsageError for a provider without any price."""
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
    """The price of a kind for a cluster; None if there is none.

    The offer's quotes come before the user's price files, and those before the catalogue. Among
    prices of the same origin, those of instances that occupy a whole node (or of unknown ones) come
    before those of smaller instances, whose GPUs need not share a fast network; then recent before
    old and undated ones; then the cheapest.
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
    return price.instance_gpus is not None and price.instance_gpus < cluster.gpus_per_node


def age_text(price: Price, settings: Settings) -> str:
    """The age of a price: `12 days old`, `14 weeks old`, or `date unknown`."""
    return date_age_text(price.date, settings)


def date_age_text(date: str, settings: Settings) -> str:
    """The same age text for a date as prices write it."""
    days = age_days(date, settings.today)
    if days is None:
        return "date unknown"
    return f"{days} days old" if days < 2 * STALE_DAYS // 3 else f"{days // 7} weeks old"


def is_stale(price: Price, settings: Settings) -> bool:
    """Whether a price is old or of unknown age."""
    days = price.age_days(settings.today)
    return days is None or days > STALE_DAYS
