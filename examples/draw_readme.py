"""Draw the pictures of the README: the page of the main job's plans, in Chromium, light and dark.

    python examples/draw_readme.py

Needs the extras `plot` and `browser`, and `playwright install chromium` or one on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
Scheme = Literal["light", "dark"]
PICTURES: dict[Scheme, Path] = {
    "light": IMAGES / "report.png", "dark": IMAGES / "report-dark.png"
}  # fmt: skip
SEARCH = ("search", "--model", "70b", "--gpus", "64xH100", "--gbs-tokens", "4M")
SIZE = ViewportSize(width=1280, height=760)


def page(folder: Path) -> Path:
    """The page of the main job's plans."""
    for arguments in (
        (*SEARCH, "-q", "-o", "plans.json"),
        ("report", "plans.json", "-q", "-o", "report.html"),
    ):
        command = [sys.executable, "-m", "planner", *arguments]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "report.html"


def draw(file: Path, picture: Path, scheme: Scheme) -> None:
    """What a reader sees of it first, light or dark."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        opened = browser.new_page(viewport=SIZE, color_scheme=scheme)
        opened.goto(file.as_uri())
        opened.wait_for_selector("[data-chart=front] svg")
        opened.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        file = page(Path(name))
        for scheme, picture in PICTURES.items():
            draw(file, picture, scheme)
