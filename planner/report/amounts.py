"""Amounts in words: money, days, values with their intervals (`planner.compare.interval`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.job.quantities import short_count

if TYPE_CHECKING:
    from planner.compare.interval import Range

NONE = "-"


def money(amount: Any) -> str:
    """Three digits: `845`, `12.4 k`, `1.23 M`, `2.50 B`; a dash where it is not known."""
    amount = getattr(amount, "value", amount)
    if amount is None:
        return NONE
    for scale, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if amount >= 0.9995 * scale:
            scaled = amount / scale
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{suffix}"
    return f"{amount:.0f}" if amount >= 10 else f"{amount:.2f}"


def days_text(days: float) -> str:
    """Three digits: `2,563`, `25.6`, `0.25`."""
    return f"{days:,.0f}" if days >= 99.5 else f"{days:.3g}"


def spread_text(interval: Range) -> str:
    """`±8 %`, or both sides where they differ much."""
    below = round((1.0 - interval.low / interval.value) * 100)
    if interval.high == float("inf"):
        return f"-{below} %/+∞"
    above = round((interval.high / interval.value - 1.0) * 100)
    small, large = sorted((below, above))
    return f"±{large} %" if large <= 2 * small else f"-{below}/+{above} %"


def ranged(interval: Range, form: str = ",.4g") -> str:
    """`12.3 (11.0 to 14.1)`."""
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def counted(figure: Range, far: str = "") -> str:
    """`1.20 T (1.10 T to 1.30 T)`, with what else is said of the interval; the value alone where it
    is exact."""
    if figure.low == figure.high and not far:
        return short_count(figure.value)
    value, low, high = map(short_count, (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high}{far})"
