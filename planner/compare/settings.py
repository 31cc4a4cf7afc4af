"""Assumptions of a comparison besides plan and prices: every figure with its source or option."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hardware.facts import Figure, load_economics
from hardware.frozen import Frozen
from hardware.load import MOST_GPUS
from hardware.prices import Price
from hardware.ranges import FIGURE_RANGES, FIGURES_ABOVE_LEAST, LARGEST_PRICE
from planner.job.errors import UsageError

CostBasis = Literal["on_demand", "reserved", "spot", "owned"]
BASIS_NAMES: dict[CostBasis, str] = {
    "on_demand": "on demand",
    "reserved": "reserved",
    "spot": "spot",
    "owned": "owned",
}


class Settings(Frozen):
    """Settings for money, energy and failures.

    `figures`: replacements by name for figures of `hardware/catalog/economics.toml`, each with its
    own source. `basis`: price that the front weighs against time. `providers`: only these; empty
    for all. `rates`: US dollars for one unit of a currency. `spares`: nodes kept ready and paid
    for; None: the provider replaces broken nodes within the restart time. `carbon_g_per_kwh`: CO2
    of the electricity. `today`: date from which the ages of prices are counted.
    """

    figures: Mapping[str, Figure] = Field(default_factory=dict)
    basis: CostBasis = "on_demand"
    prices: tuple[Price, ...] = ()
    providers: tuple[str, ...] = ()
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    rates: Mapping[str, Annotated[float, Field(gt=0, le=1e9)]] = Field(default_factory=dict)
    capex_usd: Annotated[float, Field(gt=0, le=LARGEST_PRICE)] | None = None
    carbon_g_per_kwh: Annotated[float, Field(ge=0, le=1e4)] | None = None
    spares: Annotated[int, Field(ge=0, le=MOST_GPUS)] | None = None
    checkpoint_interval_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    asynchronous: bool = False
    today: date = Field(default_factory=date.today)

    @model_validator(mode="after")
    def _figures_make_sense(self) -> Settings:
        known = load_economics().figures
        for name, figure in self.figures.items():
            if name not in known:
                raise UsageError(f"unknown figure {name!r}; there are {', '.join(known)}")
            _check(name, figure)
        return self

    def figure(self, name: str) -> Figure:
        """The figure that was given, otherwise the catalogue's."""
        return self.figures.get(name) or load_economics().figures[name]

    def value(self, name: str) -> float:
        """Value of a figure in its unit."""
        return self.figure(name).value

    def converted(self, amount: float, currency: str) -> float:
        """An amount in the currency of the comparison. UsageError without a rate."""
        if currency == self.currency:
            return amount
        return amount * self._usd(currency) / self._usd(self.currency)

    def _usd(self, currency: str) -> float:
        if currency == "USD":
            return 1.0
        if currency not in self.rates:
            raise UsageError(
                f"mixed currencies: {currency} and "
                f"{'USD' if currency == self.currency else self.currency} cannot be compared "
                f"without a rate; give --rate {currency}=1.10 (US dollars for one {currency}), or "
                "all prices in one currency"
            )
        return self.rates[currency]


def _check(name: str, figure: Figure) -> None:
    least, most = FIGURE_RANGES.get(name, (0.0, 1e18))
    above = name in FIGURES_ABOVE_LEAST
    within = least <= figure.value <= most and not (above and figure.value == least)
    if not within:
        rule = f"more than {least:g}" if above else f"at least {least:g}"
        unit = "" if figure.unit == "1" else f" ({figure.unit})"
        raise UsageError(
            f"{figure.source} {figure.value:g}{unit}: must be {rule} and at most {most:g}"
        )
