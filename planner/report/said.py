"""Fills in the texts of reports, which are TOML files in `planner/report/words`.

A field in braces is an attribute of the object that the report shows, or of a named one:
`{days.value:days}` is `days.value` in the format `days`, and `it` is the object itself. After the
colon comes one of

* a name of `FORMATS`, perhaps with an argument (`gib 2`, `plural GPU`), a function of
  `planner.predict.plan_text`, or a Python format. `*100;` or `/1e12;` before it scales the value;
  `|-` after it is the text for None,
* `?yes/no`, or `&, of <gib> GiB`: words that appear if the value is true,
* `if`, `unless`, `set` or `unset`: a condition for the whole text.

A text is left out if one of its values is None. A column is left out with its title.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from string import Formatter
from typing import TYPE_CHECKING, Any

from hardware.files import shipped_toml
from planner.job import quantities
from planner.job.quantities import short_count
from planner.report.tables import Facts, TableData, headings

if TYPE_CHECKING:
    from planner.compare.interval import Range


NONE = "-"


def money(amount: Any) -> str:
    """An amount with three digits: `845`, `12.4 k`, `1.23 M`, `2.50 B`; a dash if it is unknown."""
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
    """Days with three digits: `2,563`, `25.6`, `0.25`."""
    return f"{days:,.0f}" if days >= 99.5 else f"{days:.3g}"


def lasting(days: float) -> str:
    """`90 days`, or `4.68 h` for less than one day."""
    return f"{days_text(days)} days" if days >= 1.0 else f"{24.0 * days:.3g} h"


def days_and_hours(days: float) -> str:
    """`25.6`; for less than one day with hours: `0.142 (3.4 h)`."""
    return days_text(days) if days >= 1.0 else f"{days:.3g} ({24.0 * days:.2g} h)"


def energy(mwh: float) -> str:
    """Whole MWh, or two digits if there are few: `1,234`, `0.0034`."""
    return f"{mwh:,.0f}" if mwh >= 10.0 else f"{mwh:.2g}"


def spread_text(interval: Range) -> str:
    """The interval around a value in percent: `±8 %` with the larger side, or both sides if one is
    more than twice the other: `-3/+9 %`."""
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
    """`1.20 T (1.10 T to 1.30 T)`; `far` is added inside the brackets. Only the value if it is
    exact."""
    if figure.low == figure.high and not far:
        return short_count(figure.value)
    value, low, high = map(short_count, (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high}{far})"


FORMATS: dict[str, Callable[..., str]] = {
    "gib": lambda size, digits="1": quantities.gib(size, int(digits)),
    "share": lambda part, digits="1": quantities.share(part, int(digits)),
    "signed": quantities.signed_share,
    "sure": quantities.percent_sure,
    "seconds": quantities.seconds,
    "short": quantities.short_count,
    "rate": quantities.rate,
    "plural": quantities.plural,
    "money": money,
    "days": days_text,
    "lasting": lasting,
    "days_and_hours": days_and_hours,
    "energy": energy,
    "spread": spread_text,
    "ranged": lambda interval, form=",.4g": ranged(interval, form),
    "counted": counted,
    "join": lambda words, between=", ": between.join(words),
    "words": str,
}
_CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "if": bool,
    "unless": lambda value: not value,
    "set": lambda value: value is not None,
    "unset": lambda value: value is None,
}
Row = tuple[str, str]


class _LeftOutError(Exception):
    """A text refers to a missing value, so it is left out."""


class _Words(Formatter):
    """Fills in the fields of a text, as the module describes."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        (first, *path), about = field_name.split("."), args[0]
        if first in kwargs:
            value = kwargs[first]
            value = value(*args) if callable(value) else value
        elif first == "it":
            value = about
        else:
            value = about[first] if isinstance(about, Mapping) else getattr(about, first)
        for name in path:
            if value is not None:
                value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in _CONDITIONS:
            if not _CONDITIONS[format_spec](value):
                raise _LeftOutError
            return ""
        sign, rest = format_spec[:1], format_spec[1:]
        if sign == "?":
            yes, _, no = rest.partition("/")
            return yes if value else no
        if sign == "&":
            fill = re.compile("<(.*?)>")
            return fill.sub(lambda at: _formatted(value, at[1]), rest) if value else ""
        form, bar, absent = format_spec.partition("|")
        if value is None and not bar:
            raise _LeftOutError
        return absent if value is None else _formatted(value, form)


def _formatted(value: Any, form: str) -> str:
    """A value in one of `FORMATS` or in a Python format, scaled first if the format begins with a
    factor."""
    if form[:1] in ("*", "/"):
        factor, _, form = form.partition(";")
        number = float(factor[1:])
        value = value * number if factor[0] == "*" else value / number
    name, _, argument = form.partition(" ")
    if name in FORMATS:
        return FORMATS[name](value, argument) if argument else FORMATS[name](value)
    if name.endswith("_text"):
        # Imported here because lists of models or GPUs show no plan and do not need it.
        text: str = getattr(import_module("planner.predict.plan_text"), name)(value)
        return text
    return format(value, form)


@cache
def _file(name: str) -> dict[str, Any]:
    return shipped_toml("planner.report", f"words/{name}.toml")


def described(key: str) -> Any:
    """The entry of a words file under a key such as `hardware.gpus`."""
    name, *path = key.split(".")
    found: Any = _file(name)
    for part in path:
        found = found[part]
    return found


def said(text: str, *about: Any, **named: Any) -> str | None:
    """A text, filled in with fields of the first object in `about` and with `named` values; None if
    it is left out."""
    try:
        return _Words().vformat(text, about, named)
    except _LeftOutError:
        return None


def fact_rows(key: str, *about: Any, **named: Any) -> tuple[Row, ...]:
    """The facts under a key as rows (label, text). Facts whose text is empty or left out are
    dropped."""
    texts = ((name, said(text, *about, **named)) for name, text in described(key).items())
    return tuple((name.strip(), text) for name, text in texts if text)


def facts(key: str, *about: Any, title: str = "", **named: Any) -> Facts:
    return Facts(fact_rows(key, *about, **named), title)


def notes(key: str, *about: Any, **named: Any) -> Iterator[str]:
    return (text for one in described(key) if (text := said(one, *about, **named)))


def _columns(key: str, named: Mapping[str, Any]) -> list[tuple[str, str]]:
    titled = ((said(text, None, **named), cell) for text, cell in described(key)["columns"].items())
    return [(title, cell) for title, cell in titled if title is not None]


def rows_of(key: str, items: Iterable[Any], **named: Any) -> list[tuple[str, ...]]:
    """One table row for each item. A cell is empty if its text is left out."""
    cells = [cell for _, cell in _columns(key, named)]
    return [tuple(said(cell, item, **named) or "" for cell in cells) for item in items]


def words_of(key: str, about: Any = None, **named: Any) -> str:
    """The text under a key; empty if it is left out."""
    return said(described(key), about, **named) or ""


def table_of(
    key: str, items: Iterable[Any], more: Iterable[tuple[str, ...]] = (), **named: Any
) -> TableData:
    """A table with one row for each item, then the rows in `more`. Titles may use the
    `named` values."""
    title = said(described(key).get("title", ""), None, **named) or ""
    columns = tuple(column for text, _ in _columns(key, named) for column in headings(text))
    return TableData(columns, (*rows_of(key, items, **named), *more), title)
