"""The pages in a real browser: they render, plans are selected, nothing is asked of any network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.job.request import Request
from planner.report.charts.drawing import BLUE
from planner.report.pages.files import page_of_file
from planner.report.pages.page import render
from planner.search.plan_file import to_json
from planner.search.search import find_plans

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a sandbox: these pages are ours."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield started
        started.close()


class Opened:
    """A page that is open, with what it complained of and asked for."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(address)
        self.page.wait_for_selector("[data-chart=front] svg")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def numbers(self) -> list[str]:
        """Numbers of the plans in the list."""
        options = self.page.locator("#plan option").all()
        return [option.get_attribute("value") for option in options]

    def shown_plan(self) -> str:
        """Number of the plan whose sections are to be seen."""
        seen = self.page.locator("section[data-plan]:visible")
        (number,) = {opened.get_attribute("data-plan") for opened in seen.all()}
        return str(number)


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page on a desk."""
    opened = Opened(browser, address, 1280, "light")
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_everything_is_drawn_at_every_width(
    browser: Any, address: str, width: int, scheme: str, tmp_path: Path
) -> None:
    opened = Opened(browser, address, width, scheme)
    for place in opened.page.locator(".chart:visible").all():
        place.locator("svg").first.wait_for()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
    assert opened.complaints == []
    opened.page.close()


def test_plans_are_selected_in_the_list_and_in_the_picture(opened: Opened) -> None:
    first, second, *_, last = opened.numbers()
    opened.page.select_option("#plan", second)
    assert opened.shown_plan() == second
    opened.page.locator(f"[data-chart=stages-{second}] svg.marks").wait_for()
    opened.page.select_option("#plan", first)
    large = f"[data-chart=front] path[fill='{BLUE}']"
    opened.page.locator(large).last.click()
    assert opened.shown_plan() == last
    assert opened.page.url.endswith(f"#plan-{last}")


def test_the_list_works_by_keyboard(opened: Opened) -> None:
    before = opened.numbers().index(opened.shown_plan())
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("ArrowDown")
    assert opened.numbers().index(opened.shown_plan()) == before + 1


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
    opened = Opened(browser, address + "#plan-1", 1280, "light")
    assert opened.shown_plan() == "1"
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible()
    assert opened.shown_plan() == "1"
    opened.page.close()
