"""Nothing is cut and no line overflows, whatever the width of the terminal."""

from __future__ import annotations

import io

import pytest

from planner.job.request import Request
from planner.report.beside import Beside, beside_report
from planner.report.draw import console, draw
from planner.report.explain import explanation_report
from planner.report.search import search_report
from planner.report.tables import Report, table
from planner.search.explanation import explain
from planner.search.result import SearchResult
from planner.search.search import find_plans

WIDTHS = (60, 66, 72, 80, 90, 100, 120, 160, 200)


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return find_plans(Request(model="llama-3-8b", gpus="16xH100", gbs=64))


@pytest.fixture(scope="module")
def reports(result: SearchResult) -> dict[str, Report]:
    return {
        "search": search_report(result, "plans.json", 8),
        "all": search_report(result, None, None, True, True),
        "explain": explanation_report(explain(result, 1, result.request.resolve())),
        "two plans": beside_report(Beside(result, 1, len(result.plans))),
    }


def drawn(report: Report, width: int) -> str:
    stream = io.StringIO()
    page = console(stream)
    page.width = width
    draw(report, page)
    return stream.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["search", "all", "explain", "two plans"])
def test_no_line_is_longer_than_the_page(reports: dict[str, Report], name: str, width: int) -> None:
    lines = drawn(reports[name], width).splitlines()
    # A command that is to be copied is never broken.
    assert [line for line in lines if len(line) > width and not line.startswith("    ")] == []


@pytest.mark.parametrize("width", range(60, 201, 7))
def test_no_cell_is_cut(width: int) -> None:
    """Words that occur once each, in columns of every kind, are all there."""
    titles = "# | ~words of a plan | step time | <name | ~also | GiB | fits"
    rows = [
        tuple(
            f"{place}x{row}{'w' * (3 * place)}" + f" {place}y{row}" * (place % 3)
            for place in range(7)
        )
        for row in range(4)
    ]
    text = drawn(Report((table(titles, rows),)), width)
    words = [word for row in rows for cell in row for word in cell.split()]
    assert [word for word in words if word not in text.split()] == []
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", (60, 80))
def test_columns_without_room_are_named(reports: dict[str, Report], width: int) -> None:
    text = " ".join(drawn(reports["search"], width).split())
    if "tok/s /GPU" not in text.partition("No room for:")[0]:
        assert "No room for:" in text and "tok/s /GPU" in text.partition("No room for:")[2]
