"""The site opened from files: its search works there too, and asks no network for anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


def test_the_search_finds_pages_from_files(browser: Any, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("out of memory")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    assert str(found.get_attribute("href")).endswith("how-to/out-of-memory.html")
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    page.close()
