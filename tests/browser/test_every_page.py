"""Every kind of page, light, dark and on paper: a card on top, no words on each other or under a
line; accessible, small, on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from planner.cli import planner_command
from tests.browser.opened import Opened

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
EXAMPLES, RUNS = ROOT / "examples", ROOT / "planner" / "evidence" / "data" / "runs"
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
    "grpo": ("search", "--model", "qwen3-0.6b", "--gpus", "8xH100", "--rl", "grpo", "--prompts",
             "64", "--samples-per-prompt", "8", "--lengths",
             "prompt=512..1024,response=lognormal:median=600,p95=2000,max=4096"),
    "clusters": ("search", "--model", "llama-3.2-1b", "--gbs", "64", "--gpus", "8xH100", "--gpus",
                 "8xA100"),
    "evaluate": ("evaluate", "--model", "70b", "--gpus", "64xH100", "--gbs", "1024", "--tp", "4",
                 "--pp", "4", "--mbs", "1"),
    "validate": ("validate", "--data", str(RUNS / "korthikanti2022_seqpar.csv")),
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
VIEWS = ((1280, "light"), (1280, "dark"), (768, "dark"), (390, "light"), (390, "dark"))
# An evaluation whose plan does not fit draws it all the same, and says so in its status.
STATUS = {"evaluate": 1}
A4 = 793


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_says_it_in_one_look(browser: Any, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    written = CliRunner().invoke(planner_command, [*PAGES[kind], "--plot", str(path)])
    assert written.exit_code == STATUS.get(kind, 0), written.output
    _look(browser, path)


def test_the_page_of_a_sweep_says_it_in_one_look(browser: Any, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'tokens = "1B"\n[grid]\nmodel = ["gpt2"]\ngpus = ["1..4xH100"]\ngbs = [8, 16]\n'
    )
    for words in (
        ["sweep", str(grid), "--processes", "1", "-q"],
        ["report", str(tmp_path / "grid.sweep"), "-o", str(tmp_path / "page.html")],
    ):
        assert CliRunner().invoke(planner_command, words).exit_code == 0
    _look(browser, tmp_path / "page.html")


def _look(browser: Any, path: Path) -> None:
    """A page at three widths, light and dark, and on paper."""
    assert path.stat().st_size < MOST_BYTES
    for width, scheme in VIEWS:
        opened = Opened(browser, path.as_uri(), width, scheme)
        opened.draw_all()
        assert opened.page.locator(".card .headline").inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert (opened.overlaps(), opened.struck(), opened.serious()) == ([], [], [])
        assert opened.complaints == []
        if (width, scheme) == VIEWS[0]:
            _print(opened)
        opened.page.close()


def _print(opened: Opened) -> None:
    """On paper nothing is cut: no figure is wider than its place."""
    opened.page.emulate_media(media="print")
    opened.page.set_viewport_size({"width": A4, "height": 1000})
    assert not opened.page.locator("nav").is_visible()
    assert (opened.overlaps(), opened.struck()) == ([], [])
    cut = """() => [...document.querySelectorAll(".chart svg")].filter(
        (svg) => svg.getBoundingClientRect().right > innerWidth + 1).length"""
    assert opened.page.evaluate(cut) == 0
