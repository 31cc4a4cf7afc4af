"""Closed forms of money: the annuity repays, parts add up, rates convert."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hardware.facts import Figure
from planner.compare.run import annuity, owned_hour
from planner.compare.settings import Settings
from planner.job.errors import UsageError

TERMS = {
    "interest": 0.0, "amortisation_years": 5.0, "utilisation": 1.0, "electricity": 0.1,
    "hosting": 73.0,
}  # fmt: skip


def test_annuity_as_textbooks_have_it() -> None:
    # 1,000 at 5 % over 10 years: 129.50 a year (ordinary annuity tables).
    assert annuity(1000.0, 0.05, 10.0) == pytest.approx(129.5046, abs=1e-4)
    assert annuity(1000.0, 0.0, 10.0) == 100.0


@given(st.floats(1.0, 1e6), st.floats(0.0, 0.5, allow_subnormal=False), st.integers(1, 30))
def test_annuity_repays_the_purchase(principal: float, interest: float, years: int) -> None:
    payment = annuity(principal, interest, float(years))
    debt = principal
    for _ in range(years):
        debt = debt * (1.0 + interest) - payment
    assert abs(debt) < 1e-6 * principal * (1.0 + interest) ** years


def test_annuity_is_continuous_at_no_interest() -> None:
    assert annuity(1.0, 1e-12, 4.0) == pytest.approx(0.25, rel=1e-9)


def test_an_owned_hour_by_hand() -> None:
    # 43,800 over 5 years of 8,760 hours is 1 an hour; 2 kW at 0.1; 1 kW hosted at 73 x 12 / 8760.
    hour = owned_hour(43800.0, 4380.0, drawn_w=2000.0, rated_w=1000.0, term=TERMS.__getitem__)
    assert hour.hardware == pytest.approx(1.0)
    assert hour.around == pytest.approx(0.1)
    assert hour.electricity == pytest.approx(0.2)
    assert hour.hosting == pytest.approx(0.1)
    assert hour.total == pytest.approx(1.4)


def test_half_used_costs_twice_the_capital_but_no_more_electricity() -> None:
    half = TERMS | {"utilisation": 0.5}
    used, idle = (
        owned_hour(43800.0, 0.0, 2000.0, 1000.0, terms.__getitem__) for terms in (TERMS, half)
    )
    assert idle.hardware == pytest.approx(2.0 * used.hardware)
    assert idle.hosting == pytest.approx(2.0 * used.hosting)
    assert idle.electricity == used.electricity


def test_currencies_convert_by_the_rates_given() -> None:
    settings = Settings(currency="EUR", rates={"EUR": 1.25, "GBP": 1.5})
    assert settings.converted(10.0, "EUR") == 10.0
    assert settings.converted(10.0, "USD") == pytest.approx(8.0)
    assert settings.converted(10.0, "GBP") == pytest.approx(12.0)
    with pytest.raises(UsageError, match=r"mixed currencies: CHF and EUR .* --rate CHF"):
        settings.converted(1.0, "CHF")


@pytest.mark.parametrize(
    ("name", "value"),
    [("pue", 0.9), ("utilisation", 0.0), ("utilisation", 1.5), ("gpu_mtbf", 0.0), ("interest", -1)],
)
def test_figures_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=r"--given .*must be"):
        Settings(figures={name: Figure(value=value, unit="1", source="--given")})
