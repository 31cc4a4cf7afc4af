"""Every kind of page: a card on top, no words on each other, accessible, small, on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from planner.cli import planner_command
from tests.browser.opened import Opened

pytestmark = pytest.mark.browser
EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--model", "llama-3.2-1b", "--gpus", "8xH100", "--gbs", "64")
MOST_BYTES = 6_000_000
# What writes each page; the option --plot follows.
PAGES: dict[str, tuple[str, ...]] = {
    "search": ("search", *SMALL),
    "experts": ("search", "--model", "mixtral-8x7b", "--gpus", "64xH100", "--gbs", "128"),
    "lora": ("search", *SMALL, "--train", "lora", "--framework", "hf-transformers"),
    "preference": ("search", *SMALL, "--framework", "deepspeed", "--objective", "dpo"),
    "vision": ("search", "--model", "qwen2.5-vl-7b", "--gpus", "1xRTX4090", "--gbs", "8", "--seq",
               "2048", "--images", "1x1024x768", "--framework", "hf-transformers", "--train",
               "qlora", "--freeze", "vision_tower,projector"),
    "compare": ("compare", "--model", "llama-3.2-1b", "--gbs", "64", "--gpus", "8xH100", "--gpus",
                "8xA100", "--tokens", "1G", "--deadline", "30d"),
    "buy": ("buy", "--model", "llama-3.2-1b", "--gbs", "64", "--tokens", "1G", "--gpus",
            "8..16xH100", "--deadline", "30d"),
    "scale": ("scale", "--model", "llama-3.2-1b", "--gbs", "64", "--gpus", "H100", "--from", "8",
              "--to", "16", "--tokens", "1G"),
    "budget": ("budget", "--days", "10", "--gpus", "8xH100"),
    "memory": ("memory", *SMALL, "--mbs", "2"),
    "lengths": ("lengths", str(EXAMPLES / "09_samples" / "lengths.csv")),
    "trace": ("trace", str(EXAMPLES / "08_traces" / "made_up_rank0.json")),
}  # fmt: skip
WIDTHS = ((1280, "light"), (768, "dark"), (390, "light"))


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_says_it_in_one_look(browser: Any, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    written = CliRunner().invoke(planner_command, [*PAGES[kind], "--plot", str(path)])
    assert written.exit_code == 0, written.output
    assert path.stat().st_size < MOST_BYTES
    for width, scheme in WIDTHS:
        opened = Opened(browser, path.as_uri(), width, scheme)
        opened.draw_all()
        assert opened.page.locator(".card .headline").inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert (opened.overlaps(), opened.serious(), opened.complaints) == ([], [], [])
        if kind not in ("search", "experts"):  # whiskers of the front cross each other's labels
            assert opened.struck() == []
        opened.page.close()
