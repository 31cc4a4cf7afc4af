"""Screens are as they are kept; `python -m tests.cli.golden` writes them anew, to be looked at."""

from __future__ import annotations

import pytest

from tests.cli.golden import COMMANDS, WIDTHS, place, screens


@pytest.fixture(scope="module", params=WIDTHS)
def shown(request: pytest.FixtureRequest) -> tuple[int, dict[str, str]]:
    """What every command prints at a width."""
    return request.param, dict(screens(request.param))


def test_every_screen_is_as_it_is_kept(shown: tuple[int, dict[str, str]]) -> None:
    width, texts = shown
    assert set(texts) == set(COMMANDS)
    for name, text in texts.items():
        assert text == place(name, width).read_text(encoding="utf-8"), f"{name} at {width}"


def test_no_screen_overflows(shown: tuple[int, dict[str, str]]) -> None:
    width, texts = shown
    for name, text in texts.items():
        long = [line for line in text.splitlines() if len(line) > width]
        # Commands to copy and errors are whole lines; the terminal breaks them.
        assert [line for line in long if not line.startswith(("    ", "Error: "))] == [], name
