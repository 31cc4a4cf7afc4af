"""Texts of reports from files: fields, formats, what is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

import pytest

from hardware.files import shipped_toml
from planner.predict import plan_text
from planner.report.said import FORMATS, fact_rows, rows_of, said, table_of

WORDS = Path(__file__).resolve().parents[2] / "planner/report/words"


@dataclass
class Inner:
    size: float


@dataclass
class Thing:
    name: str
    inner: Inner | None
    share: float | None = 0.125


THING = Thing("a", Inner(3 * 2.0**30))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{name}: {inner.size:gib 2} GiB", "a: 3.00 GiB"),
        ("{share:*100;.1f} {share:/0.5;g}", "12.5 0.25"),
        ("{share:?yes/no}{name:&, of <words>}", "yes, of a"),
        ("{other:?yes/no}{other:&, of <words>}", "no"),
        ("{other:|-} {other:unset}{name:if}", "- "),
        ("{double}", "aa"),
        ("{other:words}", None),
        ("{name:unless}x", None),
        ("{other:set}x", None),
    ],
)
def test_a_text(text: str, expected: str | None) -> None:
    assert said(text, THING, other=None, double=lambda thing: 2 * thing.name) == expected


def test_nothing_within_nothing() -> None:
    assert said("{inner.size:gib}", Thing("a", None)) is None


def test_a_misspelt_name_is_an_error() -> None:
    with pytest.raises(AttributeError):
        said("{nme}", THING)
    with pytest.raises(KeyError):
        said("{nme}", {"name": 1})


def test_facts_and_tables() -> None:
    shown = dict(fact_rows("budget.run", _budget(), cost=None, kind="owned"))
    assert list(shown) == ["days", "useful", "tokens/s"]
    rows = rows_of("hardware.prices", [_price()], dated="2026-01-01")
    assert rows == [("one", "spot", "2.50", "2026-01-01", "s")]
    assert table_of("hardware.prices", [], dated="").title == "List prices"


def _price() -> dict[str, Any]:
    return {"provider": "one", "kind": "spot", "usd_per_gpu_hour": 2.5, "source": "s"}


def _budget() -> dict[str, Any]:
    days = SimpleNamespace(value=10.0, low=9.0, high=12.0)
    plan = SimpleNamespace(tokens_per_s=1e6, mfu=0.4)
    run = SimpleNamespace(days=days, goodput=Thing("", None, 0.9), plan=plan)
    return {"run": run, "tokens": days, "currency": "USD"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for part in parts for text in _texts(part)]


@pytest.mark.parametrize("path", sorted(WORDS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_format_of_the_files_is_known(path: Path) -> None:
    python = re.compile(r"[<>^]?[+]?0?\d*,?(\.\d+)?[dfgsx]?")
    names = (*FORMATS, *vars(plan_text), "if", "unless", "set", "unset")
    for text in _texts(shipped_toml("planner.report", f"words/{path.name}")):
        for _, field, form, _ in Formatter().parse(text):
            inner = re.findall("<(.*?)>", form) if form and form[0] == "&" else [form]
            for each in inner if field is not None else ():
                if each and each[0] != "?":
                    plain = re.sub(r"^[*/][^;]*;", "", each.partition("|")[0])
                    known = plain.partition(" ")[0] in names
                    assert known or python.fullmatch(plain), (text, each)
