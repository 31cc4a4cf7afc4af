"""The pages in a real browser: they render, plans are selected, nothing is asked of any network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.job.request import Request
from planner.report.charts.templates import BLUE, GREY
from planner.report.pages.files import page_of_file
from planner.report.pages.page import render
from planner.search.plan_file import to_json
from planner.search.search import find_plans
from tests.browser.opened import Opened

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a small search."""
    folder = tmp_path_factory.mktemp("page")
    plans, page = folder / "plans.json", folder / "report.html"
    result = find_plans(Request(model="llama-3-8b", gpus="16xH100", gbs=64))
    plans.write_text(to_json(result), encoding="utf-8")
    page.write_text(render(page_of_file(plans)), encoding="utf-8")
    return page.as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page on a desk."""
    opened = Opened(browser, address, 1280)
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_everything_is_drawn_and_accessible_at_every_width(
    browser: Any, address: str, width: int, scheme: str, tmp_path: Path
) -> None:
    opened = Opened(browser, address, width, scheme)
    opened.draw_all()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
    assert opened.serious() == []
    assert opened.complaints == []
    opened.page.close()


def test_plans_are_selected_in_the_list_and_in_the_picture(opened: Opened) -> None:
    first, second, *_ = opened.numbers()
    opened.page.select_option("#plan", second)
    assert opened.shown_plan() == second
    opened.page.locator(f"[data-chart=stages-{second}] svg.marks").wait_for()
    opened.page.select_option("#plan", first)
    dots = opened.page.locator(f"[data-chart=front] path[fill='{BLUE}'][aria-label*='plan ']")
    assert dots.count() == len(opened.numbers()) - 1  # the selected one has another colour
    for number in opened.numbers()[1:]:
        dot = f"[data-chart=front] path[fill='{BLUE}'][aria-label*='plan {number}:']"
        opened.page.locator(dot).dispatch_event("click")
        assert opened.shown_plan() == number
        opened.page.locator(f"[data-chart=time-{number}] svg.marks").wait_for()
        assert opened.page.url.endswith(f"#plan-{number}")


def test_a_riskier_plan_says_why_it_is_none(opened: Opened) -> None:
    opened.page.locator("[data-chart=front] path[aria-label*='fits with']").first.dispatch_event(
        "click"
    )
    picked = opened.page.locator(".picked")
    assert "less likely to fit than was asked" in picked.inner_text()
    assert picked.locator("code").inner_text().startswith("planner evaluate ")


def test_a_candidate_says_what_it_is_and_how_to_cost_it(opened: Opened) -> None:
    dots = opened.page.locator(f"[data-chart=front] .mark-symbol path[fill='{GREY}']")
    assert dots.count() > 100
    dots.nth(dots.count() // 2).dispatch_event("click")
    picked = opened.page.locator(".picked")
    assert "Not a plan" in picked.inner_text()
    command = picked.locator("code").inner_text()
    assert command.startswith("planner evaluate --model llama-3-8b --gpus 16xH100 ")
    assert " --mbs " in command and " --grad-acc " in command
    said = opened.page.locator("figure", has=dots.first).locator(".said")
    assert "tokens/s a GPU" in said.inner_text()


def test_two_degrees_are_chosen_and_a_cell_says_its_rule(opened: Opened) -> None:
    heat = opened.page.locator("[data-chart=heat]")
    forbidden = heat.locator("text", has_text="not 16 GPUs").first
    forbidden.dispatch_event("click")
    said = opened.page.locator("figure", has=heat).locator(".said")
    assert "forbidden: dp·tp·pp·cp must equal 16 GPUs" in said.inner_text()
    heat.locator("select").nth(1).select_option("mbs")
    heat.locator("text", has_text="mbs 1").first.wait_for()


def test_the_list_works_by_keyboard(opened: Opened) -> None:
    before = opened.numbers().index(opened.shown_plan())
    opened.page.focus("#plan")
    opened.page.keyboard.press("ArrowDown")
    assert opened.numbers().index(opened.shown_plan()) == before + 1


def test_the_answer_is_on_the_first_screen_and_links_to_its_alternatives(opened: Opened) -> None:
    card = opened.page.locator(".card")
    assert card.locator(".headline").inner_text().startswith("Use plan ")
    assert card.bounding_box()["y"] + card.bounding_box()["height"] < 900
    link = card.locator("a").first
    number = link.get_attribute("href").removeprefix("#plan-")
    link.click()
    opened.page.wait_for_function(f"document.getElementById('plan').value === '{number}'")
    assert opened.shown_plan() == number


def test_rows_select_and_those_within_the_error_bar_open(opened: Opened) -> None:
    table = opened.page.locator("section", has_text="All plans").locator("table").first
    fold = table.locator("tr.fold button")
    hidden = table.locator("tbody tr[hidden]")
    near = hidden.count()
    assert near > 1 and fold.inner_text().startswith(f"▸ {near} plans within the error bar")
    fold.focus()
    opened.page.keyboard.press("Enter")
    assert hidden.count() == 0 and fold.get_attribute("aria-expanded") == "true"
    last = table.locator("tbody tr .pick").last
    last.focus()
    opened.page.keyboard.press("Enter")
    assert opened.shown_plan() == opened.numbers()[-1]
    assert table.locator("tr.chosen").count() == 1


def test_two_plans_stand_side_by_side(opened: Opened) -> None:
    first, *_, last = opened.numbers()
    opened.page.select_option("#plan", first)
    opened.page.select_option("#other", last)
    beside = opened.page.locator("#beside")
    assert f"Plan {first} beside plan {last}" in beside.inner_text()
    assert beside.locator("p").inner_text().startswith(f"A step of plan {last} takes ")
    assert beside.locator("table").count() == 3
    opened.page.select_option("#other", first)
    assert not beside.is_visible()


def test_tables_are_sorted_by_their_columns(opened: Opened) -> None:
    table = opened.page.locator("section", has_text="All plans").locator("table").first
    head = table.locator("th", has_text="peak GiB")
    column = head.evaluate("cell => cell.cellIndex")
    head.locator("button").click()
    cells = [
        float(row.locator("td").nth(column).inner_text()) for row in table.locator("tbody tr").all()
    ]
    assert cells == sorted(cells) and head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"


def test_an_address_opens_its_plan_and_print_shows_one(browser: Any, address: str) -> None:
    opened = Opened(browser, address + "#plan-1", 1280)
    assert opened.shown_plan() == "1"
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible()
    assert opened.shown_plan() == "1"
    assert opened.complaints == []
    opened.page.close()
