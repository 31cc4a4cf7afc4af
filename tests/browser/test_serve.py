"""`planner serve` in a browser: the front moves with the inputs, nothing leaves the machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.search.plan_file import read_plan_file
from tests.browser.opened import Opened

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server of its own answers; it ends with Ctrl-C, without complaint."""
    command = [sys.executable, "-m", "planner", "serve", "--port", "0", "--quiet"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        assert found is not None
        yield found[0]
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stderr.read() == ""


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The live page on a desk, with its first answer."""
    opened = Opened(browser, address, 1280, home=address)
    yield opened
    assert opened.complaints == []
    opened.page.close()


def _ask(opened: Opened, name: str, text: str, wanted: str) -> None:
    opened.page.fill(f"input[name={name}]", text)
    opened.page.locator("body", has_text=wanted).wait_for()


def test_the_front_moves_with_the_inputs(opened: Opened, tmp_path: Path) -> None:
    assert "llama-3-8b" in opened.page.inner_text("main")
    _ask(opened, "gpus", "16xH100", "Dashed orange line: the front before")
    assert "16 GPUs" in opened.page.inner_text("main")
    with opened.page.expect_download() as download:
        opened.page.click("text=Plan file")
    download.value.save_as(tmp_path / "plans.json")
    assert read_plan_file(tmp_path / "plans.json").job.num_gpus == 16


def test_a_plan_is_fetched_when_it_is_selected(opened: Opened) -> None:
    last = opened.numbers()[-1]
    opened.page.select_option("#plan", last)
    opened.page.locator(f"[data-chart=stages-{last}] svg.marks").wait_for()
    assert opened.shown_plan() == last


def test_a_mistake_is_said_and_the_answer_stays(opened: Opened) -> None:
    _ask(opened, "model", "llama-99", "unknown model 'llama-99'")
    assert opened.page.locator("#state.refused").count() == 1
    assert "llama-3-8b" in opened.page.inner_text("main")


def test_what_fits_nowhere_says_why(opened: Opened) -> None:
    _ask(opened, "conditions", "dp == 8; zero == 0; mbs == 1", "nothing fits")
    assert "No configuration fits" in opened.page.inner_text("main")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_live_page_is_accessible(browser: Any, address: str, width: int, scheme: str) -> None:
    opened = Opened(browser, address, width, scheme, home=address)
    opened.draw_all()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    assert opened.serious() == []
    assert opened.complaints == []
    opened.page.close()


def test_the_field_in_error_is_marked_and_the_old_answer_dimmed(opened: Opened) -> None:
    _ask(opened, "gpus", "8xH10", "unknown GPU")
    field = opened.page.locator("input[name=gpus]")
    assert field.get_attribute("aria-invalid") == "true"
    assert opened.page.locator("#answer.stale").count() == 1
    assert not opened.page.locator("#saved").is_visible()
    opened.page.fill("input[name=gpus]", "8xH100")
    opened.page.wait_for_selector("#answer:not(.stale)")
    assert field.get_attribute("aria-invalid") is None
